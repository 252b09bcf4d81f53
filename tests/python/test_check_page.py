"""The table of docs/check.md, held to the pages of measurements that it links to."""

from __future__ import annotations

import re

import pytest
from runs import ROOT

PAGE = ROOT / "docs/check.md"

# | set of bugs | repositories | found at the first try | found now | errors and warnings right |
ROWS = re.findall(r"^  (\| \[.*check-planted.*)$", PAGE.read_text(), re.MULTILINE)


def sums(pattern: str, texts: list[str]) -> list[int]:
    """The sum of each number that the pattern finds, over all pages."""
    found = [match for text in texts for match in re.finditer(pattern, text, re.MULTILINE)]
    assert len(found) >= len(texts)
    return [sum(map(int, column)) for column in zip(*(match.groups() for match in found), strict=True)]


def test_the_table_has_all_sets_since_the_sixth() -> None:
    linked = [
        name for row in ROWS for name in re.findall(r"\(\.\./measurements/(check-planted-\w+\.md)\)", row)
    ]
    early = {f"check-planted-{name}.md" for name in ("second", "third", "fourth", "fifth")}
    pages = {path.name for path in (ROOT / "measurements").glob("check-planted-*.md")} - early
    assert set(linked) == pages
    assert len(linked) == len(pages)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("]")[0].strip("| ["))
def test_figures_are_sums_of_the_linked_pages(row: str) -> None:
    _, kind, repositories, first, now, right, _ = row.split("|")
    pages = re.findall(r"\(\.\./measurements/(check-planted-\w+\.md)\)", kind)
    texts = [(ROOT / "measurements" / page).read_text() for page in pages]

    assert [int(repositories)] == sums(r" from (\d+) repositories of papers", texts)

    found, planted, found_now = sums(
        r"^\| bugs of the \w+ set \| (\d+) of (\d+) \(\d+ %\) \| (\d+) of", texts
    )
    share = f"{found} of {planted} ({found / planted:.0%})".replace("%", " %")
    if "bugs" in kind:
        assert f"{planted} bugs" in kind
        share = share.replace(f" of {planted}", "")
    assert first.strip() == share
    assert not now.strip() or int(now.split(",")[0]) == found_now

    true, all_of_them = sums(r"^\| (?:errors|warnings) \| (\d+) of (\d+)", texts)
    apart = re.search(r"(\d+) of the (\d+) errors and warnings .*; of the others, (\d+) of (\d+)", texts[0])
    if apart:
        of_one, whole, true_of_others, others = (int(number) for number in apart.groups())
        assert (whole, all_of_them) == (of_one + others, whole)
        assert right.strip() == f"{true_of_others} of {others}, and {of_one} in one tutorial"
    else:
        assert right.strip() == f"{true} of {all_of_them}"
