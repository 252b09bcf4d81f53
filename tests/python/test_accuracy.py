"""The page of published figures: complete data, rows that equal the results, and right statistics."""

from __future__ import annotations

import re

import pytest
from runs import ROOT
from script_modules import load_scripts

figures, measured, page, summary = load_scripts("scripts/accuracy", "figures", "measured", "page", "summary")
Figure = figures.Figure


def figure(published: float, found: float | None, **about: object) -> Figure:
    values: dict[str, object] = {
        "source": "a",
        "repository": "a",
        "case": "b",
        "name": "c",
        "kind": "allocated",
        "rounding": 0.0,
        "low": None,
        "high": None,
        "code": "authors",
        "torch_stated": "2.6",
        "torch_used": "2.6.0",
        "card_stated": "d",
        "card_used": "e",
        "same_release": True,
    }
    return Figure(published=published, found=found, **{**values, **about})  # type: ignore[arg-type]


def test_the_page_is_what_the_results_give() -> None:
    assert (ROOT / "measurements/accuracy.md").read_text() == page.text(page.all_figures())


def test_the_readme_has_the_pages_figures() -> None:
    text = (ROOT / "measurements/accuracy.md").read_text()
    rows = [line.split(" | ") for line in text.splitlines()]
    same, other, reserved, device = (
        next(row for row in rows if row[0] == f"| {kind}" and row[1] == which)
        for kind, which in (
            ("allocated memory", "match"),
            ("allocated memory", "differ"),
            ("reserved memory", "differ"),
            ("memory of the device (`nvidia-smi`)", "differ"),
        )
    )
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"{same[7]} of {same[3]} [published peaks]" in readme

    def spread(row: list[str]) -> str:
        return f"half are within {row[4]} and 9 of 10 within {row[5]}; the worst is off by {row[6]}"

    assert f"of {other[3]} others, {spread(other)}" in readme
    assert f"of {reserved[3]} published peaks, {spread(reserved)}" in readme
    inside = device[9].split(" of ")[0]
    assert (
        f"memfit's interval contains {inside} of {device[3]} published figures, and its estimate is below "
        f"{device[8]} of them; the median error is {device[4]}"
    ) in readme
    for guide in ("docs/run.md", "docs/virtual-device.md"):
        assert (
            f"with {device[3]} published figures: half are off by {float(device[4].rstrip('%')):.0f} % or more, "
            f"and {device[8]} are too low"
        ) in (ROOT / guide).read_text(), guide
    published, answered, agree, false_fits, false_failures = re.search(
        r"Of (\d+) published fits and failures, (\d+) are answered and (\d+) agree\. "
        r"\*\*False fits\*\* \(published to fail, answered to fit\): (\d+)\. False failures: (\d+)\.",
        text,
    ).groups()
    # The README's sentence leaves no place for others.
    assert (answered, false_failures) == (published, "0")
    assert f"False fits: {false_fits}." in readme
    assert (
        f"Of {published} published fits and failures, {agree} agree; the other {false_fits} ran out of memory"
    ) in readme


def test_every_case_states_its_source() -> None:
    keys = []
    for source in figures.sources():
        assert all(source[name] for name in ("name", "repository", "card", "card_stated", "derivation"))
        assert source["torch_stated"]
        # A release is compared, so it has to be one; where none is stated it is empty.
        assert re.fullmatch(r"(\d+\.\d+)?", source["torch"])
        for case in source["run"]:
            keys.append(figures.key_of(source, case))
            assert figures.rows_of(case)
            code = case.get("code", source["code"])
            assert code != "authors" or re.fullmatch(r"[0-9a-f]{40}", source["commit"])
            assert code == "authors" or (ROOT / "scripts/accuracy" / case["script"]).is_file()
    assert len(keys) == len(set(keys))


def test_no_figure_is_listed_twice() -> None:
    rows = [(each.source, each.case, each.name, each.kind) for each in page.all_figures()]
    assert len(rows) == len(set(rows))


def test_no_result_is_without_its_case() -> None:
    known = {figures.key_of(source, case) for source in figures.sources() for case in source["run"]}
    assert set(figures.results()) <= known


def test_statistics_by_hand() -> None:
    # Errors of 0, +1, -2, +10 and -50 %; the fifth was not answered.
    found = [
        figure(100, 100),
        figure(100, 101),
        figure(100, 98, rounding=3),
        figure(100, 110, low=90, high=120),
        figure(200, 100, low=90, high=120),
        figure(100, None),
    ]
    s = summary.summarise(found)
    assert (s.figures, s.answered) == (6, 5)
    assert s.median == pytest.approx(0.02)
    assert s.ninetieth == pytest.approx(0.5)
    assert s.worst == pytest.approx(0.5)
    # Exact, and within the rounding of the third.
    assert s.rounded == 2
    assert (s.inside, s.intervals) == (1, 2)
    # The third is within its rounding: only the last is too low.
    assert s.under == 1


def test_percentiles_are_of_the_nearest_rank() -> None:
    assert summary.percentile([5, 1, 4, 2, 3], 0.5) == 3
    assert summary.percentile([5, 1, 4, 2, 3], 0.9) == 5
    assert summary.percentile(list(range(1, 11)), 0.9) == 9


def test_false_fits_are_counted_apart() -> None:
    found = [
        figure(1, 1, kind="fits"),
        figure(0, 0, kind="fits"),
        figure(0, 1, kind="fits"),
        figure(1, 0, kind="fits"),
        figure(0, None, kind="fits"),
    ]
    assert summary.verdicts(found) == summary.Verdicts(5, 4, 2, 1, 1)


def test_a_match_needs_code_and_release() -> None:
    assert figure(1, 1).matches
    assert not figure(1, 1, code="rebuilt").matches
    assert not figure(1, 1, same_release=False).matches
    assert figures.same_release("2.6", "2.6.1+cu124")
    assert not figures.same_release("2.6", "2.11.0")
    assert not figures.same_release("", "2.11.0")


def test_numbers_are_read_from_what_a_script_prints() -> None:
    case = {
        "figures": [
            {
                "name": "length {0}",
                "kind": "allocated",
                "unit": "GiB",
                "read": r"length={0}: ([\d.]+) GB",
                "rows": {"16": 1.5, "32": 3},
            },
            {"name": "dump", "kind": "reserved", "read": "measured:dump.reserved", "rows": {"": 7}},
        ]
    }
    found = figures.read_output(case, "length=16: 1.25 GB\nlength=64: 9 GB", {"dump.reserved": 7 << 20})
    assert found == {"length 16": 1.25 * 2**30, "dump": 7 * 2**20}


def test_a_snapshot_s_peak_is_a_running_sum() -> None:
    # 10 bytes before the first event; 30 more, 20 less, 5 more: at the end 25, at the most 40.
    snapshot = {
        "segments": [{"allocated_size": 25, "total_size": 64}],
        "device_traces": [
            [],
            [
                {"action": "segment_alloc", "size": 64},
                {"action": "alloc", "size": 30},
                {"action": "free_requested", "size": 20},
                {"action": "free_completed", "size": 20},
                {"action": "alloc", "size": 5},
            ],
        ],
    }
    assert measured.peak_of(snapshot) == {
        "allocated": 40,
        "allocated_before": 10,
        "reserved": 64,
        "reserved_before": 0,
    }
