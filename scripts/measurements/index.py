"""List all pages of measurements, and find those that are older than the code they measure.

    python scripts/measurements/index.py            # each page's age, oldest first
    python scripts/measurements/index.py --write    # also measurements/README.md, after a page was committed
    python scripts/measurements/index.py --check    # fail if measurements/README.md does not match

`index.toml` names the command that writes each page and the code that it measures. Ages come from git: the
commit of a page is the last one that changed its figures, and its age is the number of later commits to that
code. Figures are the numbers in tables and code blocks, and dates: a commit that only rewords a page does not
make its figures newer.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]
INDEX = Path(__file__).with_name("index.toml")
TARGET = "measurements/README.md"
# Changes to tests do not change what a page says.
NOT_MEASURED = (":(exclude,glob)**/tests/**", ":(exclude,glob)**/tests.rs", ":(exclude,glob)**/*.md")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")
# Of a clone without the whole history.
UNKNOWN = "no such commit here:"
HEAD = """# Measurements

Every figure in README and the guides comes from one of these pages, and every page from a committed command.
*Commit* is the last one that changed the page's figures: they belong to the code of that commit. Commits that only
reword a page are not counted. `make ages` counts the commits to the measured code since then. This list is written by
`python scripts/measurements/index.py --write`.

| page | written by | date | commit |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Page:
    """A page, the command that writes it, and the code it measures."""

    path: str
    command: str
    script: str
    code: tuple[str, ...]

    def title(self, root: Path) -> str:
        """Return the page's heading."""
        return (root / self.path).read_text().splitlines()[0].removeprefix("# ")


@dataclass(frozen=True)
class Age:
    """The last commit that changed a page's figures, and the number of commits to its code since."""

    commit: str
    date: str
    since: int


def pages(index: Path = INDEX) -> list[Page]:
    """Read the list."""
    listed = tomllib.loads(index.read_text())
    groups: dict[str, list[str]] = listed["paths"]
    return [
        Page(
            each["path"],
            each["command"],
            each.get("script") or next(word for word in each["command"].split() if word.endswith(".py")),
            tuple(path for name in each["measures"] for path in groups.get(name, [name])),
        )
        for each in listed["page"]
    ]


def problems(root: Path = ROOT, index: Path = INDEX) -> list[str]:
    """Return what is wrong with the list: pages without an entry, and entries that name no file."""
    listed = pages(index)
    found = [
        f"{page.path}: `{path}` does not exist"
        for page in listed
        for path in (page.path, page.script, *page.code)
        if not (root / path).exists()
    ]
    names = {page.path for page in listed}
    on_disk = {path.relative_to(root).as_posix() for path in (root / "measurements").glob("*.md")} - {TARGET}
    found += [f"{path}: no entry in {INDEX.name}" for path in sorted(on_disk - names)]
    for page in listed:
        path = root / page.path
        # A page that does not say how it was made cannot be made again.
        if path.exists() and page.script not in (text := path.read_text()) and page.command not in text:
            found.append(f"{page.path}: does not name `{page.script}`")
    return found


def figures(text: str) -> list[str]:
    """Return the numbers in a page's tables and code blocks, or all numbers without these; then all dates."""
    parts = re.split(r"^```.*$", text, flags=re.MULTILINE)
    measured = [line for part in parts[::2] for line in part.splitlines() if line.startswith("|")] + parts[
        1::2
    ]
    numbers = NUMBER.findall("\n".join(measured) or text)
    return numbers + DATE.findall(text)


def age(page: Page, root: Path = ROOT) -> Age | None:
    """Return a page's age; `None` without git history."""
    commits = _git(root, "log", "--format=%h %cs", "--", page.path).splitlines()
    if not commits:
        return None
    last, *earlier = commits
    newest = figures(_git(root, "show", f"{last.split()[0]}:{page.path}"))
    for each in earlier:
        if figures(_git(root, "show", f"{each.split()[0]}:{page.path}")) != newest:
            break
        last = each
    commit, date = last.split()
    since = _git(root, "rev-list", "--count", f"{commit}..HEAD", "--", *page.code, *NOT_MEASURED)
    return Age(commit, date, int(since))


def table(root: Path = ROOT, index: Path = INDEX) -> str:
    """Return the text of measurements/README.md."""
    rows = []
    for page in sorted(pages(index), key=lambda page: page.path.rpartition("/")[2]):
        found = age(page, root)
        link = (
            page.path.removeprefix("measurements/")
            if page.path.startswith("measurements/")
            else f"../{page.path}"
        )
        date, commit = (found.date, found.commit) if found else ("", "")
        rows.append(f"| [{page.title(root)}]({link}) | `{page.command}` | {date} | {commit} |\n")
    return HEAD + "".join(rows)


def stale(text: str, root: Path = ROOT, index: Path = INDEX) -> list[str]:
    """Return the pages whose figures changed after the commit that measurements/README.md gives for them."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and "](" in cells[0]:
            link = cells[0].rpartition("](")[2].rstrip(")")
            rows[link.removeprefix("../") if link.startswith("../") else f"measurements/{link}"] = cells[3]
    found = []
    for page in pages(index):
        commit = rows.get(page.path)
        if not commit:
            found.append(f"{page.path}: not listed in {TARGET}")
        elif not _git(root, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"):
            found.append(f"{page.path}: {UNKNOWN} {commit}")
        elif figures((root / page.path).read_text()) != figures(_git(root, "show", f"{commit}:{page.path}")):
            found.append(f"{page.path}: changed after {commit}")
    return found


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.write:
        (ROOT / TARGET).write_text(table())
    wrong = problems()
    if given.check or given.write:
        wrong += stale((ROOT / TARGET).read_text())
    else:
        ages = [(found.since, found, page) for page in pages() if (found := age(page)) is not None]
        print("commits since  page (its commit), and how it is written again")
        for since, found, page in sorted(ages, key=lambda each: -each[0]):
            print(f"{since:>13}  {page.path} ({found.commit}, {found.date}): {page.command}")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
