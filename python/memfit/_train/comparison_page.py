"""Comparisons of two models as HTML: an element for notebooks, and a page that needs no network."""

from __future__ import annotations

from collections.abc import Callable

from memfit._api import html
from memfit._core import format_size

from .comparison import Comparison, Side

_TONES = {"better": "good", "worse": "bad", "undecided": "warn"}
# The intervals are drawn on a scale of this many units.
_WIDTH, _ROW = 1000, 22


def page(found: Comparison) -> str:
    """Return a page."""
    title = f"{found.verdict}: {_difference(found)}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.text(title)}</title>'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f'<body style="margin:2rem;background:Canvas;color:CanvasText">{element(found)}</body></html>\n'
    )


def element(found: Comparison) -> str:
    """Return an element with its style."""
    sentence = (
        f"{_difference(found)}; the interval holds {found.confidence:.0%} of the resampled means of "
        f"{found.samples} paired scores"
    )
    parts = [html.verdict(found.verdict, _TONES[found.verdict], sentence), _plot(found), _table(found)]
    return f'<div class="memfit"><style>{html.STYLE}</style>{"".join(parts)}</div>'


def _difference(found: Comparison) -> str:
    return f"{found.difference:+.4g} ({found.low:+.4g} to {found.high:+.4g})"


def _table(found: Comparison) -> str:
    """The figures of both models; a ratio where one says more than two numbers."""
    before, after = found.before, found.after
    rows = [
        ("score", f"{before.score:.4g}", f"{after.score:.4g}", ""),
        ("its interval", _interval(before), _interval(after), ""),
        _row("time of a batch", before.milliseconds, after.milliseconds, lambda each: f"{each:.2f} ms"),
        _row("weights", before.weights, after.weights, lambda each: format_size(int(each))),
    ]
    if before.peak is not None and after.peak is not None:
        rows.append(_row("peak", before.peak, after.peak, lambda each: format_size(int(each))))
    return html.table(rows, ("", "before", "after", "after / before"), numbers=(1, 2, 3))


def _row(name: str, before: float, after: float, shown: Callable[[float], str]) -> tuple[str, str, str, str]:
    return name, shown(before), shown(after), f"{after / before:.2f}" if before else ""


def _interval(side: Side) -> str:
    return f"{side.low:.4g} to {side.high:.4g}"


def _plot(found: Comparison) -> str:
    """Both scores with their intervals, on one scale."""
    sides = (("before", found.before), ("after", found.after))
    low, high = min(side.low for _, side in sides), max(side.high for _, side in sides)
    span = (high - low) or 1.0

    def at(value: float) -> float:
        return round(_WIDTH * (0.05 + 0.9 * (value - low) / span), 1)

    drawn = []
    for place, (name, side) in enumerate(sides):
        y = _ROW // 2 + place * _ROW
        label = f"{name}: {side.score:.4g} ({_interval(side)})"
        drawn.append(
            f"<g><title>{html.text(label)}</title>"
            f'<line x1="{at(side.low)}" x2="{at(side.high)}" y1="{y}" y2="{y}" stroke="currentColor" '
            'stroke-width="2" vector-effect="non-scaling-stroke"/>'
            f'<rect x="{at(side.score) - 3}" y="{y - 6}" width="6" height="12" fill="var(--parameters)"/></g>'
        )
    height = _ROW * len(sides)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" preserveAspectRatio="none" role="img" style="height:{height}px" '
        f'aria-label="scores with their intervals, before above after">{"".join(drawn)}</svg>'
    )
