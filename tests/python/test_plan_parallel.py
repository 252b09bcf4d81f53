"""`memfit plan --gpu NAME:N` on single-process scripts: the plan, its ranks and the launch command."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from runs import MIB, ROOT, hold_to_shapes, invoke, memfit
from tiers import rarely

SCRIPT = str(ROOT / "workloads" / "feed_forward.py")
SMALL = ("--width", "512", "--layers", "4", "--batch-size", "64")
PARAMETERS = 4 * (4 * (2 * 512 * 2048 + 2048 + 3 * 512) + 512 * 10 + 10)


SHOWS = """
    import json, os
    whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters()]
    with open("trained-" + os.environ.get("RANK", "alone"), "w") as file:
        json.dump(torch.cat([each.detach().flatten() for each in whole]).tolist(), file)
"""
MEETS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(dist.get_rank() + 1)
dist.all_reduce(total)
print(f"machine {os.environ['GROUP_RANK']}: {int(total)}")
dist.destroy_process_group()
"""


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


# Parameters, gradients and AdamW's state take four times the parameters; a fifth of that is left free.
ROOM = f"{(PARAMETERS * 4 + 900 * MIB) // MIB}MiB"
FOUR = functools.partial(planned, "t4:4", *SMALL, options=("--memory", ROOM, "--diff"))


def test_a_model_that_does_not_fit_on_one_gpu_is_sharded():
    status, answer, _ = FOUR()
    assert status == 0
    chosen = answer["chosen"]
    assert chosen["parallel"]["replicate"] * chosen["parallel"]["shard"] == 4
    assert chosen["parallel_label"] == "rounding"
    assert chosen["micro_batch"] == 16
    assert [rank["rank"] for rank in chosen["ranks"]] == [0, 3]
    assert all(rank["peak"]["device_upper"] <= answer["budget"] for rank in chosen["ranks"])
    assert chosen["bound_by"] in ("compute", "memory", "communication")
    assert answer["baseline"]["parallel"] is None
    # The search knows what a rank trains.
    for rejected in answer["rejected"]:
        assert "DataLoader" not in rejected["why"], rejected
        assert "without a backward pass" not in rejected["why"], rejected
    assert not [note for note in answer["notes"] if "probe failed" in note], answer["notes"]


def test_the_plan_file_says_how_the_script_is_launched(tmp_path):
    _, answer, text = FOUR()
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


def test_the_changed_script_takes_what_the_plan_takes_and_trains_as_one_process(tmp_path):
    _, answer, _ = FOUR()
    patch = answer["patch"]
    assert "shard" in patch["levers"], patch["left"]
    assert patch["proof"]["verdict"] == "fits"
    worst = max(rank["peak"]["device"] for rank in answer["chosen"]["ranks"])
    assert patch["proof"]["peak"]["device"] == pytest.approx(worst, rel=0.02)
    (tmp_path / "workloads").mkdir()
    script = tmp_path / "workloads" / "feed_forward.py"
    script.write_text(Path(SCRIPT).read_text())
    (tmp_path / "whole.py").write_text(reproducible(script.read_text()))
    # Without the path that the test's folder has, as `git apply` takes it.
    diff = patch["diff"].replace(patch["file"], "workloads/feed_forward.py")
    subprocess.run(["patch", "-p1"], input=diff, text=True, check=True, cwd=tmp_path)
    # Two of the four ranks are enough to see that each trains on its part.
    changed = reproducible(script.read_text()).replace("(4,), (", "(2,), (")
    assert "(2,), (" in changed
    (tmp_path / "parts.py").write_text(changed)
    small = ["--width", "8", "--layers", "4", "--batch-size", "6"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    run = functools.partial(
        subprocess.run, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run([sys.executable, "whole.py", *small])
    run([sys.executable, *torchrun, "parts.py", *small])
    alone, *ranks = (json.loads((tmp_path / f"trained-{rank}").read_text()) for rank in ("alone", 0, 1))
    for rank in ranks:
        assert rank == pytest.approx(alone, rel=0, abs=1e-12)


def reproducible(text: str) -> str:
    """The script with a seed, in float64 and in order, which writes its parameters at the end."""
    for old, new in (
        (
            "def main():\n",
            "def main():\n    torch.manual_seed(0)\n    torch.set_default_dtype(torch.float64)\n",
        ),
        ("shuffle=True", "shuffle=False"),
        ('    print("trained")\n', SHOWS),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def test_two_machines_are_planned_launched_and_find_each_other(tmp_path):
    options = ("--memory", ROOM, "--nodes", "2", "--link", "ethernet-25")
    status, answer, text = planned("t4:1", *SMALL, options=options)
    assert status == 0
    chosen = answer["chosen"]
    assert chosen["parallel"]["replicate"] * chosen["parallel"]["shard"] == 2
    assert [rank["rank"] for rank in chosen["ranks"]] == [0, 1]
    assert answer["nodes"] == 2
    plan = tmp_path / "plan.toml"
    plan.write_text(text)
    command = [memfit(), "launch", str(plan)]
    shown = subprocess.run([*command, "--", "python", "t.py"], capture_output=True, text=True, check=True)
    assert "--nnodes 2" in shown.stdout
    assert "--nproc-per-node 1" in shown.stdout
    # Both machines are this one.
    script = tmp_path / "meets.py"
    script.write_text(MEETS)
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    machines = [
        subprocess.Popen(
            [*command, "--run", "--", sys.executable, str(script)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    ended = [machine.communicate(timeout=120) for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], ended
    assert sorted(out.strip() for out, _ in ended) == ["machine 0: 3", "machine 1: 3"]


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
        (["--link", "ib-400"], "there is only one"),
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
    plan.write_text("[parallel]\ncontext = 4\n")
    for command in (["python", "train.py"], ["torchrun", "train.py"]):
        done = subprocess.run(
            [memfit(), "launch", str(plan), "--", *command], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done
        assert "hint:" in done.stderr


def test_a_pipeline_is_not_applied_to_a_script_without_step(tmp_path):
    (tmp_path / "plan.toml").write_text("[parallel]\npipeline = 2\n")
    (tmp_path / "train.py").write_text(
        """
import torch
from torch import nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.randn(16, 64, device="cuda")).mean().backward()
    optimizer.step()
"""
    )
    command = [memfit(), "run", "--gpu", "t4", "--no-prove", "--plan", "plan.toml"]
    command += ["--", sys.executable, "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert said.startswith("FITS with a part of the plan, for the 3 steps"), said
    assert "the plan's `shard` was not applied: a pipeline needs a script that calls `memfit.Step`" in said


BLOCKS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
    def forward(self, x):
        return x + self.inner(x)

def build():
    return nn.Sequential(*(Block() for _ in range(4)), nn.Linear(256, 10))

data = torch.utils.data.TensorDataset(torch.randn(256, 256), torch.randint(0, 10, (256,)))
loader = torch.utils.data.DataLoader(data, batch_size=32)
"""
OF_LIBRARIES = {
    "accelerate": """
from accelerate import Accelerator

accelerator = Accelerator()
model = build()
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    accelerator.backward(nn.functional.cross_entropy(model(x), y))
    optimizer.step()
    optimizer.zero_grad()
""",
    "lightning": """
import lightning

class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = build()
    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.model(x), y)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

trainer = lightning.Trainer(max_steps=4, logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Lit(), loader)
""",
    "transformers": """
from transformers import Trainer, TrainingArguments

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = build()
    def forward(self, x, labels):
        return {"loss": nn.functional.cross_entropy(self.model(x), labels)}

rows = [{"x": x, "labels": y} for x, y in data]
arguments = TrainingArguments("out", per_device_train_batch_size=32, max_steps=4, save_strategy="no", report_to=[])
Trainer(Model(), arguments, train_dataset=rows).train()
""",
}


@pytest.mark.parametrize("library", ["accelerate", rarely("lightning"), rarely("transformers")])
def test_a_library_distributes_a_script_with_its_own_settings(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    (tmp_path / "train.py").write_text(BLOCKS + OF_LIBRARIES[library])
    script = ["--", sys.executable, "train.py"]
    options = ["--gpu", "t4:2", "--format", "json"]
    done = invoke(["plan", *options, "-o", "plan.toml", "--diff", *script], cwd=tmp_path, timeout=500)
    assert done.status == 0, done.stdout + done.stderr
    answer = hold_to_shapes(done.report)
    chosen = answer["chosen"]
    assert (answer["verdict"], chosen["library"]) == ("fits-with-plan", library)
    assert chosen["parallel"]["replicate"] * chosen["parallel"]["shard"] == 2
    # Each GPU has half of the batch, whatever the library's own batch size means.
    assert chosen["micro_batch"] == 16
    assert [rank["rank"] for rank in chosen["ranks"]] == [0, 1]
    file = (tmp_path / "plan.toml").read_text()
    assert f'framework = "{library}"' in file
    assert 'block_classes = ["Block"]' in file
    if library == "transformers":
        assert answer["patch"]["proof"]["verdict"] == "fits", answer["patch"]
        assert "+arguments = TrainingArguments" in answer["patch"]["diff"]
        assert "per_device_train_batch_size=16" in answer["patch"]["diff"]
    else:
        assert [left["lever"] for left in answer["patch"]["left"]] == ["shard"]
    # Sharding, which a small model does not need, is applied by the library too.
    sharded = file.replace("replicate = 2", "replicate = 1").replace("shard = 1", "shard = 2")
    (tmp_path / "sharded.toml").write_text(sharded)
    done = invoke(["run", *options, "--plan", "sharded.toml", "--no-prove", *script], cwd=tmp_path)
    report = hold_to_shapes(done.report)
    assert report["verdict"] == "fits", report["problem"]
    parameters = 4 * (4 * (2 * 256 * 1024 + 1024 + 256) + 2570)
    held = report["at_peak"]["by_category"]
    assert held["optimizer"] < 1.1 * parameters, "half of two states"
