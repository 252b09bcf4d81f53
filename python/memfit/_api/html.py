"""Results as HTML for notebooks: one element with its style, no script, nothing fetched, all text escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from .._core import format_size

if TYPE_CHECKING:
    from .report import Report

#: Colours of the page that `memfit view` shows, for light and dark backgrounds.
LIGHT = (
    "--good:#0b7a55;--bad:#c8102e;--warn:#a15c00;--parameters:#2f6fd0;--buffers:#7fb2ea;--optimizer:#8458c7;"
    "--gradients:#e0702a;--inputs:#e3ad14;--activations:#17997a;--workspace:#8a7866;--temporary:#d8557f;"
    "--unknown:#98a2b0;--rounding:#cbb893;--fragmentation:#b9c0cb;--outside:#7f8a99;--uncertain:#a9b1bd"
)
DARK = (
    "--good:#4fd1a2;--bad:#ff6b7a;--warn:#e8bd45;--parameters:#5b93ea;--buffers:#8fc0f0;--optimizer:#a884e3;"
    "--gradients:#ee8b4c;--inputs:#e8bd45;--activations:#35b894;--workspace:#a3907c;--temporary:#e5779b;"
    "--unknown:#7f8a99;--rounding:#b3a079;--fragmentation:#5a6575;--outside:#8b95a4;--uncertain:#6b7686"
)
# Text has the notebook's own colour; a notebook's theme goes before the system's.
STYLE = f"""
.memfit{{{LIGHT};font:13px/1.5 var(--jp-ui-font-family,system-ui,sans-serif);max-width:56rem}}
@media (prefers-color-scheme:dark){{.memfit{{{DARK}}}}}
[data-jp-theme-light="true"] .memfit,.vscode-light .memfit,html[theme="light"] .memfit{{{LIGHT}}}
[data-jp-theme-light="false"] .memfit,.vscode-dark .memfit,html[theme="dark"] .memfit{{{DARK}}}
.memfit b.verdict{{display:inline-block;padding:0 .6em;margin-right:.5em;border:1.5px solid;border-radius:99px}}
.memfit .good{{color:var(--good)}}.memfit .bad{{color:var(--bad)}}.memfit .warn{{color:var(--warn)}}
.memfit p{{margin:.35em 0}}.memfit .soft{{opacity:.72}}
.memfit .bar{{display:flex;height:18px;margin:.6em 0;border-radius:4px;overflow:hidden;background:#8883}}
.memfit .bar i{{display:block;height:100%}}
.memfit .key{{display:inline-block;width:.75em;height:.75em;border-radius:3px;margin-right:.5em}}
.memfit table{{border-collapse:collapse;margin:.5em 0;font-size:inherit}}
.memfit td,.memfit th{{padding:.15em .9em .15em 0;text-align:left!important;vertical-align:top;border:0}}
.memfit th{{font-weight:500;opacity:.72}}.memfit tr{{background:none!important}}
.memfit td.n,.memfit th.n{{text-align:right!important;white-space:nowrap;font-variant-numeric:tabular-nums}}
.memfit svg{{display:block;width:100%;height:110px;border-bottom:1px solid #8886}}
.memfit code,.memfit pre{{font:12px/1.45 var(--jp-code-font-family,ui-monospace,monospace);background:none}}
.memfit code{{color:inherit!important;background:#8882!important;padding:0 .25em}}
.memfit td:not(:last-child) code{{white-space:nowrap}}
.memfit pre{{white-space:pre;overflow-x:auto;margin:.4em 0;color:inherit}}
.memfit summary{{cursor:pointer;opacity:.72}}
"""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> str:
    """Return a value as HTML; all strings are escaped."""
    return value if isinstance(value, Markup) else escape(str(value))


def page(report: Report) -> str:
    """Return a result as HTML."""
    from .html_reports import body

    return (
        f'<div class="memfit"><style>{STYLE}</style>{body(report)}{folded("Text report", report.text)}</div>'
    )


def verdict(word: str, tone: str, sentence: str) -> str:
    """Return the first line: the answer as a badge, and a sentence."""
    return f'<p><b class="verdict {tone}">{text(word)}</b> {text(sentence)}</p>'


def paragraph(*parts: object, tone: str = "") -> str:
    """Return a paragraph."""
    return f'<p class="{tone}">{" ".join(map(text, parts))}</p>'


def code(value: object) -> Markup:
    """Return code within a line."""
    return Markup(f"<code>{text(value)}</code>")


def prose(value: str) -> Markup:
    """Return a sentence; text between backticks becomes code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", text(value)))


def folded(title: str, content: str) -> str:
    """Return text that a click unfolds; nothing without text."""
    if not content.strip():
        return ""
    return f"<details><summary>{text(title)}</summary><pre>{text(content.rstrip())}</pre></details>"


def preformatted(content: str) -> str:
    """Return lines as they are."""
    return f"<pre>{text(content.rstrip())}</pre>"


def share(part: int, whole: int) -> str:
    """Return a share in percent."""
    percent = 100 * part / whole if whole else 0.0
    return "<0.1 %" if 0 < percent < 0.1 else f"{percent:.1f} %" if percent < 10 else f"{percent:.0f} %"


def bar(parts: Mapping[str, int], whole: int) -> str:
    """Return sizes side by side, in the colours of their names; the rest of the whole is empty."""
    whole = max(whole, sum(parts.values()), 1)
    pieces = "".join(
        f'<i style="width:{100 * size / whole:.3f}%;background:var(--{text(colour(name))})" '
        f'title="{text(name)} {format_size(size)}"></i>'
        for name, size in parts.items()
        if size > 0
    )
    return f'<div class="bar" role="img" aria-label="composition of memory">{pieces}</div>'


def colour(name: str) -> str:
    """Return the name of a colour: a category's, or that of what is unknown."""
    return name if f"--{name}:" in LIGHT else "unknown"


def key(name: str, label: str | None = None) -> Markup:
    """Return a name with its colour in front."""
    square = f'<span class="key" style="background:var(--{text(colour(name))})"></span>'
    return Markup(f"{square}{text(label or name)}")


def table(rows: Iterable[Sequence[object]], head: Sequence[str] = (), numbers: Iterable[int] = ()) -> str:
    """Return a table without its empty columns; those of `numbers` are aligned to the right."""
    rows = [list(cells) for cells in rows]
    empty = {place for place in range(len(rows[0]) if rows else 0) if all(row[place] == "" for row in rows)}
    right = set(numbers)

    def row(cells: Sequence[object], tag: str) -> str:
        shown = (
            f"<{tag}{' class=n' if index in right else ''}>{text(cell)}</{tag}>"
            for index, cell in enumerate(cells)
            if index not in empty
        )
        return f"<tr>{''.join(shown)}</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    return f"<table>{row(head, 'th') if head else ''}{body}</table>" if body else ""


def timeline(outline: Mapping[str, Any] | None, capacity: int | None = None) -> str:
    """Return a chart of memory over a recording's events; nothing without a recording."""
    if not outline or not outline["points"]:
        return ""
    points, events = outline["points"], outline["events"]
    highest = max(max(reserved, allocated) for _, allocated, reserved in points)
    # The capacity is drawn if memory comes near it.
    top = capacity if capacity and highest > 0.6 * capacity else int(highest * 1.05) or 1
    top = max(top, highest)

    def area(place: int, name: str, opacity: str) -> str:
        ends = [point[0] for point in points[1:]] + [events]
        steps = "".join(
            f"H{600 * point[0] / events:.2f}V{100 - 100 * point[place] / top:.2f}H{600 * end / events:.2f}"
            for point, end in zip(points, ends, strict=True)
        )
        return f'<path d="M0 100{steps}V100Z" style="fill:var(--{name});opacity:{opacity}"/>'

    def line(event: int, name: str) -> str:
        x = f"{600 * event / events:.2f}"
        style = f"stroke:{name};stroke-width:1;vector-effect:non-scaling-stroke"
        return f'<path d="M{x} 0V100" style="{style}"/>'

    # More lines than these would hide the curve.
    marks = [line(event, "#8888") for event in outline["steps"]] if len(outline["steps"]) <= 60 else []
    marks += [line(event, "var(--bad)") for event in outline["failures"][:60]]
    drawing = area(2, "fragmentation", ".75") + area(1, "activations", ".85") + "".join(marks)
    legend = [key("activations", "allocated"), "and", key("fragmentation", "reserved"), "over"]
    said = f"{events} memory events, up to {format_size(highest)}"
    said += f" of {format_size(top)}" if top == capacity else ""
    said += f"; grey lines: the ends of {len(outline['steps'])} steps" if marks and outline["steps"] else ""
    said += "; red: out of memory" if outline["failures"] else ""
    return (
        f'<svg viewBox="0 0 600 100" preserveAspectRatio="none" role="img" aria-label="memory over time">'
        f"{drawing}</svg>{paragraph(*legend, said, tone='soft')}"
    )
