"""Checks scripts/corpus/planted.py: how a bug is planted, and that its lists agree."""

import json
import subprocess
from pathlib import Path

import pytest
import tomllib
from script_modules import load_script

FOLDER = Path(__file__).parents[2] / "scripts" / "corpus"
planted = load_script("scripts/corpus/planted.py")


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([{"at": 2, "remove": 1, "insert": ["x", "y"]}], ["a", "x", "y", "  c", "d"]),
        ([{"at": 3, "to": 3, "dedent": 2}, {"at": 2, "remove": 1, "insert": []}], ["a", "c", "d"]),
        # The numbers are those of the original, whatever is inserted before.
        (
            [{"at": 1, "remove": 0, "insert": ["0"]}, {"at": 4, "remove": 1, "insert": ["D"]}],
            ["0", "a", "b", "  c", "D"],
        ),
        (
            [{"at": 4, "remove": 0, "insert": ["before"]}, {"at": 4, "remove": 1, "insert": ["D"]}],
            ["a", "b", "  c", "before", "D"],
        ),
    ],
)
def test_edits_count_lines_of_the_original(edits, expected):
    assert planted.changed("a\nb\n  c\nd", tuple(edits)).split("\n") == expected


def test_every_bug_has_a_kind_and_a_key_of_its_own():
    bugs = [bug for chosen in planted.SETS.values() for bug in planted.read_bugs(chosen)]
    kinds = tomllib.loads(planted.KINDS.read_text())
    assert {bug.kind for bug in bugs} == set(kinds)
    assert len({bug.key for bug in bugs}) == len(bugs)


def test_a_third_of_the_first_set_is_unread():
    bugs = planted.read_bugs(planted.SETS["first"])
    assert 0.25 < sum(bug.is_unread for bug in bugs) / len(bugs) < 0.45


def test_the_sets_share_no_repository():
    sets = [{bug.repository.lower() for bug in planted.read_bugs(chosen)} for chosen in planted.SETS.values()]
    assert len(set.union(*sets)) == sum(map(len, sets))


@pytest.mark.parametrize("chosen", planted.SETS.values(), ids=lambda chosen: chosen.name)
def test_readings_are_of_planted_bugs(chosen):
    keys = {bug.key: bug for bug in planted.read_bugs(chosen)}
    readings = tomllib.loads(chosen.readings.read_text())
    assert set(readings["first"]) <= set(keys)
    assert all(keys[key].is_unread for key in readings.get("last", ()))


def test_a_finding_in_a_notebook_is_near_where_its_cell_is_that_of_the_bug():
    bug = planted.Bug("o/n", "0", "a.ipynb", 4, (), "kind", "why", (), cell=2)
    finding = {"file": "a.ipynb", "cell": 2, "line": 5}
    assert planted.near(finding, bug)
    assert not planted.near({**finding, "cell": 3}, bug)
    assert not planted.near({**finding, "line": 9}, bug)


def test_verify_names_edits_that_do_not_apply(tmp_path):
    mirror = tmp_path / "mirror" / "o+n"
    mirror.mkdir(parents=True)
    (mirror / "a.py").write_text("x = 1\n")
    git = ["git", "-C", str(mirror), "-c", "user.name=n", "-c", "user.email=e"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "m"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()

    def bug(line, insert):
        edit = {"at": 1, "remove": 1, "insert": insert}
        return planted.Bug("o/n", commit, "a.py", line, (), "kind", "why", (edit,))

    def wrong(planted_bug):
        return planted.verify([planted_bug], tmp_path / "cache", mirror.parent)

    assert wrong(bug(1, ["x = 2"])) == []
    assert "invalid syntax" in wrong(bug(1, ["x = = 2"]))[0]
    assert "no line a.py:9" in wrong(bug(9, ["x = 2"]))[0]
    assert "changes nothing" in wrong(bug(1, ["x = 1"]))[0]


def test_a_cell_is_read_without_its_magics():
    cells = [{"source": ["a"]}, {"source": ["%time\n", "for x in y:\n", "\n", "    z()"]}]
    text = json.dumps({"cells": cells})
    assert planted.cell_text(text, 2).split("\n") == ["pass", "for x in y:", "", "    z()"]


def test_a_finding_is_new_where_its_rule_is_reported_more_often():
    old = {"rule": "a", "file": "x.py", "line": 1}
    new = {"rule": "a", "file": "x.py", "line": 9}
    other = {"rule": "b", "file": "x.py", "line": 1}
    assert planted.new_findings([old], [old]) == []
    assert planted.new_findings([old], [old, new]) == [old, new]
    assert planted.new_findings([old], [old, other]) == [other]
