"""Parameter values that `make test` leaves to `make test-exhaustive`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest

EXHAUSTIVE = bool(os.environ.get("MEMFIT_EXHAUSTIVE"))

# A test that repeats others with more, or slower, parameters.
exhaustive = pytest.mark.skipif(
    not EXHAUSTIVE, reason="further parameters of a test: `make test-exhaustive` runs it with them"
)


def first(values: Iterable[Any], besides: Collection[Any]) -> list[Any]:
    """Parameters of a test, of which `make test` tries all but those in `besides`."""
    values = list(values)
    unknown = [value for value in besides if value not in values]
    assert not unknown, unknown
    return [rarely(value) if value in besides else value for value in values]


def rarely(*values: Any) -> Any:
    """One set of parameters that `make test` does not try."""
    return pytest.param(*values, marks=exhaustive)


def every(step: int, places: range) -> range:
    """The places at which something is made to fail: each of them, or in `make test` every `step`th."""
    return places if EXHAUSTIVE else places[::step]
