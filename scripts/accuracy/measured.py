"""How a case says what it measured: one line on its standard output."""

from __future__ import annotations

import json

PREFIX = "measured: "


def report(**bytes_by_metric: int) -> None:
    """Print the metrics, in bytes."""
    print(PREFIX + json.dumps(bytes_by_metric), flush=True)


def parse(output: str) -> dict[str, int]:
    """Read them back from what a case printed."""
    lines = [line for line in output.splitlines() if line.startswith(PREFIX)]
    if not lines:
        raise ValueError("the case printed no measurement")
    merged: dict[str, int] = {}
    for line in lines:
        merged.update(json.loads(line[len(PREFIX) :]))
    return merged
