"""The list of measurements: complete, and in agreement with the history of the pages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from runs import ROOT
from script_modules import load_script

index = load_script("scripts/measurements/index.py")

LIST = """
[paths]
engine = ["engine"]

[[page]]
path = "measurements/speed.md"
command = "python bench.py"
measures = ["engine"]
"""


def git(root: Path, *arguments: str) -> None:
    settings = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    subprocess.run(["git", *settings, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a repository whose only page was written after its code."""
    for name, text in (
        ("index.toml", LIST),
        ("bench.py", "print(1)"),
        ("engine/code.py", "speed = 1"),
        ("measurements/speed.md", "# Speed\n\nBy `bench.py`: 1.\n"),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "Begin")
    return tmp_path


def commits_since(project: Path) -> int:
    found = index.age(index.pages(project / "index.toml")[0], project)
    assert found is not None
    return found.since


def test_every_page_of_measurements_names_an_existing_command_and_code() -> None:
    assert index.problems() == []


def test_no_page_changed_after_the_commit_that_the_list_gives() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("there is no git history beside the tests")
    changed = index.stale((ROOT / index.TARGET).read_text())
    assert [line for line in changed if index.UNKNOWN not in line] == []


def test_a_page_without_an_entry_is_a_problem(project: Path) -> None:
    assert index.problems(project, project / "index.toml") == []
    (project / "measurements/other.md").write_text("# Other\n")
    (project / "measurements/speed.md").write_text("# Speed\n")
    (project / "engine/code.py").unlink()
    (project / "engine").rmdir()
    assert index.problems(project, project / "index.toml") == [
        "measurements/speed.md: `engine` does not exist",
        "measurements/other.md: no entry in index.toml",
        "measurements/speed.md: does not name `bench.py`",
    ]


def test_commits_to_the_measured_code_make_a_page_older(project: Path) -> None:
    assert commits_since(project) == 0
    for name in ("engine/code.py", "engine/tests/case.py", "bench.py"):
        path = project / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("speed = 2")
        git(project, "add", ".")
        git(project, "commit", "--quiet", "-m", f"Change {name}")
    # The page measures neither the tests of the code nor the script.
    assert commits_since(project) == 1
    (project / "measurements/speed.md").write_text("# Speed\n\nBy `bench.py`: 2.\n")
    git(project, "commit", "--quiet", "--all", "-m", "Measure again")
    assert commits_since(project) == 0


TABLE = "# Speed\n\nBy `bench.py`, on 2026-11-29.\n\n| way | took |\n|---|---|\n| plain | 12.5 ms |\n"


@pytest.mark.parametrize(
    ("before", "after", "newer"),
    [
        pytest.param(TABLE, TABLE.replace("took", "time"), False, id="a column has another name"),
        pytest.param(
            TABLE, TABLE.replace("By", "Written in 1 run by"), False, id="the text has a new number"
        ),
        pytest.param(TABLE, TABLE.replace("12.5", "12.6"), True, id="a cell changed"),
        pytest.param(TABLE, TABLE.replace("-29", "-30"), True, id="measured again, with the same result"),
        pytest.param(TABLE, TABLE + "| fused | 9 ms |\n", True, id="a new row"),
        pytest.param("```\ntook 5 s\n```\n", "5\n\n```\ntime 5 s\n```\n", False, id="a code block, reworded"),
        pytest.param("```\ntook 5 s\n```\n", "```\ntook 6 s\n```\n", True, id="a code block, measured again"),
        pytest.param("It took 5 s.\n", "The time was 5 s.\n", False, id="no table, reworded"),
        pytest.param("It took 5 s.\n", "It took 6 s.\n", True, id="no table, measured again"),
    ],
)
def test_only_a_commit_that_changes_figures_makes_a_page_newer(
    project: Path, before: str, after: str, newer: bool
) -> None:
    places = project, project / "index.toml"
    page = project / "measurements/speed.md"
    page.write_text(before)
    git(project, "commit", "--quiet", "--all", "-m", "Measure")
    text, measured = index.table(*places), index.age(index.pages(places[1])[0], project)
    page.write_text(after)
    assert bool(index.stale(text, *places)) is newer
    git(project, "commit", "--quiet", "--all", "-m", "Reword or measure again")
    assert (index.age(index.pages(places[1])[0], project) != measured) is newer
    assert bool(index.stale(text, *places)) is newer


def test_a_page_that_changed_after_the_list_was_written_is_found(project: Path) -> None:
    places = project, project / "index.toml"
    text = index.table(*places)
    assert "| [Speed](speed.md) | `python bench.py` |" in text
    assert index.stale(text, *places) == []
    assert index.stale("", *places) == ["measurements/speed.md: not listed in measurements/README.md"]
    (project / "measurements/speed.md").write_text("# Speed\n\nBy `bench.py`: 3.\n")
    assert len(index.stale(text, *places)) == 1
    git(project, "commit", "--quiet", "--all", "-m", "Measure again")
    assert "changed after" in index.stale(text, *places)[0]
    assert index.stale(index.table(*places), *places) == []
