"""Counters of a trainer, which a repeated step restores."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from memfit.integrations._counters import Counters


class Trainer:
    def __init__(self) -> None:
        self.steps = 0
        self.sizes = (1, [2])
        self.nested: list[Any] = []
        self.nested.append(self.nested)


def test_what_a_failed_step_changed_or_added_is_taken_back() -> None:
    trainer = Trainer()
    restore = Counters(trainer).keep()
    trainer.steps = 1
    trainer.sizes[1].append(3)
    trainer.last = (4, 5)
    trainer.losses = [0.5]
    restore()
    assert vars(trainer).keys() == {"steps", "sizes", "nested"}
    assert (trainer.steps, trainer.sizes) == (0, (1, [2]))


def test_a_list_that_contains_itself_is_left_alone() -> None:
    trainer = Trainer()
    Counters(trainer).keep()()
    assert trainer.nested[0] is trainer.nested
