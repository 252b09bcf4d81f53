"""The scripts of examples/broken, from their snapshots and recordings: the cause, the line, and a first fix
that makes each fit.

All scripts run in two processes, once as they are and once with their first fix, since most of a run is the
import of torch.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from runs import GIB, ROOT, invoke, memfit

SCRIPTS = ROOT / "examples" / "broken"
DRIVER = Path(__file__).with_name("broken_driver.py")
MEMORY = 3 * GIB


@dataclass(frozen=True)
class Case:
    """A script, what is wrong with it, and a text that stands on the line that the explanation must point
    at.
    """

    script: str
    cause: str
    line: str
    settings: str = ""
    lever: str = ""


CASES = [
    Case("too_big", "too-big", "x = block(x)", lever="checkpointing"),
    Case("fragmented", "fragmented", "", lever="expandable-segments"),
    Case("two_batches_alive", "two-batches-alive", "F.interpolate(scores", lever="drop-variables"),
    Case("leaking", "leaking", "model(images)", lever="keep-on-cpu"),
    Case("retained_graph", "retained-graph", "x = F.gelu(layer(x))", lever="release-graph"),
    Case(
        "evaluation_with_gradients", "evaluation-with-gradients", "outputs = model(inputs)", lever="no-grad"
    ),
    Case("first_step_surprise", "first-step-surprise", "optimizer.step()"),
    Case("giant_request", "giant-request", "q @ k.transpose", lever="sdpa"),
    Case("private_pools", "private-pools", "torch.randn(640", lever="pool-on-oom"),
    Case(
        "setting_that_hurts",
        "setting-that-hurts",
        "model(inputs)",
        "roundup_power2_divisions:2",
        "drop-setting",
    ),
    Case("growing_cache", "growing-cache", "torch.cat([states", lever="preallocate"),
    Case("does_not_fit", "does-not-fit", "nn.Linear(8192", lever="shard"),
]


def drive(folder: Path, scripts: list[str], memory: int = MEMORY) -> dict[str, dict[str, Any]]:
    """Runs scripts one after another on a virtual card, and says what came of each."""
    gpu = "t4" if memory < 14 * 1024**3 else "h200"
    arguments = [
        "run",
        "--gpu",
        gpu,
        "--memory",
        f"{memory // 1024**2}MiB",
        "--steps",
        "0",
        "--show-output",
        "--no-prove",
        # No further run with other values, which would print the results again.
        "--sizes",
        "1",
    ]
    answer = invoke([*arguments, "--", sys.executable, str(DRIVER), str(folder), *scripts], cwd=folder)
    lines = [json.loads(line) for line in answer.stderr.splitlines() if line.startswith('{"script"')]
    assert len(lines) == len(scripts), answer.stderr[-3000:]
    return {line["script"]: line for line in lines}


def explain(file: Path) -> dict[str, Any]:
    done = subprocess.run(
        [memfit(), "explain", str(file), "--format", "json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def patched(text: str, diff: str) -> str:
    """A text with a unified diff applied to it: each line that it shows or takes away has to be there."""
    old, new, at = text.splitlines(), [], 0
    for line in diff.splitlines()[2:]:
        if line.startswith("@@"):
            start, count = re.match(r"@@ -(\d+),(\d+) ", line).groups()  # type: ignore[union-attr]
            start = int(start) - (1 if int(count) else 0)
            new += old[at:start]
            at = start
        elif line.startswith("+"):
            new.append(line[1:])
        else:
            assert old[at] == line[1:], diff
            at += 1
            new += [line[1:]] if line.startswith(" ") else []
    return "\n".join(new + old[at:]) + "\n"


def can_be_applied(fix: dict[str, Any]) -> bool:
    return bool(fix["edit"] or fix["environment"])


def apply_first(report: dict[str, Any], case: Case, folder: Path) -> str:
    """The script with its first fix, as an argument of the driver."""
    fix = report["fixes"][0]
    source = SCRIPTS / f"{case.script}.py"
    # Here settings are the driver's, so a change of the line that sets them is one of what the driver sets.
    own = "" if fix["lever"] == "drop-setting" else case.settings
    settings = fix["environment"]["value"] if fix["environment"] else own
    fixed = folder / source.name
    shutil.copy(source, fixed)
    if fix["edit"]:
        assert Path(fix["edit"]["file"]) == source
        fixed.write_text(patched(source.read_text(), fix["edit"]["diff"]))
    return f"{fixed}@{settings}" if settings else str(fixed)


@pytest.fixture(scope="module")
def as_they_are(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Each script's explanation, from the snapshot of its failure."""
    folder = tmp_path_factory.mktemp("broken")
    scripts = [
        f"{SCRIPTS / case.script}.py" + (f"@{case.settings}" if case.settings else "") for case in CASES
    ]
    came = drive(folder, scripts)
    fitted = [name for name, what in came.items() if what["oom"] is None]
    assert not fitted, "they have to run out of memory"
    return {case.script: explain(folder / f"{case.script}.pickle") for case in CASES}


@pytest.fixture(scope="module")
def mended(
    as_they_are: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """Run each script with its first fix."""
    folder = tmp_path_factory.mktemp("mended")
    own = [case for case in CASES if can_be_applied(as_they_are[case.script]["fixes"][0])]
    return drive(folder, [apply_first(as_they_are[case.script], case, folder) for case in own])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.script)
def test_the_cause_is_named(case: Case, as_they_are: dict[str, dict[str, Any]]) -> None:
    report = as_they_are[case.script]
    assert report["schema"] == "memfit.explain/1"
    assert report["cause"] == case.cause, report["considered"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.script)
def test_the_line_is_pointed_at(case: Case, as_they_are: dict[str, dict[str, Any]]) -> None:
    lines = [line for fact in as_they_are[case.script]["evidence"] for line in fact["stack"]]
    if not case.line:
        return  # No single line is to blame.
    assert lines
    assert any(case.line in (line["text"] or "") for line in lines), lines


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.script)
def test_the_holders_add_up(case: Case, as_they_are: dict[str, dict[str, Any]]) -> None:
    report = as_they_are[case.script]

    def adds_up(holder: dict[str, Any]) -> bool:
        children = holder["children"]
        whole = not children or sum(child["bytes"] for child in children) == holder["bytes"]
        return whole and all(map(adds_up, children))

    assert sum(holder["bytes"] for holder in report["holders"]) == report["peak"]["reserved"]
    assert all(map(adds_up, report["holders"]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.script)
def test_the_first_fix_makes_it_fit(
    case: Case, as_they_are: dict[str, dict[str, Any]], mended: dict[str, dict[str, Any]]
) -> None:
    fix = as_they_are[case.script]["fixes"][0]
    # It fails in its first forward pass: what a whole step needs is unknown.
    assert fix["enough"] is (None if case.script == "too_big" else True)
    if case.lever:
        assert fix["lever"] == case.lever
    if can_be_applied(fix):
        assert mended[case.script]["oom"] is None, fix
    else:
        # Advice, which the cause's page has as code that is run, or more than one card.
        assert case.cause in ("growing-cache", "does-not-fit"), fix


def test_a_model_that_does_not_fit_fits_the_card_that_is_named(
    as_they_are: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    card = next(fix["card"] for fix in as_they_are["does_not_fit"]["fixes"] if fix["card"])
    came = drive(tmp_path, [f"{SCRIPTS / 'does_not_fit'}.py"], memory=card)
    assert came["does_not_fit"]["oom"] is None
