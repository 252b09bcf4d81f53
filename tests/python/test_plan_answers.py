"""`memfit plan` on a script of memfit's own step, and its answers where there is nothing to plan."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from runs import invoke
from test_plan import LOADER, planned
from tiers import exhaustive

# Pictures of two heights, which a batch pads to its tallest.
STEPPED = """
import torch
from torch import nn
from torch.utils.data import DataLoader
import memfit

def collate(pictures):
    tallest = max(picture.shape[1] for picture in pictures)
    batch = torch.zeros(len(pictures), 3, tallest, 64)
    for index, picture in enumerate(pictures):
        batch[index, :, : picture.shape[1]] = picture
    return batch

def loss(model, pictures):
    with open("shapes.txt", "a") as file:
        file.write(" ".join(map(str, pictures.shape)) + "\\n")
    return model(pictures.cuda()).square().mean()

data = [torch.rand(3, 64 + 64 * (index % 2), 64) for index in range(64)]
model = nn.Conv2d(3, 8, 3, padding=1).cuda()
step = memfit.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss)
for pictures in DataLoader(data, batch_size=8, collate_fn=collate):
    step(pictures)
"""


def test_a_script_of_memfits_own_step_takes_pieces_pictures_and_buckets_from_a_plan():
    with tempfile.TemporaryDirectory(prefix="memfit-plan-") as place:
        folder = Path(place)
        (folder / "train.py").write_text(STEPPED)
        (folder / "memfit.plan.toml").write_text(
            "micro_batch = 4\n"
            '[[lever]]\nname = "length-buckets"\nlabel = "changes-training"\n'
            '[[lever]]\nname = "resize-before-upload"\nvalue = 32\nlabel = "changes-training"\n'
        )
        plan = ["--steps", "0", "--plan", "memfit.plan.toml"]
        run = invoke(
            ["run", "--gpu", "t4", "--format", "json", *plan, "--", sys.executable, "train.py"], cwd=folder
        )
        assert run.status == 0, run.stderr
        assert run.report["steps"] == 8
        notes = run.report["fidelity"]["notes"]
        assert not [note for note in notes if "was not applied" in note], notes
        lines = (folder / "shapes.txt").read_text().splitlines()
    # Half as wide and as high as they came, in pieces of four at most; those of one height go together, where
    # by chance nearly every batch has a tall one.
    tall = {"32": 0, "64": 0}
    for line in lines:
        samples, _, height, width = line.split()
        assert (int(samples) <= 4, width) == (True, "32"), lines
        tall[height] += int(samples)
    assert tall == {"32": 32, "64": 32}, lines


def test_a_script_that_fits_is_left_alone():
    folder, run = planned(LOADER, "--memory", "8GiB")
    assert run.status == 0, run.stderr
    assert run.report["verdict"] == "fits-as-is"
    assert run.report["chosen"]["levers"] == []
    assert not (folder / "memfit.plan.toml").exists(), "it needs no plan"
    assert run.report["coverage"]["steps"] == 3


def test_a_script_that_cannot_fit_is_reported_with_the_smallest_gpu():
    _, run = planned(LOADER, "--memory", "400MiB", "--allow", "exact")
    assert run.status == 1, run.stderr
    assert run.report["verdict"] == "does-not-fit"
    assert run.report["chosen"] is None
    assert run.report["smallest_card"] is not None


def test_a_backward_pass_on_the_host_before_the_first_use_of_the_gpu():
    script = """
import torch
for _ in range(3):
    (torch.ones(3, requires_grad=True) * 2).sum().backward()
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 64).cuda()).sum().backward()
    optimizer.step()
"""
    _, run = planned(script)
    assert run.status == 0, run.stderr
    assert run.report["verdict"] == "fits-as-is"


def test_a_script_that_fails_by_itself_has_no_plan():
    _, run = planned("import torch\ntorch.zeros(1, device='cuda')\nraise ValueError('my own')\n")
    assert run.status == 2
    assert "my own" in run.report["problem"]["message"]


def test_an_unverified_loss_is_divided_only_if_allowed():
    script = LOADER.replace(
        "        optimizer.zero_grad()", "        loss = loss / loss.item()\n        optimizer.zero_grad()"
    )
    options = ("--memory", "1GiB", "--without", "checkpointing", "--without", "autocast-fp16")
    _, run = planned(script, *options)
    refused = next(each["why"] for each in run.report["rejected"] if each["lever"] == "micro-batch")
    assert "not verified" in refused, refused
    assert "is read before the backward" in refused, refused
    assert "`memfit.Step` checks it on the first batch" in refused
    assert all(lever["name"] != "micro-batch" for lever in (run.report["chosen"] or {"levers": []})["levers"])
    _, run = planned(script, *options, "--allow", "changes-training")
    lever = next(each for each in run.report["chosen"]["levers"] if each["name"] == "micro-batch")
    assert lever["label"] == "changes-training"
    assert lever["unverified"].startswith("not verified")


def test_a_number_that_counts_forward_passes_leaves_the_division_unverified():
    """Micro-batches would count more of them, and warm up sooner."""
    script = LOADER.replace("for epoch", "model.passes = 0\nfor epoch", 1).replace(
        "        optimizer.zero_grad()",
        "        model.passes += 1\n        loss = loss * min(1.0, model.passes / 1000)\n        optimizer.zero_grad()",
    )
    options = ("--memory", "1GiB", "--without", "checkpointing", "--without", "autocast-fp16")
    _, run = planned(script, *options)
    refused = next(each["why"] for each in run.report["rejected"] if each["lever"] == "micro-batch")
    assert "a number that Python computes changes from one step to the next (0.001 in `mul`" in refused, (
        refused
    )
    _, run = planned(script.replace("min(1.0, model.passes / 1000)", "min(1.0, 0.001)"), *options)
    assert "micro-batch" in [each["name"] for each in run.report["chosen"]["levers"]]


@exhaustive
def test_a_patch_with_other_gradients_states_the_difference():
    coupled = LOADER.replace("nn.Linear(64, 128)", "nn.BatchNorm1d(1024), nn.Linear(64, 128)")
    assert coupled != LOADER
    _, run = planned(coupled, "--memory", "1GiB", "--allow", "changes-training", "--diff=memfit.patch")
    numbers = run.report["patch"]["numbers"]
    assert "micro-batch" in numbers["levers"], run.report["chosen"]["levers"]
    assert numbers["equal"] is False, numbers
    assert numbers["difference"] > 1e-3
    assert numbers["parameter"]


def test_a_training_that_ends_after_two_steps_has_a_time_for_each_candidate():
    # The time of micro-batches that are left out follows from three steps.
    short = LOADER.replace("(300, 1024", "(96, 1024").replace("range(3)", "range(1)")
    _, run = planned(short, "--memory", "700MiB", "--allow", "rounding")
    assert run.report["verdict"] == "fits-with-plan", run.stderr
    assert run.report["chosen"]["micro_batches_per_step"] > 3
    assert all(each["step_ms_estimate"] is not None for each in run.report["pareto"])


def test_a_checkpoint_that_is_saved_in_the_observed_steps_leaves_the_batch_divisible():
    saves = LOADER.replace(
        "        optimizer.zero_grad()",
        "        torch.save(model.state_dict(), 'checkpoint.pt')\n        optimizer.zero_grad()",
    )
    assert saves != LOADER
    _, run = planned(saves, "--memory", "700MiB", "--allow", "rounding")
    assert run.report["verdict"] == "fits-with-plan", run.stderr
    assert run.report["chosen"]["micro_batches_per_step"] > 1, run.report["rejected"]


def test_what_changes_parameters_is_named_with_its_line():
    clamps = LOADER.replace(
        "        optimizer.zero_grad()",
        "        with torch.no_grad(): model[0].weight.clamp_(-1, 1)\n        optimizer.zero_grad()",
    )
    line = next(number for number, text in enumerate(clamps.splitlines(), 1) if "clamp_" in text)
    _, run = planned(clamps, "--memory", "700MiB", "--allow", "rounding")
    refused = next(each["why"] for each in run.report["rejected"] if each["lever"] == "micro-batch")
    assert f"outside the optimizer's step (`clamp_` at train.py:{line})" in refused, refused


def test_a_plan_says_that_memory_grows():
    keeps = LOADER.replace("loss_fn = nn", "kept = []\nloss_fn = nn").replace(
        "        optimizer.zero_grad()",
        "        kept.append(torch.zeros(8 << 20, device=device))\n        optimizer.zero_grad()",
    )
    _, run = planned(keeps)
    assert run.report["verdict"] == "fits-as-is", run.stderr
    assert any("took 32.0 MiB more than the one before" in note for note in run.report["notes"]), run.report[
        "notes"
    ]
    _, run = planned(LOADER)
    assert not any("more than the one before" in note for note in run.report["notes"]), run.report["notes"]


# Modules from before the first use of the GPU, where a plan's tries begin.
TEACHER = """
import copy, torch
from torch import nn
model = nn.Linear(2048, 2048)
teacher = copy.deepcopy(model).requires_grad_(False)
model.cuda(), teacher.cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.randn(64, 2048, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_model_that_is_never_called_is_found_in_a_plans_tries():
    """The garbage collector of a fork does not list it."""
    _, run = planned(TEACHER)
    weights = 4 * (2048 * 2048 + 2048)
    assert run.report["baseline"]["at_peak"]["by_category"]["parameters"] == 2 * weights
