"""Names the lines of the user's code that hold memory which grows from step to step."""

from __future__ import annotations

import linecache
import re
import types
from collections import Counter
from typing import Any

import torch

from .. import _core
from .._levers.variables import variables
from .holding import Holder, frames, holders

# Maximum number of holders that are named.
_MAX_NAMES = 3


class Growing:
    """Compares the live tensors with those at the time when growth was first seen."""

    def __init__(self) -> None:
        self._before: Counter[str] | None = None

    def look(self, device: torch.device) -> None:
        """Record the current holders, the first time only."""
        if self._before is None:
            self._before = _by_name(holders(device.type))

    def describe(self, device: torch.device) -> str:
        """Return the names of holders that grew, as the end of a sentence."""
        grown = _by_name(holders(device.type)) - (self._before or Counter())
        places = dict(_variables())
        texts = [
            f"`{name}` grew by {_core.format_size(int(size))}{_line(name, places)}"
            for name, size in grown.most_common(_MAX_NAMES)
            if not name.startswith("(")
        ]
        texts += [
            f"`{name}` keeps the autograd graph that computed it{_line(name, places)}: `.detach()` or "
            "`.item()` frees it"
            for name, (value, _) in places.items()
            if _has_graph(value)
        ][:_MAX_NAMES]
        return f": {'; '.join(texts)}" if texts else "; `memfit.holders()` lists the tensors that hold it"


def _by_name(found: list[Holder]) -> Counter[str]:
    """Sum the bytes by variable, with all entries of a container together."""
    sums: Counter[str] = Counter()
    for holder in found:
        sums[re.split(r"[\[.]", holder.name.removeprefix("something in "))[0]] += holder.bytes
    return sums


def _variables() -> list[tuple[str, tuple[Any, types.FrameType]]]:
    """Return the variables of the user's frames, innermost frame first."""
    seen: dict[str, tuple[Any, types.FrameType]] = {}
    for frame in frames():
        if "site-packages" in frame.f_code.co_filename:
            continue
        for name, value in variables(frame).items():
            seen.setdefault(name, (value, frame))
    return list(seen.items())


def _has_graph(value: Any) -> bool:
    """Return `True` if a tensor, or the last entries of a list, still have an autograd graph."""
    if isinstance(value, (list, tuple)):
        return len(value) > 2 and all(_has_graph(entry) for entry in value[-2:])
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _line(name: str, places: dict[str, tuple[Any, types.FrameType]]) -> str:
    """Return the source line that fills a variable."""
    if name not in places:
        return ""
    frame = places[name][1]
    file = frame.f_code.co_filename
    filling = re.compile(
        rf"\b{re.escape(name)}\b(\.(append|extend|add|insert|update)\(|\[[^\]]*\]\s*=|\s*\+=)"
    )
    first, last = frame.f_code.co_firstlineno, max((line or 0) for _, _, line in frame.f_code.co_lines())
    for number in range(first, last + 1):
        text = linecache.getline(file, number).strip()
        if filling.search(text):
            return f" ({file}:{number}: `{text}`)"
    return f" ({file}:{frame.f_lineno})"
