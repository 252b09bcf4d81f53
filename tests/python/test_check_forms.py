"""The forms in which `memfit check` tells other programs, held to what these programs accept: SARIF to its
schema, GitLab's, JUnit's and GitHub's to their documents. The schema is that of OASIS, as it was published
with the standard.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from runs import ROOT, memfit

# Findings of each severity, with and without a fix, on the line and at other places, in files whose names
# need care.
TRAIN = """\
import torch
from torch.cuda.amp import GradScaler, autocast

with torch.no_grad:
    pass
torch.autograd.set_detect_anomaly(True)
scaler = GradScaler()
model = torch.nn.DataParallel(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
criterion = torch.nn.MSELoss()
for i, (x, y) in enumerate(train_loader):
    optimizer.zero_grad()
    loss = criterion(model(x), y) / 4
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
"""
FILES = {
    "train.py": TRAIN,
    "a folder/è, 100%:b.py": TRAIN,
    "half.py": "import torch\nx = (\nwith torch.no_grad:\n    pass\n",
    "page.md": f"# Page\n\n```python\n{TRAIN}```\n",
    "book.ipynb": json.dumps(
        {
            "cells": [
                {"cell_type": "markdown", "metadata": {}, "source": ["text"]},
                {"cell_type": "code", "metadata": {}, "source": ["%load_ext x\n", "import torch\n"]},
                {"cell_type": "code", "metadata": {}, "source": TRAIN.splitlines(keepends=True)},
            ],
            "metadata": {},
            "nbformat": 4,
            "nbformat_minor": 5,
        },
        indent=1,
    ),
    "broken.ipynb": "{ torch",
}
GITLAB_SEVERITIES = {"info", "minor", "major", "critical", "blocker"}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def check(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [memfit(), "--isolated", "check", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def findings(project) -> list[dict[str, Any]]:
    found = json.loads(check(project, ".", "--select", "all", "--format", "json"))["findings"]
    assert {finding["severity"] for finding in found} == {"error", "warning", "note"}
    assert {Path(finding["file"]).suffix for finding in found} == {".py", ".md", ".ipynb"}
    assert any(finding["labels"] for finding in found)
    assert {bool(finding["fix"]) for finding in found} == {True, False}
    return found


def test_sarif_keeps_to_its_schema(project, findings):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "tests/python/schemas/sarif-2.1.0.json").read_text())
    validator = jsonschema.Draft7Validator(schema, format_checker=jsonschema.FormatChecker())
    validator.check_schema(schema)
    sarif = json.loads(check(project, ".", "--select", "all", "--format", "sarif"))
    assert [error.message for error in validator.iter_errors(sarif)] == []
    (run,) = sarif["runs"]
    assert len(run["results"]) == len(findings)
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    uris = {
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in run["results"]
    }
    assert "a%20folder/%C3%A8%2C%20100%25%3Ab.py" in uris
    # Files that could not be read are reported as well.
    told = run["invocations"][0]["toolExecutionNotifications"]
    assert {place["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for place in told} == {
        "half.py",
        "broken.ipynb",
    }
    # The schema refuses what is not SARIF.
    run["results"][0]["level"] = "fatal"
    assert list(validator.iter_errors(sarif))
    nothing = json.loads(check(project, "train.py", "--select", "compile-in-loop", "--format", "sarif"))
    assert [error.message for error in validator.iter_errors(nothing)] == []


def test_gitlab_gets_a_code_quality_report(project, findings):
    entries = json.loads(check(project, ".", "--select", "all", "--format", "gitlab"))
    assert len(entries) == len(findings)
    for entry in entries:
        assert set(entry) == {"description", "check_name", "fingerprint", "severity", "location"}
        assert entry["severity"] in GITLAB_SEVERITIES
        path = entry["location"]["path"]
        assert (project / path).is_file()
        assert not path.startswith(("/", "./"))
        begin, end = (entry["location"]["positions"][part]["line"] for part in ("begin", "end"))
        assert 1 <= begin <= end
    assert len({entry["fingerprint"] for entry in entries}) == len(entries)
    # A finding's fingerprint does not depend on the lines before it.
    moved = project / "moved"
    moved.mkdir()
    (moved / "train.py").write_text(f"# A comment.\n\n{TRAIN}")
    names = {
        entry["fingerprint"]
        for entry in json.loads(check(moved, "train.py", "--select", "all", "--format", "gitlab"))
    }
    shutil.rmtree(moved)
    assert names == {entry["fingerprint"] for entry in entries if entry["location"]["path"] == "train.py"}


def test_junit_is_xml_whose_counts_are_right(project, findings):
    root = ElementTree.fromstring(check(project, ".", "--select", "all", "--format", "junit"))
    assert root.tag == "testsuites"
    cases = root.findall("testsuite/testcase")
    assert len(cases) == len(findings) == int(root.attrib["tests"]) == int(root.attrib["failures"])
    for suite in root:
        assert (suite.tag, int(suite.attrib["tests"])) == ("testsuite", len(suite))
        for case in suite:
            assert [part.tag for part in case] == ["failure"]
            assert {"name", "classname"} <= set(case.attrib)
            assert {"type", "message"} <= set(case[0].attrib)
    assert "a folder/è, 100%:b.py" in {suite.attrib["name"] for suite in root}


# As the runner reads them: properties by comma and equals sign, and what is escaped.
COMMAND = re.compile(r"^::(?P<name>error|warning|notice) (?P<properties>[^:]*)::(?P<data>.*)$")


def test_github_reads_the_same_back(project, findings):
    lines = check(project, ".", "--select", "all", "--format", "github").splitlines()
    assert len(lines) == len(findings)

    def unescaped(text: str) -> str:
        for code, character in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
            text = text.replace(code, character)
        return text

    for line, finding in zip(lines, findings, strict=True):
        command = COMMAND.match(line)
        assert command, line
        properties = dict(part.split("=", 1) for part in command["properties"].split(","))
        assert unescaped(properties["file"]) == finding["file"]
        assert unescaped(command["data"]).startswith(finding["message"])
        line, end = int(properties["line"]), int(properties["endLine"])
        # The line of the file that GitHub shows, for the cells of notebooks as well.
        text = (project / finding["file"]).read_text().splitlines()
        if finding["cell"]:
            assert TRAIN.splitlines()[finding["line"] - 1] in text[line - 1]
        else:
            assert (line, end) == (finding["line"], finding["end_line"])
        # Columns are of one line.
        assert ("col" in properties) == ("endColumn" in properties) == (line == end)


@pytest.fixture
def runner(tmp_path) -> dict[str, str]:
    """The environment of a job, in which memfit is installed where the action's first step puts it."""
    folder = tmp_path / "runner's temp/memfit/bin"
    folder.mkdir(parents=True)
    (folder / "memfit").symlink_to(Path(memfit()).resolve())
    return {
        "RUNNER_TEMP": str(folder.parents[1]),
        "GITHUB_ACTION_PATH": "/the action",
        "PATH": os.environ["PATH"],
    }


def step(
    name: str, inputs: dict[str, str], runner: dict[str, str], folder: Path
) -> subprocess.CompletedProcess:
    """Runs a step of the action as GitHub does: its inputs put in, in a shell that ends at the first
    error.
    """
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    given = {key: str(value["default"]) for key, value in action["inputs"].items()} | inputs
    assert set(given) == set(action["inputs"])
    (found,) = (step for step in action["runs"]["steps"] if step["name"] == name)
    assert found["shell"] == "bash"

    def put_in(text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: given[match[1]], text)

    environment = {key: put_in(value) for key, value in found["env"].items()}
    assert "${{" not in "".join(environment.values()) + found["run"]
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", found["run"]]
    return subprocess.run(
        command, cwd=folder, env=runner | environment, capture_output=True, text=True, check=False
    )


def test_the_action_installs_checks_and_fails_as_it_is_told(tmp_path, runner):
    folder = tmp_path / "checkout"
    for name in ("src/a.py", "other/b.py", "not checked/c.py"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("import torch\ntorch.autograd.set_detect_anomaly(True)\n")
    # The configured interpreter is asked for an environment, and the new environment's interpreter runs the
    # action.
    told = tmp_path / "told"
    python = tmp_path / "some python"
    python.write_text(
        f'''#!/bin/sh\nprintf "%s\\n" "$*" >> "{told}"\n[ "$2" != venv ] || cp "$0" "$3/bin/python"\n'''
    )
    python.chmod(0o755)
    done = step("Install", {"python": str(python)}, runner, folder)
    assert done.returncode == 0, done.stderr
    temp = runner["RUNNER_TEMP"]
    assert told.read_text().splitlines() == [
        f"-m venv {temp}/memfit",
        "-m pip install --quiet --only-binary :all: -- memfit",
    ]

    installed = Path(temp) / "memfit" / "bin" / "python"
    installed.unlink()
    installed.symlink_to(sys.executable)

    paths = {"paths": "src\nother"}
    done = step("Check", paths, runner, folder)
    assert (done.returncode, done.stdout.count("::warning ")) == (0, 2), done.stderr
    assert step("Check", paths | {"fail-on": "warning"}, runner, folder).returncode == 1
    done = step("Write SARIF", paths | {"sarif": "out put.sarif"}, runner, folder)
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "out put.sarif").read_text())["runs"][0]["results"]
    assert len(results) == 2


def test_the_hooks_are_run_on_the_files_of_their_types(tmp_path):
    hooks = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    assert {hook["language"] for hook in hooks.values()} == {"python", "system"}
    for name, text in (("a.py", TRAIN), ("b.md", FILES["page.md"]), ("c.ipynb", FILES["book.ipynb"])):
        (tmp_path / name).write_text(text)
    path = tmp_path / "bin"
    path.mkdir()
    (path / "memfit").symlink_to(Path(memfit()).resolve())
    for hook in hooks.values():
        assert hook["types_or"] == ["python", "jupyter", "markdown"]
        done = subprocess.run(
            [*hook["entry"].split(), *hook.get("args", []), "a.py", "b.md", "c.ipynb"],
            cwd=tmp_path,
            env={"PATH": f"{path}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        assert all(name in done.stdout for name in ("a.py", "b.md", "c.ipynb"))
