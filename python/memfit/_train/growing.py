"""Memory that grows from step to step: which of the user's lines hold it."""

from __future__ import annotations

import linecache
import re
import types
from collections import Counter
from typing import Any

import torch

from .._levers.variables import variables
from .holding import Holder, frames, holders

# So many holders are named.
_MOST = 3


class Growing:
    """What was live when memory was first seen to grow, to tell what came since."""

    def __init__(self) -> None:
        self._before: Counter[str] | None = None

    def look(self, device: torch.device) -> None:
        """Remember who holds what; once."""
        if self._before is None:
            self._before = _by_name(holders(device.type))

    def told(self, device: torch.device) -> str:
        """Who holds more than then, as the end of a sentence."""
        grown = _by_name(holders(device.type)) - (self._before or Counter())
        places = dict(_variables())
        texts = [
            f"`{name}` has {size / 2**20:.1f} MiB more{_line(name, places)}"
            for name, size in grown.most_common(_MOST)
            if not name.startswith("(")
        ]
        texts += [
            f"`{name}` keeps the graph of what it was computed from{_line(name, places)}: `.detach()` or `.item()` lets it go"
            for name, (value, _) in places.items()
            if _has_graph(value)
        ][:_MOST]
        return f": {'; '.join(texts)}" if texts else "; `memfit.holders()` says who holds it"


def _by_name(found: list[Holder]) -> Counter[str]:
    """Bytes by variable, all entries of a container together."""
    sums: Counter[str] = Counter()
    for holder in found:
        sums[re.split(r"[\[.]", holder.name.removeprefix("something in "))[0]] += holder.bytes
    return sums


def _variables() -> list[tuple[str, tuple[Any, types.FrameType]]]:
    """The variables of the user's frames, the innermost frame's first."""
    seen: dict[str, tuple[Any, types.FrameType]] = {}
    for frame in frames():
        if "site-packages" in frame.f_code.co_filename:
            continue
        for name, value in variables(frame).items():
            seen.setdefault(name, (value, frame))
    return list(seen.items())


def _has_graph(value: Any) -> bool:
    """Whether a tensor, or what a list holds in number, was computed with a graph that still stands."""
    if isinstance(value, (list, tuple)):
        return len(value) > 2 and all(_has_graph(entry) for entry in value[-2:])
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _line(name: str, places: dict[str, tuple[Any, types.FrameType]]) -> str:
    """The line that fills a variable, as its source has it."""
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
