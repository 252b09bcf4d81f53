"""Executes each console block of the README and the guides, and compares its output.

A block is fenced as `console`; a line that begins with `$ ` is a command, the lines below it what it
prints on standard output. `…` stands for anything within a line, and alone on a line for any number of
lines. A remark in the line above the fence can expect another exit status than 0: `<!-- status: 1 -->`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from runs import memfit

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/remedies").glob("*.md")),
    ROOT / "examples/classifier/README.md",
]
FENCE = re.compile(r"^(?:<!-- status: (?P<status>\d+) -->\n)?```console\n(?P<body>.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


@dataclass
class Command:
    """One command of a block, and the output that the page shows."""

    page: str
    text: str
    status: int
    expected: list[str] = field(default_factory=list)


def commands(page: Path) -> list[Command]:
    found = []
    for match in FENCE.finditer(page.read_text()):
        last = None
        for line in match["body"].splitlines():
            if line.startswith("$ "):
                last = Command(page.name, line[2:], int(match["status"] or 0))
                found.append(last)
            elif last:
                last.expected.append(line.rstrip())
    return found


def pattern(lines: list[str]) -> re.Pattern[str]:
    some, rest_of_line = r"(?:.*\n)*?", r"\s*\n"
    parts = [
        some if line.strip() == "…" else ".*".join(map(re.escape, line.split("…"))) + rest_of_line
        for line in lines
    ]
    return re.compile("".join(parts))


ALL = [command for page in PAGES if page.exists() for command in commands(page)]


@pytest.mark.parametrize("command", ALL, ids=lambda command: f"{command.page}: {command.text[:60]}")
def test_a_shown_command_prints_what_is_shown(command):
    folder = str(Path(memfit()).parent)
    env = {
        **os.environ,
        "PATH": os.pathsep.join([folder, str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    env |= {"NO_COLOR": "1", "COLUMNS": "100", "VIRTUAL_ENV": str(Path(sys.executable).parent.parent)}
    done = subprocess.run(
        command.text, shell=True, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == command.status, done.stderr
    said = done.stdout.rstrip("\n")
    assert pattern(command.expected).fullmatch(said + "\n" if said else ""), done.stdout


def test_the_readme_names_every_verb_and_some_page_executes_it():
    named = (ROOT / "README.md").read_text()
    shown = " ".join(command.text for command in ALL)
    helped = subprocess.run([memfit(), "--help"], capture_output=True, text=True, check=True).stdout
    verbs = re.findall(r"^  ([a-z]+) ", helped.split("Commands:")[1].split("Options:")[0], re.M)
    assert verbs
    assert [verb for verb in verbs if f"memfit {verb}" not in named and f"`{verb}`" not in named] == []
    assert [verb for verb in verbs if f"memfit {verb}" not in shown] == []


@pytest.mark.parametrize(
    "page", [p for p in [*PAGES, *ROOT.glob("*.md")] if p.exists()], ids=lambda p: p.name
)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_text_of_the_picture_keeps_its_spaces() -> None:
    """Chromium knows no `xml:space` any more: a text without its spaces is stretched to the length of all."""
    texts = re.findall(r"<text [^>]*>", (ROOT / "docs" / "run.svg").read_text())
    assert len(texts) > 20
    assert all("white-space: pre" in text for text in texts)
