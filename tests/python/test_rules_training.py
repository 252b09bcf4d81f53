"""The claims of the rules' pages on what a training writes, moves, replaces and calls, carried out with
torch.
"""

from __future__ import annotations

import copy
import datetime
import inspect
import os
import time

import pytest
import torch
from proofs import data, net, proof, says
from torch import nn
from torch.multiprocessing import spawn
from torch.nn import functional


def changed(before, model):
    """Return how many parameters have changed, of how many."""
    pairs = list(zip(before, model.parameters(), strict=True))
    return f"{sum(not torch.equal(*pair) for pair in pairs)} of {len(pairs)}"


@proof("parameter-rebound")
@torch.no_grad()
def test_a_loop_variable_is_no_parameter():
    average, model = net(), nn.Linear(4, 3)
    before = copy.deepcopy(list(average.parameters()))
    for mean, p in zip(average.parameters(), model.parameters(), strict=True):
        mean = 0.9 * mean + 0.1 * p
    rebound = changed(before, average)
    for mean, p in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(p, 0.1)
    says("parameter-rebound", f"{rebound} parameters change; with `lerp_`, {changed(before, average)}")


@proof("freeze-without-effect")
def test_a_module_takes_any_attribute():
    model = net()

    def trained():
        return sum(parameter.requires_grad for parameter in model.parameters())

    model.requires_grad = False
    for parameter in model.parameters():
        parameter.require_grad = False
    still = trained()
    del model.requires_grad
    model.requires_grad_(False)
    says(
        "freeze-without-effect",
        f"after `model.requires_grad = False`, {still} of 2 parameters require gradients; after "
        f"`model.requires_grad_(False)`, {trained()} of 2",
    )


@proof("parameter-not-leaf")
def test_a_cast_parameter_is_not_registered():
    class Scale(nn.Module):
        def __init__(self, inside):
            super().__init__()
            ones = torch.ones(4)
            self.scale = nn.Parameter(ones.double()) if inside else nn.Parameter(ones).double()

    late, first = (len(list(Scale(inside).parameters())) for inside in (False, True))
    said = f"cast to float64: {late} parameters are registered; with the cast inside, {first}"
    says("parameter-not-leaf", said)
    assert isinstance(nn.Parameter(torch.ones(4)).to("cpu"), nn.Parameter)


@proof("optimizer-before-replacement")
def test_an_optimizer_holds_what_it_was_given():
    model = nn.Sequential(nn.Linear(4, 4), net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model[1] = nn.Linear(4, 3)
    before = copy.deepcopy(list(model[1].parameters()))
    x, y = data()[0]
    functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    said = f"after a step, {changed(before, model[1])} parameters of the new layer have changed"
    says("optimizer-before-replacement", said)
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler.step()
    assert (optimizer.param_groups[0]["lr"], other.param_groups[0]["lr"]) == (pytest.approx(0.01), 0.1)


def summed(rank, folder, everywhere):
    timeout = datetime.timedelta(seconds=2)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/group-{everywhere}", rank=rank, world_size=2, timeout=timeout
    )
    how = "returns"
    if rank == 0 or everywhere:
        try:
            torch.distributed.all_reduce(torch.ones(1))
        except RuntimeError:
            how = "error"
    (folder / f"{everywhere}-{rank}").write_text(how)
    # The other process is there until the first one has its answer.
    ends = time.monotonic() + 30
    while not (folder / f"{everywhere}-0").exists() and time.monotonic() < ends:
        time.sleep(0.1)
    # A group whose collective has failed cannot be left in order.
    os._exit(0)


@proof("collective-on-one-rank")
def test_a_collective_waits_for_all(tmp_path):
    for everywhere in (False, True):
        spawn(summed, args=(tmp_path, everywhere), nprocs=2)
    assert (tmp_path / "False-0").read_text() == "error"
    assert {(tmp_path / f"True-{rank}").read_text() for rank in range(2)} == {"returns"}
    says("collective-on-one-rank", "the call on one rank ends with an error; the same call on both returns")


@proof("non-blocking-copy-read")
def test_a_copy_blocks_by_default():
    text = torch.Tensor.to.__doc__
    assert "non_blocking=False" in text
    says(
        "non-blocking-copy-read",
        "Measured on the signature: `to` takes `non_blocking` with a default of False",
    )
    # A tensor on the host is not copied at all.
    x = torch.ones(4)
    assert x.to("cpu", non_blocking=True) is x


@proof("method-not-called")
def test_a_name_does_nothing(tmp_path):
    model = net()
    model.eval  # noqa: B018
    mode = "training" if model.training else "evaluation"
    says("method-not-called", f"after `model.eval`, the model is in {mode} mode")
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=0.1), 1)
    torch.save({"scheduler": scheduler.state_dict}, tmp_path / "last.pt")
    saved = torch.load(tmp_path / "last.pt", weights_only=False)["scheduler"]
    errors = 0
    try:
        scheduler.load_state_dict(saved)
    except (TypeError, AttributeError):
        errors += 1
    says("method-not-called", f"a loaded `scheduler.state_dict` raises {errors} error")


@proof("penalty-without-graph")
def test_a_penalty_of_numbers_trains_nothing():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.ones(2, 4, requires_grad=True)

    def penalty(**options):
        gradients = torch.autograd.grad(model(x).sum(), x, retain_graph=True, **options)[0]
        return ((gradients.norm(2, dim=1) - 1) ** 2).mean()

    assert penalty(create_graph=True).requires_grad
    with pytest.raises(RuntimeError, match="does not require grad"):
        penalty().backward()
    says(
        "penalty-without-graph",
        "with `create_graph=True`, the penalty has a graph; without it, `backward()` of the penalty alone raises an error",
    )


@proof("dropout-always-on")
def test_functional_dropout_knows_no_mode():
    class Head(nn.Module):
        def forward(self, x, **options):
            return functional.dropout(x, 0.5, **options)

    head, x = Head().eval(), torch.ones(64, 4)
    torch.manual_seed(0)
    on = (head(x) == 0).sum().item()
    off = (head(x, training=head.training) == 0).sum().item()
    said = f"in evaluation mode, {on} of {x.numel()} values are dropped; with `training=self.training`, {off}"
    says("dropout-always-on", said)
    assert inspect.signature(functional.dropout).parameters["training"].default is True


@proof("hook-in-loop")
def test_hooks_add_up():
    model, runs = net(), []
    for _ in range(3):
        runs.clear()
        model.register_forward_hook(lambda *_: runs.append(1))
        model(torch.ones(1, 4))
    says("hook-in-loop", f"after three iterations, a pass runs {len(runs)} hooks")


@proof("scheduler-per-epoch")
def test_a_schedule_over_batches_is_slow():
    epochs, batches = 10, 100
    optimizer = torch.optim.SGD(net().parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.1, epochs=epochs, steps_per_epoch=batches
    )
    for _ in range(epochs):
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] < 0.01
    says(
        "scheduler-per-epoch",
        f"{epochs} epochs of {batches} batches: after the last epoch, the schedule is at step "
        f"{schedule.last_epoch} of {schedule.total_steps:,}",
    )


@proof("loss-parameters-untrained")
def test_a_loss_keeps_its_parameters():
    class ScaledLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, out, y):
            return functional.cross_entropy(self.scale * out, y)

    model, criterion = net(), ScaledLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data(3):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    assert criterion.scale.grad is not None
    how = "its first value" if criterion.scale.item() == 1.0 else "another value"
    says("loss-parameters-untrained", f"after three steps, the parameter has {how}")
