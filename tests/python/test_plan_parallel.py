"""`memfit plan --gpu NAME:N` on one-process scripts: the plan, its ranks, and the command that starts it."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from runs import MIB, ROOT, hold_to_shapes, memfit

SCRIPT = str(ROOT / "workloads" / "feed_forward.py")
SMALL = ("--width", "512", "--layers", "4", "--batch-size", "64")
PARAMETERS = 4 * (4 * (2 * 512 * 2048 + 2048 + 3 * 512) + 512 * 10 + 10)


@functools.cache
def planned(gpu: str, *arguments: str, options: tuple[str, ...] = ()) -> tuple[int, dict[str, Any], str]:
    """The exit status, the answer, and the plan file's text."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.toml"
        command = [memfit(), "plan", "--gpu", gpu, "--format", "json", "-o", str(file), *options]
        command += ["--", sys.executable, SCRIPT, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        return (
            done.returncode,
            hold_to_shapes(json.loads(done.stdout)),
            file.read_text() if file.exists() else "",
        )


def test_a_model_that_does_not_fit_on_one_gpu_is_sharded():
    # Parameters, gradients and AdamW's state take four times the parameters; a fifth of that is left free.
    room = f"{(PARAMETERS * 4 + 900 * MIB) // MIB}MiB"
    status, answer, _ = planned("t4:4", *SMALL, options=("--memory", room))
    assert status == 0
    chosen = answer["chosen"]
    assert chosen["parallel"]["replicate"] * chosen["parallel"]["shard"] == 4
    assert chosen["parallel_label"] == "rounding"
    assert chosen["micro_batch"] == 16
    assert [rank["rank"] for rank in chosen["ranks"]] == [0, 3]
    assert all(rank["peak"]["device_upper"] <= answer["budget"] for rank in chosen["ranks"])
    assert chosen["bound_by"] in ("compute", "memory", "communication")
    assert answer["baseline"]["parallel"] is None


def test_the_plan_file_says_how_the_script_is_launched(tmp_path):
    _, answer, text = planned(
        "t4:4", *SMALL, options=("--memory", f"{(PARAMETERS * 4 + 900 * MIB) // MIB}MiB")
    )
    table = text.split("[parallel]")[1].split("[made_for]")[0]
    assert f"shard = {answer['chosen']['parallel']['shard']}" in table
    plan = tmp_path / "plan.toml"
    plan.write_text(text)
    command = [memfit(), "launch", str(plan), "--", "python", "train.py", "--lr", "1e-3"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown == "torchrun --standalone --nproc-per-node 4 --virtual-local-rank train.py --lr 1e-3\n"
    # `run --plan` runs the script as the first rank.
    run = [memfit(), "run", "--gpu", "t4", "--plan", str(plan), "--format", "json", "--"]
    done = subprocess.run([*run, sys.executable, SCRIPT, *SMALL], capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["verdict"] == "fits"
    by_category = report["at_peak"]["by_category"]
    shard = PARAMETERS / answer["chosen"]["parallel"]["shard"]
    assert by_category["optimizer"] == pytest.approx(2 * shard, rel=0.05)


def test_batch_normalisation_is_not_divided_unless_that_is_allowed():
    _, answer, _ = planned("t4:2", *SMALL, "--norm", "batch")
    parallel = answer["chosen"]["parallel"]
    assert parallel is None or parallel["replicate"] * parallel["shard"] == 1
    why = next(each["why"] for each in answer["rejected"] if each["lever"] == "parallel")
    assert "batch normalisation" in why


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--link", "token-ring"], "no link is called"),
        (["--link", "nvlink"], "no NVLink"),
        (["--link", "ib-400"], "there is one"),
    ],
)
def test_links_that_do_not_suit_are_refused(options, says):
    command = [memfit(), "plan", "--gpu", "t4:2", *options, "--", sys.executable, SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert says in done.stderr


def test_launch_runs_the_command_with_its_exit_status(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text("[parallel]\nshard = 2\n")
    script = tmp_path / "exits.py"
    script.write_text("import os, sys\nsys.exit(int(os.environ['WORLD_SIZE']) + 1)\n")
    command = [memfit(), "launch", str(plan), "--run", "--", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # torchrun's own status for failed processes.
    assert done.returncode == 1
    assert "exitcode  : 3" in done.stderr
    script.write_text("print('trained')\n")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("trained") == 2


def test_a_plan_that_cannot_be_launched_is_no_answer(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text("[parallel]\npipeline = 4\n")
    for command in (["python", "train.py"], ["torchrun", "train.py"]):
        done = subprocess.run(
            [memfit(), "launch", str(plan), "--", *command], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done
        assert "hint:" in done.stderr
