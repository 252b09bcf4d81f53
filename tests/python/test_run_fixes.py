"""The output of `memfit run` after an out-of-memory error: the cause, the remedies, and their proofs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from runs import ROOT, Run, invoke, memfit

BROKEN = ROOT / "examples" / "broken"
PROBE = ROOT / "python" / "memfit" / "_probe"
CARD = ["run", "--gpu", "t4", "--memory", "3GiB", "--format", "json"]


def broken(script: str, *options: str, env: dict[str, str] | None = None) -> Run:
    return invoke([*CARD, *options, "--", sys.executable, f"{script}.py"], cwd=BROKEN, env=env)


@pytest.fixture(scope="module")
def too_big(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    recording = tmp_path_factory.mktemp("fixes") / "run.memfit"
    return broken("too_big", "-o", str(recording)), recording


def test_the_first_fix_is_proven_by_a_second_run(too_big: tuple[Run, Path]) -> None:
    report = too_big[0].report
    assert (too_big[0].status, report["verdict"], report["cause"]) == (1, "oom", "too-big")
    first = report["fixes"][0]
    assert (first["lever"], first["evidence"], first["enough"]) == ("checkpointing", "run", True)
    proof = first["proof"]
    assert (proof["verdict"], proof["steps"]) == ("fits", 3)
    assert proof["peak"]["device_upper"] < report["device"]["capacity"]
    # The figures are those of the unchanged script, which stays unchanged.
    assert report["peak"]["reserved"] > proof["peak"]["reserved"]
    assert "checkpoint" not in (BROKEN / "too_big.py").read_text()
    assert "running again with checkpointing" in too_big[0].stderr
    assert all(fix["evidence"] != "run" for fix in report["fixes"][1:])


def test_explain_names_the_same_cause_and_remedies_for_the_recording(too_big: tuple[Run, Path]) -> None:
    report = too_big[0].report
    done = subprocess.run(
        [memfit(), "explain", str(too_big[1]), "--format", "json"], capture_output=True, text=True, check=True
    )
    explained: dict[str, Any] = json.loads(done.stdout)
    assert explained["cause"] == report["cause"]
    # The recording keeps what the confirming run has shown.
    assert explained["fixes"][0] == report["fixes"][0]

    def figures(fix: dict[str, Any]) -> tuple[Any, ...]:
        return fix["lever"], fix["saves"], fix["label"], fix["how"], json.dumps(fix["edit"])

    assert {figures(fix) for fix in explained["fixes"]} >= {figures(fix) for fix in report["fixes"]}
    assert explained["fixes"][0]["lever"] == report["fixes"][0]["lever"]


def test_a_setting_is_proven_through_the_environment() -> None:
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:2"}
    report = broken("setting_that_hurts", env=settings).report
    assert report["cause"] == "setting-that-hurts"
    first = report["fixes"][0]
    assert (first["lever"], first["evidence"], first["enough"]) == ("drop-setting", "run", True), first


def test_no_prove_runs_nothing_again() -> None:
    answer = broken("too_big", "--no-prove", "--steps", "1")
    report = answer.report
    assert report["cause"] == "too-big"
    assert report["fixes"]
    assert all(fix["proof"] is None and fix["evidence"] != "run" for fix in report["fixes"])
    assert "running again" not in answer.stderr


def test_the_remedy_for_workers_on_the_gpu_is_confirmed_by_a_run() -> None:
    """The first remedy is a change of the source, and the script fits with it."""
    report = broken("outside", "--steps", "0").report
    assert (report["verdict"], report["cause"]) == ("oom", "outside")
    first = report["fixes"][0]
    assert (first["lever"], first["evidence"], first["enough"]) == ("cpu-only-workers", "run", True), first
    change = "+    loader = DataLoader(Rows(), batch_size=32, num_workers=0)"
    assert change in first["edit"]["diff"].splitlines()
    assert first["proof"]["verdict"] == "fits"


def test_a_process_that_is_spoken_with_is_not_waited_for() -> None:
    """To wait for it may be to wait for ever: the remedy is advice, with the reason."""
    report = broken("other_processes", "--steps", "0").report
    assert (report["verdict"], report["cause"]) == ("oom", "other-processes")
    [fix] = [fix for fix in report["fixes"] if fix["lever"] == "end-other-process"]
    assert (fix["enough"], fix["edit"], fix["evidence"]) == (True, None, "modelled"), fix
    assert "the script may communicate with `helper` while it runs" in fix["how"]


MAIN = '''"""A script."""

from __future__ import annotations

import multiprocessing
import sys

import helper

HERE = 1


def work(queue):
    queue.put((HERE, helper.THERE))


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print(HERE, helper.THERE, *queue.get(), __name__, sys.argv[1:], sys.path[0] == sys.argv[2])
    process.join()
'''


@pytest.mark.parametrize("start", [["main.py"], ["-m", "main"], ["./main.py"]], ids=" ".join)
def test_the_edited_file_runs_in_the_confirming_run(start: list[str], tmp_path: Path) -> None:
    """In the script, in what it imports, and in processes that it starts; the files stay as they are."""
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "helper.py").write_text("THERE = 1\n")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    changed = {"main.py": MAIN.replace("HERE = 1", "HERE = 2"), "helper.py": "THERE = 3\n"}
    (run_dir / "edits.json").write_text(
        json.dumps({str(tmp_path / name): text for name, text in changed.items()})
    )
    arm = f"import sys; sys.path.insert(0, {str(PROBE)!r})\nfrom memfit_probe import edits\nedits.arm({str(run_dir / 'edits.json')!r})\nsys.path.pop(0)\n"
    (run_dir / "sitecustomize.py").write_text(arm)
    done = subprocess.run(
        [sys.executable, *start, "one", str(tmp_path)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(run_dir), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    same = start[0] != "-m"
    expected = f"2 3 2 3 __main__ {['one', str(tmp_path)]} "
    assert done.stdout.startswith(expected), done.stderr
    assert not same or done.stdout.strip().endswith("True")
    assert (tmp_path / "main.py").read_text() == MAIN


def test_a_run_that_completes_confirms_a_remedy_under_the_same_assumptions(tmp_path: Path) -> None:
    """The remedy copies results to the host; no further runs with other assumed values follow."""
    script = tmp_path / "keeps.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "kept = []\n"
        "for step in range(40):\n"
        "    out = model(torch.randn(16384, 1024, device='cuda'))\n"
        "    out.mean().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "    kept.append(out)\n"
    )
    answer = invoke([*CARD, "--steps", "0", "--", sys.executable, str(script)])
    first = answer.report["fixes"][0]
    assert (first["lever"], first["evidence"], first["enough"]) == ("keep-on-cpu", "run", True), first
    assert (first["proof"]["verdict"], first["proof"]["steps"]) == ("fits", 40)
    assert answer.stderr.count("running again with keep-on-cpu") == 1, answer.stderr
    assert "running again with a GPU" not in answer.stderr


def test_a_remedy_that_a_run_disproved_is_not_called_enough(tmp_path: Path) -> None:
    """Also if a size was at its upper bound: with the lower bound, memory runs out as well."""
    script = tmp_path / "hopeless.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(40)]).cuda()\n"
        "loss_fn = torch.nn.MSELoss()\n"
        "for step in range(2):\n"
        "    x = torch.randn(32768, 1024, device='cuda')\n"
        "    rows = x[x > 0]\n"
        "    out = model(x)\n"
        "    loss = loss_fn(out, x)\n"
        "    loss.backward()\n"
        "    more = torch.empty(1 << 40, dtype=torch.uint8, device='cuda')\n"
    )
    answer = invoke([*CARD, "--", sys.executable, str(script)])
    report = answer.report
    assert (report["verdict"], report["cause"]) == ("oom", "too-big"), answer.stderr
    tried = [fix for fix in report["fixes"] if fix["proof"]]
    assert "activation-offload" in {fix["lever"] for fix in tried}, report["fixes"]
    assert all((fix["proof"]["verdict"], fix["enough"]) == ("oom", False) for fix in tried), tried
