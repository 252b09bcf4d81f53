"""`memfit plan`: what it says fits does, one sample more does not, and the step stays the whole batch's."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from runs import completed, hold_to_shapes, invoke, memfit

LOADER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    def forward(self, x):
        return x + self.mlp(self.norm(x))

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 128), nn.Sequential(*(Block(128) for _ in range(6))), nn.Linear(128, 250))
data = TensorDataset(torch.randn(300, 1024, 64), torch.randint(250, (300, 1024)))
loader = DataLoader(data, batch_size=48)
model.to(device)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
loss_fn = nn.CrossEntropyLoss()
for epoch in range(3):
    for inputs, labels in loader:
        loss = loss_fn(model(inputs.to(device)).flatten(0, 1), labels.to(device).flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
"""

# The same, with batches that the script makes itself, something that no lever's precision gets past, and a
# library of its own that takes no optimizer with a fused kernel.
BY_NAME = (
    LOADER.replace("loader = DataLoader(data, batch_size=48)", "batch_size = 48")
    .replace("    for inputs, labels in loader:", "    for _ in range(20):")
    # Wide enough for an optimizer's temporaries to matter.
    .replace("128", "512")
    .replace("nn.Linear(512, 250)", "nn.Linear(512, 1000)")
    .replace(
        "scheduler = ",
        "if optimizer.defaults['fused']:\n    raise RuntimeError('no fused kernel here')\nscheduler = ",
    )
    .replace(
        "torch.manual_seed(0)",
        "def whole_numbers(layer, inputs, output):\n"
        "    if output.dtype == torch.float16: raise TypeError('single precision alone')\n\ntorch.manual_seed(0)",
    )
    .replace(
        "        loss = ",
        "        inputs = torch.randn(batch_size, 256, 64)\n"
        "        labels = torch.randint(1000, (batch_size, 256))\n"
        "        model[0].register_forward_hook(whole_numbers)\n"
        "        loss = ",
    )
)


@functools.cache
def planned(script: str, *options: str) -> tuple[Path, Any]:
    """Return a script and the answer of `memfit plan`; the plan file is next to it."""
    folder = Path(tempfile.mkdtemp(prefix="memfit-plan-"))
    (folder / "train.py").write_text(script)
    run = invoke(
        [
            *("plan", "--gpu", "t4", "--format", "json", *options),
            *("-o", "memfit.plan.toml", "--", sys.executable, "train.py"),
        ],
        cwd=folder,
    )
    if run.stdout:
        hold_to_shapes(run.report)
    return folder, run


def again(folder: Path, memory: int, *, micro_batch: int | None = None) -> Any:
    """The script with its plan, on a GPU with this much memory."""
    plan = folder / "memfit.plan.toml"
    if micro_batch is not None:
        lines = [line for line in plan.read_text().splitlines() if not line.startswith("micro_batch ")]
        plan = folder / "more.plan.toml"
        plan.write_text("\n".join([f"micro_batch = {micro_batch}", *lines]))
    arguments = ["run", "--gpu", "t4", "--memory", f"{memory >> 10}KiB", "--format", "json"]
    return invoke([*arguments, "--plan", str(plan), "--", sys.executable, "train.py"], cwd=folder)


def test_a_plan_fits_when_it_is_run_and_one_sample_more_does_not():
    folder, run = planned(LOADER, "--memory", "1GiB", "--allow", "rounding", "--diff=memfit.patch")
    report = run.report
    assert run.status == 0, run.stderr
    assert report["verdict"] == "fits-with-plan"
    chosen, baseline = report["chosen"], report["baseline"]
    assert baseline["peak"]["device_upper"] > report["budget"] >= chosen["peak"]["device_upper"]
    assert chosen["micro_batch"] * chosen["micro_batches_per_step"] >= 48
    assert chosen["accumulate"] == 1
    fits = again(folder, report["budget"])
    assert fits.status == 0
    assert fits.report["plan"].startswith(f"{folder}/memfit.plan.toml: micro-batch {chosen['micro_batch']}")
    limit = report["limit"]
    if limit is not None and limit["refuted"] is not None:
        assert limit["refuted"] == limit["largest"] + 1
        assert again(folder, report["budget"], micro_batch=limit["refuted"]).status == 1
    assert all(lever["label"] in ("exact", "rounding") for lever in chosen["levers"])
    assert any(rejected["lever"].startswith("autocast") for rejected in report["rejected"])
    times = [each["step_ms_estimate"] for each in report["pareto"]]
    assert times == sorted(times)


# The same on a CPU in a second; the result shows by what was learnt.
SMALL = (
    ("torch.randn(300, 1024, 64)", "torch.randn(30, 2, 64)"),
    ("(300, 1024))", "(30, 2))"),
    ("range(6)", "range(3)"),
)
TELL = "\nprint(sum(p.double().abs().sum().item() for p in model.parameters()))\n"


def test_the_patch_applies_and_trains_the_same():
    folder, run = planned(LOADER, "--memory", "1GiB", "--allow", "rounding", "--diff=memfit.patch")
    change = run.report["patch"]
    assert change["proof"]["verdict"] == "fits", (change, run.stderr)
    assert change["proof"]["peak"]["device_upper"] <= run.report["budget"]
    numbers = change["numbers"]
    assert numbers["equal"] is True, numbers
    assert (numbers["steps"], numbers["batch"], numbers["part"]) == (4, 5, 2)
    assert "micro-batch" in numbers["levers"]
    assert numbers["difference"] < 1e-3
    chosen = {lever["name"] for lever in run.report["chosen"]["levers"]}
    assert {*change["levers"], *(left["lever"] for left in change["left"])} == chosen
    subprocess.run(["git", "apply", "--check", "memfit.patch"], cwd=folder, check=True)
    original = (folder / "train.py").read_text()
    subprocess.run(["git", "apply", "memfit.patch"], cwd=folder, check=True)
    changed = (folder / "train.py").read_text()
    assert "memfit" not in changed

    def learnt(text: str) -> float:
        for old, new in SMALL:
            text = text.replace(old, new)
        text = text.replace("range(0, 6)", "range(0, 3)")
        done = subprocess.run(
            [sys.executable, "-c", text + TELL], capture_output=True, text=True, check=True, timeout=120
        )
        return float(done.stdout)

    assert abs(learnt(changed) - learnt(original)) < 1e-3 * learnt(original)


RAGGED = (
    LOADER.replace(
        "loader = DataLoader(data, batch_size=48)",
        "loader = DataLoader([i + 1 for i in range(300)], batch_size=8, collate_fn=lambda lengths: (\n"
        "    torch.randn(8, max(lengths), 64), torch.randint(250, (8, max(lengths)))))",
    )
    .replace("DataLoader([i + 1 for i in range(300)]", "DataLoader([torch.zeros(i + 1) for i in range(300)]")
    .replace("max(lengths)", "max(len(one) for one in lengths)")
)


def test_trials_use_the_largest_input_of_the_data_set():
    _, run = planned(RAGGED, "--memory", "8GiB")
    assert any("differ in size" in note for note in run.report["notes"]), run.report["notes"]
    # The logits of eight samples of the longest, and their gradient; the first batches have eight of them at
    # most.
    assert run.report["baseline"]["peak"]["allocated"] > 2 * 8 * 300 * 250 * 4


def test_a_script_that_generates_batches_is_divided_through_its_batch_size_variables():
    folder, run = planned(BY_NAME, "--memory", "1GiB", "--diff=memfit.patch")
    report = run.report
    # The printed change was run: levers with which the script fails are left out, with a reason.
    change = report["patch"]
    assert change["proof"]["verdict"] == "fits", (change, run.stderr)
    left = {each["lever"]: each["why"] for each in change["left"]}
    assert "RuntimeError: no fused kernel here" in left["fused-optimizer"], left
    assert change["levers"]
    assert "fused=True" not in (folder / "memfit.patch").read_text()
    # A lever's own error is reported with its type, message and the script's line.
    why = {rejected["lever"]: rejected["why"] for rejected in report["rejected"]}
    line = 1 + BY_NAME[: BY_NAME.index("    if output.dtype")].count("\n")
    told = f"TypeError: single precision alone (train.py, line {line})"
    assert why["autocast-fp16"] == f"the script fails with it: {told}", report["rejected"]
    assert report["verdict"] == "fits-with-plan", run.stderr
    levers = {lever["name"]: lever["value"] for lever in report["chosen"]["levers"]}
    if "micro-batch" in levers:
        assert 48 % levers["micro-batch"] == 0
        assert 'batch_names = ["batch_size"]' in (folder / "memfit.plan.toml").read_text()
    # Levers for loaders have no effect here, which is reported.
    with (folder / "memfit.plan.toml").open("a") as file:
        file.write('[[lever]]\nname = "resize-before-upload"\nvalue = 64\nlabel = "changes-training"\n')
    run = again(folder, report["budget"])
    assert run.status == 0
    said = "the plan's `resize-before-upload` was not applied: no batch came from a PyTorch DataLoader"
    assert said in run.report["fidelity"]["notes"], run.report["fidelity"]
    # A plan that does not name what the batch is called divides nothing, which is reported, too.
    (folder / "memfit.plan.toml").write_text("micro_batch = 2\n")
    run = again(folder, report["budget"])
    said = "the plan's `micro-batch` was not applied: no batch came from a PyTorch DataLoader"
    assert said in run.report["fidelity"]["notes"], run.report["fidelity"]


def test_a_loop_that_ends_within_a_divided_step_gives_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BY_NAME.replace("range(20)", "range(5)"))
    plan = 'micro_batch = 1\n[made_for]\nbatch = 48\nbatch_names = ["batch_size"]\n'
    (tmp_path / "memfit.plan.toml").write_text(plan)
    # Each step takes 48 turns of the loop, which has fewer.
    arguments = ["run", "--gpu", "t4", "--steps", "0", "--format", "json", "--plan", "memfit.plan.toml"]
    run = invoke([*arguments, "--", sys.executable, "train.py"], cwd=tmp_path)
    assert run.status == 2
    assert (run.report["verdict"], run.report["problem"]["kind"]) == ("unknown", "no-step")
    assert "ran too few of them" in run.report["problem"]["message"]


WIDE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64000)).to(device)
data = TensorDataset(torch.randn(3000, 64), torch.randint(64000, (3000,)))
loader = DataLoader(data, batch_size=1024)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
loss_fn = nn.CrossEntropyLoss()
for inputs, labels in loader:
    loss = loss_fn(model(inputs.to(device)), labels.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_patch_names_levers_that_it_leaves_out():
    # Only optimizer state on the host fits, which plain PyTorch cannot do in a few lines.
    _, run = planned(WIDE, "--memory", "1450MiB", "--allow", "rounding", "--diff=memfit.patch")
    assert {lever["name"] for lever in run.report["chosen"]["levers"]} == {"host-optimizer-state"}
    assert [left["lever"] for left in run.report["patch"]["left"]] == ["host-optimizer-state"]
    assert any(
        "no plan that fits can be written completely as a change of the script" in note
        for note in run.report["notes"]
    )
    # A log gets progress lines.
    assert re.search(r"^(run \d+: |step \d of 3|torch )", run.stderr, flags=re.MULTILINE), run.stderr


def test_a_trainer_divides_its_batches_by_its_own_settings():
    with tempfile.TemporaryDirectory(prefix="memfit-plan-") as folder:
        plan = Path(folder) / "plan.toml"
        plan.write_text("micro_batch = 4\nmicro_batches_per_step = 4\n[made_for]\nbatch = 16\n")
        shape = "--layers 2 --hidden 128 --vocabulary 2000"
        divided = completed(f"trainer.py {shape}", options=f"--steps 2 --plan {plan}").report
    whole = completed(f"trainer.py {shape}", options="--steps 2").report
    assert any("gradient_accumulation_steps=4" in note for note in divided["fidelity"]["notes"])
    kept = "activations"
    assert divided["at_peak"]["by_category"][kept] < 0.6 * whole["at_peak"]["by_category"][kept], divided[
        "at_peak"
    ]


def test_a_plan_replaces_replicas_by_shards():
    with tempfile.TemporaryDirectory(prefix="memfit-plan-") as folder:
        plan = Path(folder) / "plan.toml"
        plan.write_text('[[lever]]\nname = "shard"\nvalue = true\nlabel = "rounding"\n')
        torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2 distributed.py --width 2048"
        spread = completed(torchrun, gpu="t4:2", options=f"--plan {plan}").report
    # Eight layers of 16 MiB, gradients, and two moments: a replica has all of them, and a shard half.
    replica = 4 * 8 * 2048 * 2048 * 4
    assert 0.5 * replica < spread["peak"]["allocated"] < 0.65 * replica
    assert all(rank["device"] <= spread["peak"]["device"] for rank in spread["ranks"])


COMPILED_IN_PLACE = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kinds = []
for _ in range(4):
    made = model(torch.randn(8, 64, device="cuda"))
    kinds.append(str(made.dtype))
    made.float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("kinds", *sorted(set(kinds)), torch._dynamo.utils.counters["stats"]["unique_graphs"], "graph")
"""


def test_a_model_compiled_in_place_runs_under_the_plans_autocast():
    with tempfile.TemporaryDirectory(prefix="memfit-plan-") as folder:
        (Path(folder) / "train.py").write_text(COMPILED_IN_PLACE)
        (Path(folder) / "plan.toml").write_text(
            '[[lever]]\nname = "autocast-bf16"\nvalue = true\nlabel = "precision"\n'
            '[[lever]]\nname = "compile"\nvalue = true\nlabel = "rounding"\n'
        )
        arguments = ["run", "--gpu", "l4", "--format", "json", "--show-output", "--steps", "0"]
        done = invoke([*arguments, "--plan", "plan.toml", "--", sys.executable, "train.py"], cwd=Path(folder))
    assert done.status == 0, done.stderr
    # It is compiled once, completely, from the first call on, and always with autocast.
    assert "kinds torch.bfloat16 1 graph\n" in done.stderr
    assert done.report["at_peak"]["phase"] != "unknown"


def test_the_search_runs_one_process_and_confirms_the_plan_with_all():
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2 distributed.py"
    shape = "--width 2048 --batch-size 4096"
    run = invoke(
        [
            *("plan", "--gpu", "t4:2", "--memory", "1700MiB", "--format", "json"),
            *("--", sys.executable, *torchrun.split(), *shape.split()),
        ]
    )
    report = run.report
    assert report["verdict"] == "fits-with-plan", (report, run.stderr)
    assert any("then confirmed with all of them" in note for note in report["notes"]), report["notes"]
    # A replica: eight layers of 16 MiB and their two moments.
    assert report["baseline"]["peak"]["allocated"] > 3 * 8 * 2048 * 2048 * 4
    assert report["chosen"]["peak"]["device_upper"] <= report["budget"]
    assert report["chosen"]["fits"]


# The script records its queries before it uses the GPU, and its later imports.
TURNS = """
import sys
import torch
from torch import nn

def write_fact(name, text):
    with open(name, "a") as file:
        file.write(f"{text}\\n")

write_fact("kind.txt", torch.cuda.get_device_capability())

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / 4).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).flatten(2))

batch_size = 16
makes = nn.Sequential(*(Block(128) for _ in range(3)))
judges = nn.Sequential(Block(128), nn.Linear(128, 1))
makes.cuda(), judges.cuda()
write_fact("late.txt", "colorsys" in sys.modules)
import colorsys
of_maker = torch.optim.Adam(makes.parameters())
of_judge = torch.optim.Adam(judges.parameters())
for _ in range(5):
    # A module too, and none that trains.
    noise = nn.Identity()(torch.randn(batch_size, 1024, 128, device="cuda"))
    made = makes(noise)
    of_judge.zero_grad()
    (judges(made.detach()).mean() - judges(noise).mean()).backward()
    of_judge.step()
    of_maker.zero_grad()
    judges(made).mean().neg().backward()
    of_maker.step()
"""


def test_alternating_optimizers_are_not_divided_and_handwritten_attention_becomes_sdpa():
    folder, run = planned(TURNS, "--memory", "3584MiB", "--allow", "rounding")
    report = run.report
    assert report["verdict"] == "fits-with-plan", (report, run.stderr)
    chosen = {lever["name"] for lever in report["chosen"]["levers"]}
    why = {rejected["lever"]: rejected["why"] for rejected in report["rejected"]}
    shown = {lever["name"] for each in report["pareto"] for lever in each["levers"]}
    assert "sdpa" in shown | chosen | {lever for lever, told in why.items() if "iB" in told}, report
    assert "micro-batch" not in chosen
    assert not chosen & set(why)
    # A handwritten plan that divides such batches is reported as not exact.
    (folder / "memfit.plan.toml").write_text(
        'micro_batch = 4\nmicro_batches_per_step = 4\n[made_for]\nbatch = 16\nbatch_names = ["batch_size"]\n'
    )
    divided = again(folder, 14 << 30)
    said = [note for note in divided.report["fidelity"]["notes"] if "take turns" in note]
    assert said, divided.report["fidelity"]
    # The GPU's kind is known before it is used, so all tries start after that; imports of the first try exist
    # in the next ones.
    assert (folder / "kind.txt").read_text() == "(7, 5)\n" * 2
    late = (folder / "late.txt").read_text().split()
    assert late[0] == "False"
    assert late[-1] == "False"
    assert set(late[1:-1]) == {"True"}


def test_an_interrupt_prints_the_best_plan_so_far():
    folder = Path(tempfile.mkdtemp(prefix="memfit-plan-"))
    (folder / "train.py").write_text(LOADER)
    ours, theirs = os.openpty()
    command = ["plan", "--gpu", "t4", "--memory", "1GiB", "--allow", "rounding", "--format", "json"]
    with subprocess.Popen(
        [memfit(), *command, "--", sys.executable, "train.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown, asked = "", False
        while True:
            try:
                part = os.read(ours, 4096).decode(errors="replace")
            except OSError:
                break
            if not part:
                break
            shown += part
            # Two ways to divide it were run, and a third one is: the smaller batch of the first is known to
            # be enough.
            if not asked and len(set(re.findall(r"run (\d+): micro-batch", shown))) >= 3:
                process.send_signal(signal.SIGINT)
                asked = True
        output, _ = process.communicate(timeout=120)
    os.close(ours)
    assert asked, shown
    report = json.loads(output)
    assert report["interrupted"], report
    assert report["verdict"] == "fits-with-plan"
    assert report["chosen"]["micro_batch"] < 48
    assert report["chosen"]["peak"]["device_upper"] <= report["budget"]
    assert process.returncode == 0
