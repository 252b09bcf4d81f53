"""Draw what a command prints on a terminal as an SVG picture.

    python scripts/docs/terminal_svg.py -o docs/run.svg --columns 96 -- memfit run --gpu rtx-4090 -- python
    train.py

The command is run with colour forced and a fixed width; its standard output is drawn, whatever its exit
status.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

ESCAPE = re.compile(r"\x1b\[([0-9;]*)m|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-9;?]*[A-Za-z]")
NORMAL = ["#1d2021", "#e5534b", "#57ab5a", "#c69026", "#539bf5", "#b083f0", "#39c5cf", "#adbac7"]
BRIGHT = ["#768390", "#ff938a", "#6bc46d", "#daaa3f", "#6cb6ff", "#dcbdfb", "#56d4dd", "#f0f6fc"]
BACKGROUND, FOREGROUND = "#1c2128", "#c9d1d9"
CELL_WIDTH, LINE_HEIGHT, MARGIN, TITLE = 8.4, 19, 16, 34
# Browsers without support for `xml:space` drop spaces at the ends of a text, and stretch the rest.
PRE = 'style="white-space: pre"'


@dataclass(frozen=True)
class Style:
    """The style of a stretch of text."""

    colour: str | None = None
    bold: bool = False
    dim: bool = False

    def attributes(self) -> str:
        parts = []
        if self.colour:
            parts.append(f'fill="{self.colour}"')
        if self.bold:
            parts.append('font-weight="bold"')
        if self.dim:
            parts.append('opacity="0.65"')
        return " ".join(parts)


def indexed(index: int) -> str:
    """One of the 256 colours of a terminal."""
    if index < 8:
        return NORMAL[index]
    if index < 16:
        return BRIGHT[index - 8]
    if index < 232:
        index -= 16
        red, green, blue = (55 + 40 * v if v else 0 for v in (index // 36, index // 6 % 6, index % 6))
        return f"#{red:02x}{green:02x}{blue:02x}"
    grey = 8 + 10 * (index - 232)
    return f"#{grey:02x}{grey:02x}{grey:02x}"


def restyled(style: Style, codes: str) -> Style:
    """The style after one SGR sequence."""
    numbers = [int(code or 0) for code in codes.split(";")]
    while numbers:
        code = numbers.pop(0)
        if code == 0:
            style = Style()
        elif code == 1:
            style = replace(style, bold=True)
        elif code == 2:
            style = replace(style, dim=True)
        elif code == 22:
            style = replace(style, bold=False, dim=False)
        elif 30 <= code <= 37:
            style = replace(style, colour=NORMAL[code - 30])
        elif 90 <= code <= 97:
            style = replace(style, colour=BRIGHT[code - 90])
        elif code == 39:
            style = replace(style, colour=None)
        elif code in (38, 48) and numbers:
            kind = numbers.pop(0)
            value = indexed(numbers.pop(0)) if kind == 5 else "#{:02x}{:02x}{:02x}".format(*numbers[:3])
            if kind == 2:
                del numbers[:3]
            if code == 38:
                style = replace(style, colour=value)
    return style


def stretches(line: str, style: Style) -> tuple[list[tuple[str, Style]], Style]:
    """A line cut where its style changes."""
    found, start = [], 0
    for match in ESCAPE.finditer(line):
        if match.start() > start:
            found.append((line[start : match.start()], style))
        if match.group(1) is not None:
            style = restyled(style, match.group(1))
        start = match.end()
    if start < len(line):
        found.append((line[start:], style))
    return found, style


def draw(title: str, output: str, columns: int) -> str:
    """The picture, as the text of an SVG file."""
    lines = output.rstrip("\n").split("\n")
    width = MARGIN * 2 + columns * CELL_WIDTH
    height = TITLE + MARGIN + LINE_HEIGHT * len(lines) + MARGIN / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">',
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
        *(
            f'<circle cx="{18 + 18 * i}" cy="17" r="5.5" fill="{c}"/>'
            for i, c in enumerate(("#e5534b", "#c69026", "#57ab5a"))
        ),
        f'<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14" '
        f'fill="{FOREGROUND}" xml:space="preserve">',
        f'<text {PRE} x="{width / 2:.0f}" y="22" text-anchor="middle" opacity="0.7">{escape(title)}</text>',
    ]
    style = Style()
    for number, line in enumerate(lines):
        y = TITLE + MARGIN + LINE_HEIGHT * number
        found, style = stretches(line, style)
        column = 0
        for text, look in found:
            if text.strip():
                x = MARGIN + column * CELL_WIDTH
                length = len(text) * CELL_WIDTH
                parts.append(
                    f'<text {PRE} x="{x:.1f}" y="{y}" textLength="{length:.1f}" '
                    f'lengthAdjust="spacingAndGlyphs" {look.attributes()}>{escape(text)}</text>'
                )
            column += len(text)
    return "\n".join([*parts, "</g>", "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--columns", type=int, default=96)
    parser.add_argument("--title", help="what stands above the picture; the command itself if not given")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    env = {**os.environ, "COLUMNS": str(args.columns), "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}
    env.pop("NO_COLOR", None)
    done = subprocess.run(args.command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    # A picture is of nobody's machine.
    printed = done.stdout.replace(str(Path.cwd()), "~/memfit")
    args.output.write_text(draw(args.title or shlex.join(args.command), printed, args.columns))


if __name__ == "__main__":
    main()
