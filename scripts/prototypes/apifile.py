"""The prototype lists: reading them, and writing them back with the hand-made parts kept."""

import re
from dataclasses import dataclass
from pathlib import Path

LINE = re.compile(
    r"^(?P<kind>modelled|harmless|refused|alias)\s+(?P<name>\w+)\s*(?P<signature>[(=][^#@>]*?(?:->[^#@>]*?)?)"
    r"\s*(?:@(?P<only>\d+))?\s*(?:>=(?P<since>\d+))?\s*(?:#\s*(?P<note>.*))?$"
)


@dataclass
class Entry:
    """One line of a list."""

    kind: str
    name: str
    signature: str
    only: str | None = None
    note: str = ""
    since: int | None = None

    def text(self) -> str:
        gap = " " if self.kind == "alias" else ""
        line = f"{self.kind:<8} {self.name}{gap}{self.signature}"
        if self.only:
            line += f" @{self.only}"
        if self.since:
            line += f" >={self.since}"
        return f"{line}  # {self.note}" if self.note else line


def read(path: Path) -> dict[str, Entry]:
    """The entries of a list, by name."""
    entries: dict[str, Entry] = {}
    if not path.exists():
        return entries
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = LINE.match(line)
        if match:
            fields = match.groupdict()
            entries[fields["name"]] = Entry(
                fields["kind"],
                fields["name"],
                fields["signature"].strip(),
                only=fields["only"],
                note=(fields["note"] or "").strip(),
                since=fields["since"],
            )
        elif re.match(r"^(modelled|harmless|refused|alias)\b", line):
            raise ValueError(f"{path}:{number}: not a prototype: {line}")
    return entries


def preamble(path: Path) -> str | None:
    """Return the text above the first entry: the library's settings and handwritten notes."""
    if not path.exists():
        return None
    kept = []
    for line in path.read_text().splitlines():
        if LINE.match(line):
            break
        kept.append(line)
    return "\n".join(kept).rstrip() + "\n"


def write(path: Path, head: str, entries: dict[str, Entry]) -> None:
    """Writes a list, one entry a line, in the order of names."""
    lines = [entries[name].text() for name in sorted(entries, key=str.lower)]
    path.write_text(head.rstrip() + "\n\n" + "\n".join(lines) + "\n")
