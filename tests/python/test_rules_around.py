"""The claims of the rules' pages on what stands around training: ranks, loaders, checkpoints and settings,
carried out with torch.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import inspect
import itertools
import os
import re
import sys
import warnings
import weakref
from pathlib import Path

import pytest
import torch
from proofs import data, net, proof, says, size
from runs import ROOT, invoke
from torch import nn
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode


@pytest.fixture
def alone(tmp_path):
    """A process group of one."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def sent(backwards, quiet=False, **options):
    """The gradients of a model after some backward passes under DDP, and how many bytes were sent."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    ddp = nn.parallel.DistributedDataParallel(model, **options)
    sizes = []

    def hook(_state, bucket):
        sizes.append(bucket.buffer().nbytes)
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    ddp.register_comm_hook(None, hook)
    for i in range(backwards):
        last = i == backwards - 1
        with contextlib.nullcontext() if last or not quiet else ddp.no_sync():
            ddp(torch.ones(2, 4)).sum().backward()
    return [parameter.grad for parameter in model.parameters()], sum(sizes)


@proof("ddp-without-bucket-view")
@pytest.mark.usefixtures("alone")
def test_gradients_are_in_the_buckets_once_more():
    parameters = inspect.signature(nn.parallel.DistributedDataParallel.__init__).parameters
    assert parameters["gradient_as_bucket_view"].default is False
    gradients, buckets = sent(1)
    whole = sum(gradient.nbytes for gradient in gradients)
    assert buckets == whole
    assert sum(gradient.untyped_storage().nbytes() for gradient in gradients) == whole
    views, _ = sent(1, gradient_as_bucket_view=True)
    assert {view.untyped_storage().nbytes() for view in views} == {whole}
    assert len({view.untyped_storage().data_ptr() for view in views}) == 1


@proof("no-sync-missing")
@pytest.mark.usefixtures("alone")
def test_a_window_sends_its_gradients_once():
    gradients, each = sent(4)
    _, once = sent(4, quiet=True)
    assert each == 4 * once == 4 * sum(gradient.nbytes for gradient in gradients)


@proof("find-unused-parameters")
@pytest.mark.usefixtures("alone")
def test_pytorch_warns_where_no_parameter_is_unused(capfd):
    sent(1)
    assert "extra traversal" not in capfd.readouterr().err
    sent(1, find_unused_parameters=True)
    assert "extra traversal of the autograd graph every iteration" in capfd.readouterr().err


@proof("data-parallel")
def test_data_parallel_gathers_on_one_card():
    assert "output_device" in inspect.signature(nn.DataParallel.__init__).parameters
    forward = inspect.getsource(nn.DataParallel.forward)
    assert "self.replicate(" in forward
    assert "self.gather(" in forward


@proof("checkpoint-without-use-reentrant")
def test_a_checkpoint_warns():
    from torch.utils.checkpoint import checkpoint

    model, x = net(), torch.ones(2, 4)
    with pytest.warns(UserWarning, match="use_reentrant"):
        checkpoint(model, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint(model, x, use_reentrant=False).sum().backward()
    other = sum(parameter.grad is not None for parameter in model.parameters())
    model = net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = checkpoint(model, x, use_reentrant=True).sum()
    with pytest.raises(RuntimeError, match="does not require grad"):
        loss.backward()
    reentrant = sum(parameter.grad is not None for parameter in model.parameters())
    said = f"with the reentrant implementation {reentrant} of 2 parameters get a gradient, with the other {other} of 2"
    says("checkpoint-without-use-reentrant", said)


@proof("checkpoint-kept-on-device")
def test_a_checkpoint_stays_beside_the_model_that_it_was_copied_into(tmp_path):
    file = tmp_path / "x.pt"
    model = nn.Linear(1024, 1024, bias=False)
    torch.save(model.state_dict(), file)
    state = torch.load(file, map_location="cpu")
    model.load_state_dict(state)
    assert state["weight"].data_ptr() != model.weight.data_ptr()
    kept = state["weight"].untyped_storage().nbytes()
    alive = weakref.ref(state["weight"])
    del state
    assert alive() is None
    said = f"a checkpoint of a model of {size(model.weight.nbytes)} keeps {size(kept)}; deleted"
    says("checkpoint-kept-on-device", said)


@proof("load-without-map-location")
def test_tensors_go_back_to_where_they_came_from(tmp_path, loaded):
    file = tmp_path / "x.pt"
    torch.save(torch.zeros(2), file)
    seen = []

    def where(storage, location):
        seen.append(location)
        return storage

    torch.load(file, map_location=where)
    assert seen == ["cpu"]
    assert inspect.signature(torch.load).parameters["map_location"].default is None
    # From a card, where there is none.
    assert not torch.cuda.is_available()
    with pytest.raises(RuntimeError, match="map_location"):
        torch.load(loaded.checkpoint)
    assert torch.load(loaded.checkpoint, map_location="cpu").device.type == "cpu"


class Counted(TorchDispatchMode):
    """Counts operations."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += 1
        return operation(*args, **(kwargs or {}))


def operations_of_a_backward_pass():
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.Tanh())])
    loss = model(torch.ones(2, 8)).sum()
    with Counted() as counted:
        loss.backward()
    return counted.count


@proof("anomaly-mode-left-on")
def test_anomaly_mode_stays_on():
    off = operations_of_a_backward_pass()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.autograd.set_detect_anomaly(True)
        loss = (torch.zeros(1, requires_grad=True) / 0).sum()
        lines = loss.grad_fn.metadata["traceback_"]
        assert sum(map(sys.getsizeof, lines)) > 100
        says("anomaly-mode-left-on", "the traceback of one operation takes more than 100 bytes")
        on = operations_of_a_backward_pass()
        says("anomaly-mode-left-on", f"runs {on} operations instead of {off}")
        with pytest.raises(RuntimeError, match="nan"):
            (torch.zeros(1, requires_grad=True) * torch.tensor(float("nan"))).sum().backward()
    finally:
        torch.autograd.set_detect_anomaly(False)


@proof("compile-in-loop")
def test_compiling_wraps_anew():
    model = net()
    assert torch.compile(model) is not torch.compile(model)

    def compilations(backend):
        made = []

        def counting(graph, _inputs):
            made.append(graph)
            return graph.forward

        torch._dynamo.reset()
        for _ in range(3):
            torch.compile(model, backend=backend(counting))(torch.ones(2, 4))
        return len(made)

    same, anew = compilations(lambda counting: counting), compilations(functools.partial)
    says("compile-in-loop", f"the model is compiled {same} time; with a backend created in each iteration")
    says("compile-in-loop", f"`lambda`), {anew} times")


class Loaded(str):
    """The output of rule_loading.py, and the checkpoint that it wrote from the GPU."""

    checkpoint: Path


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    checkpoint = tmp_path_factory.mktemp("loading") / "cuda.pt"
    command = [sys.executable, str(ROOT / "tests/python/rule_loading.py")]
    run = invoke(
        [
            "run",
            "--gpu",
            "t4",
            "--steps",
            "0",
            "--no-prove",
            "--show-output",
            "--format",
            "json",
            "--",
            *command,
        ]
    )
    said = Loaded(run.stderr + run.stdout)
    checkpoint.write_bytes(base64.b64decode(said.split("checkpoint:")[1].split(":")[0]))
    said.checkpoint = checkpoint
    return said


@proof("cuda-in-worker")
def test_a_forked_worker_cannot_use_cuda(loaded):
    assert "raised True" in loaded
    assert "alone True" in loaded
    # More than a hundred MiB, for a worker that has nothing on the card but a context.
    (figure,) = re.findall(r"context (\d+)", loaded)
    assert int(figure) > 100
    says("cuda-in-worker", "more than 100 MiB of device memory for each worker")


@proof("alloc-conf-set-late")
def test_settings_of_the_allocator_are_read_once(loaded):
    assert "ignored" in loaded
    late, early = (int(re.search(rf"{when} (\d+)", loaded)[1]) for when in ("late", "early"))
    said = (
        f"set too late, `expandable_segments:True` leaves {size(late)} reserved; set in time, {size(early)}"
    )
    says("alloc-conf-set-late", said)


@proof("non-blocking-unpinned")
@proof("blocking-copy-from-pinned")
@proof("pin-memory-without-workers")
def test_loaders_pin_when_they_are_told_to(loaded):
    from torch.utils.data import DataLoader

    assert "pinned True False" in loaded
    assert inspect.signature(DataLoader.__init__).parameters["num_workers"].default == 0

    class Whoever(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, i):
            return os.getpid()

    assert next(iter(DataLoader(Whoever()))).item() == os.getpid()
    assert next(iter(DataLoader(Whoever(), num_workers=1))).item() != os.getpid()


def small():
    model = net()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@proof("zero-grad-before-step")
def test_a_step_without_gradients_changes_nothing():
    changed = []
    for clears in (True, False):
        model, optimizer = small()
        before = [weight.clone() for weight in model.parameters()]
        x, y = data()[0]
        torch.nn.functional.cross_entropy(model(x), y).backward()
        if clears:
            optimizer.zero_grad()
        optimizer.step()
        weights = zip(before, model.parameters(), strict=True)
        changed.append(sum(int((old != new).sum()) for old, new in weights))
    assert changed == [0, 15]
    says("zero-grad-before-step", "0 of 15 parameters have changed; without the line, all 15 have")


@proof("scaler-call-missing")
def test_a_scaler_asks_for_its_calls():
    def step(scales: bool, updates: bool, rounds: int) -> None:
        model, optimizer = small()
        scaler = torch.amp.GradScaler("cpu")
        for x, y in data(rounds):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            (scaler.scale(loss) if scales else loss).backward()
            scaler.step(optimizer)
            if updates:
                scaler.update()

    step(True, True, 3)
    with pytest.raises(AssertionError, match="Attempted step but _scale is None"):
        step(False, True, 1)
    step(True, False, 1)
    with pytest.raises(RuntimeError, match=r"has already been called since the last update"):
        step(True, False, 2)
    says(
        "scaler-call-missing",
        '"Attempted step but _scale is None"',
        '"has already been called since the last update"',
    )


@proof("autocast-without-scaler")
def test_small_gradients_are_zero_in_float16():
    tiny = torch.tensor(1e-8)
    assert tiny.half().item() == 0.0
    assert (tiny * 65536).half().item() > 0
    assert tiny.bfloat16().item() > 0
    says("autocast-without-scaler", "a gradient of 1e-8 becomes 0.0, and scaled by 65536 it is kept")


@proof("cycled-loader")
def test_a_cycle_keeps_every_batch():
    class Batch:
        alive = 0

        def __init__(self) -> None:
            Batch.alive += 1

        def __del__(self) -> None:
            Batch.alive -= 1

    def alive_after(batches):
        for _ in range(8):
            next(batches)
        return Batch.alive

    assert alive_after(itertools.cycle(Batch() for _ in range(8))) == 8
    assert alive_after(Batch() for _ in range(8)) == 0
    says("cycled-loader", "of 8 batches, 8 are alive after one pass")


@proof("gradients-for-nothing")
def test_a_teacher_without_an_optimizer_gets_gradients():
    teacher = torch.nn.Linear(1024, 1024, bias=False)
    x = torch.randn(2, 1024)
    student = torch.nn.Linear(1024, 1024, bias=False)
    torch.nn.functional.mse_loss(student(x), teacher(x)).backward()
    assert teacher.weight.grad.nbytes == 4 << 20
    teacher.weight.grad = None
    with torch.no_grad():
        target = teacher(x)
    torch.nn.functional.mse_loss(student(x), target).backward()
    assert teacher.weight.grad is None
    says("gradients-for-nothing", "a teacher of 4 MiB: 4 MiB of gradients that nobody reads")


@proof("pruning-masks-saved")
def test_masks_are_saved_beside_the_weights():
    def held(layer):
        return sum(each.nbytes for each in layer.state_dict().values())

    layer = nn.Linear(256, 256, bias=False)
    plain = held(layer)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    assert list(layer.state_dict()) == ["weight_orig", "weight_mask"]
    masked = held(layer)
    with pytest.raises(RuntimeError, match="weight_orig"):
        nn.Linear(256, 256, bias=False).load_state_dict(layer.state_dict())
    prune.remove(layer, "weight")
    assert list(layer.state_dict()) == ["weight"]
    assert int((layer.weight == 0).sum()) == 256 * 128
    says(
        "pruning-masks-saved",
        f"a layer of {size(plain)}, half of it pruned: its state dict has {size(masked)}",
    )
    says("pruning-masks-saved", f"one weight of {size(held(layer))} with zeros in it")


@proof("quantized-weights-trained")
def test_integers_have_no_gradients():
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.ones(3, 4, dtype=torch.int8), requires_grad=False)
    layer.bias = nn.Parameter(torch.zeros(3))
    with pytest.raises(RuntimeError, match="floating point"):
        layer.weight.requires_grad_(True)
    parameters = list(layer.parameters())
    before = [each.clone() for each in parameters]
    optimizer = torch.optim.AdamW(parameters)
    nn.functional.linear(torch.ones(2, 4), layer.weight.float() / 127, layer.bias).square().sum().backward()
    optimizer.step()
    changed = sum(not torch.equal(one, two) for one, two in zip(before, parameters, strict=True))
    says(
        "quantized-weights-trained",
        f"an AdamW step changes {changed} of {len(parameters)} parameters, its bias",
    )
