"""Measures the claims of the rules' pages about device memory: one process on a virtual GPU runs all cases.

Each case returns figures, which `test_rules.py` compares with the pages. The results are written to the file
that is the only argument.
"""

from __future__ import annotations

import copy
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

DEVICE = "cuda"
CASES: dict[str, Callable[[], dict[str, int]]] = {}
MIB = 1024**2


def case(function: Callable[[], dict[str, int]]) -> Callable[[], dict[str, int]]:
    CASES[function.__name__.replace("_", "-")] = function
    return function


def net() -> nn.Module:
    return nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.Tanh())]).to(DEVICE)


def batch() -> torch.Tensor:
    return torch.ones(4096, 512, device=DEVICE)


def held(work: Callable[[], object]) -> int:
    """Bytes that are allocated after the work more than before it, while what it gives is alive."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    kept = work()
    gc.collect()
    after = torch.cuda.memory_allocated()
    del kept
    return after - before


def peak(work: Callable[[], object]) -> int:
    """The peak above what was there before."""
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return torch.cuda.max_memory_allocated() - before


@case
def graph_in_container() -> dict[str, int]:
    model, x = net(), batch()

    def collect(rounds: int, backward: bool, retain: bool, number: bool) -> list[object]:
        kept: list[object] = []
        for _ in range(rounds):
            loss = model(x).mean()
            if backward:
                loss.backward(retain_graph=retain)
            kept.append(loss.item() if number else loss)
        model.zero_grad()
        return kept

    return {
        "one": held(lambda: collect(1, False, False, False)),
        "five": held(lambda: collect(5, False, False, False)),
        "retained": held(lambda: collect(5, True, True, False)),
        "freed": held(lambda: collect(5, True, False, False)),
        "numbers": held(lambda: collect(5, False, False, True)),
    }


@case
def device_tensor_in_container() -> dict[str, int]:
    model, x = net(), batch()
    return {
        "output": x.numel() * 4,
        "detached": held(lambda: [model(x).detach() for _ in range(5)]),
        "on_host": held(lambda: [model(x).detach().cpu() for _ in range(5)]),
    }


@case
def view_keeps_storage() -> dict[str, int]:
    model, x = net(), batch()
    return {
        "whole": x.numel() * 4,
        "slices": held(lambda: [model(x)[:, 0].detach() for _ in range(3)]),
        "copies": held(lambda: [model(x)[:, 0].detach().clone() for _ in range(3)]),
    }


@case
def loss_summed_before_backward() -> dict[str, int]:
    model, x = net(), batch()
    model(x).mean().backward()

    def summed() -> None:
        total = torch.zeros((), device=DEVICE)
        for _ in range(5):
            total = total + model(x).mean()
        total.backward()

    def each() -> None:
        for _ in range(5):
            model(x).mean().backward()

    return {"summed": peak(summed), "each": peak(each)}


@case
def tensor_running_loss() -> dict[str, int]:
    model, x = net(), batch()
    model(x).mean().backward()

    def run() -> torch.Tensor:
        running = torch.zeros((), device=DEVICE)
        for _ in range(5):
            loss = model(x).mean()
            loss.backward()
            running = running + loss
        return running

    return {"held": held(run)}


@case
def retain_graph_in_loop() -> dict[str, int]:
    model, x = net(), batch()
    model(x).mean().backward()

    def run(retain: bool) -> None:
        for _ in range(4):
            loss = model(x).mean()
            loss.backward(retain_graph=retain)

    return {"retained": peak(lambda: run(True)), "freed": peak(lambda: run(False))}


@case
def hook_stores_activation() -> dict[str, int]:
    model, x = net(), batch()

    def run(detach: bool) -> dict[str, torch.Tensor]:
        features: dict[str, torch.Tensor] = {}

        def hook(_module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
            features["last"] = output.detach() if detach else output

        handle = model[-1].register_forward_hook(hook)
        model(x)
        handle.remove()
        return features

    return {"graph": held(lambda: run(False)), "detached": held(lambda: run(True)), "output": x.numel() * 4}


@case
def eval_without_no_grad() -> dict[str, int]:
    model, x = net(), batch()

    def run(rounds: int) -> None:
        for _ in range(rounds):
            out = model(x)
        del out

    with torch.no_grad():
        off = peak(lambda: run(5))
    return {
        "one": peak(lambda: run(1)),
        "two": peak(lambda: run(2)),
        "five": peak(lambda: run(5)),
        "off": off,
    }


@case
def late_zero_grad() -> dict[str, int]:
    # Deep and narrow: a backward pass needs little memory in addition to activations and gradients.
    model = nn.Sequential(*[layer for _ in range(64) for layer in (nn.Linear(256, 256), nn.Tanh())]).to(
        DEVICE
    )
    x = torch.ones(256, 256, device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run(late: bool) -> None:
        for _ in range(3):
            loss = model(x).mean()
            if late:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not late:
                optimizer.zero_grad()
        optimizer.zero_grad()

    parameters = sum(parameter.numel() * 4 for parameter in model.parameters())
    return {"late": peak(lambda: run(True)), "after": peak(lambda: run(False)), "parameters": parameters}


@case
def zero_grad_to_zero() -> dict[str, int]:
    model, x = net(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run(to_none: bool) -> None:
        model(x).mean().backward()
        optimizer.zero_grad(set_to_none=to_none)

    parameters = sum(parameter.numel() * 4 for parameter in model.parameters())
    return {"zeros": held(lambda: run(False)), "none": -held(lambda: run(True)), "parameters": parameters}


@case
def cudnn_benchmark_with_varying_shapes() -> dict[str, int]:
    def allocations(benchmark: bool, sizes: list[int]) -> int:
        torch.backends.cudnn.benchmark = benchmark
        conv = nn.Conv2d(64, 64, 3, padding=1).to(DEVICE)
        inputs = [torch.ones(16, 64, size, size, device=DEVICE) for size in sizes]
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        with torch.no_grad():
            for x in inputs:
                conv(x)
        torch.backends.cudnn.benchmark = False
        return torch.cuda.memory_stats()["allocation.all.allocated"] - before

    # Autotuning allocates memory in addition to the call's own. Each case has its own shapes.
    return {
        "again": allocations(True, [48] * 4) - allocations(False, [48] * 4),
        "varying": allocations(True, [56, 64, 72, 80]) - allocations(False, [56, 64, 72, 80]),
    }


@case
def deepcopy_model_on_device() -> dict[str, int]:
    model = net()
    parameters = sum(parameter.numel() * 4 for parameter in model.parameters())
    host = held(lambda: {k: v.detach().cpu().clone() for k, v in model.state_dict().items()})
    return {"parameters": parameters, "copied": held(lambda: copy.deepcopy(model)), "on_host": host}


@case
def state_dict_alias() -> dict[str, int]:
    model = net()
    parameters = sum(parameter.numel() * 4 for parameter in model.parameters())
    return {
        "parameters": parameters,
        "alias": held(model.state_dict),
        "copied": held(lambda: copy.deepcopy(model.state_dict())),
    }


@case
def create_graph_backward() -> dict[str, int]:
    def left(create: bool) -> int:
        gc.collect()
        before = torch.cuda.memory_allocated()
        gc.disable()
        model = net()
        model(torch.ones(1, 512, device=DEVICE)).mean().backward(create_graph=create)
        del model
        after = torch.cuda.memory_allocated()
        gc.enable()
        return after - before

    parameters = sum(parameter.numel() * 4 for parameter in net().parameters())
    return {"parameters": parameters, "plain": left(False), "kept": left(True)}


@case
def recurrent_state_not_detached() -> dict[str, int]:
    rnn, x = nn.RNN(512, 512).to(DEVICE), torch.ones(64, 16, 512, device=DEVICE)
    rnn(x)[0].mean().backward()

    def run(rounds: int, detach: bool) -> torch.Tensor:
        hidden = None
        for _ in range(rounds):
            out, hidden = rnn(x, hidden)
            out.mean().backward(retain_graph=not detach)
            hidden = hidden.detach() if detach else hidden
        return hidden

    return {
        "one": held(lambda: run(1, False)),
        "four": held(lambda: run(4, False)),
        "detached": held(lambda: run(4, True)),
    }


@case
def retry_inside_except() -> dict[str, int]:
    def attempt() -> None:
        wanted = torch.empty(64 * MIB, dtype=torch.uint8, device=DEVICE)
        torch.empty(torch.cuda.mem_get_info()[1], dtype=torch.uint8, device=DEVICE)
        del wanted

    before = torch.cuda.memory_allocated()
    try:
        attempt()
    except torch.OutOfMemoryError:
        inside = torch.cuda.memory_allocated() - before
    return {"inside": inside, "after": torch.cuda.memory_allocated() - before}


@case
def unbounded_memory_history() -> dict[str, int]:
    def events(**options: int) -> int:
        torch.cuda.memory._record_memory_history(**options)
        for _ in range(1000):
            torch.empty(MIB, device=DEVICE)
        found = len(torch.cuda.memory._snapshot()["device_traces"][0])
        torch.cuda.memory._record_memory_history(enabled=None)
        return found

    return {"events": events(), "kept": events(max_entries=100)}


@case
def optimizer_in_loop() -> dict[str, int]:
    model, x = net(), batch()
    model(x).mean().backward()

    def step() -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.step()
        return optimizer

    return {"state": held(step), "parameters": sum(p.numel() * 4 for p in model.parameters())}


@case
def empty_cache_in_loop() -> dict[str, int]:
    def allocations(empty: bool) -> int:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_stats().get("num_device_alloc", 0)
        for _ in range(4):
            torch.empty(64 * MIB, dtype=torch.uint8, device=DEVICE)
            if empty:
                torch.cuda.empty_cache()
        return torch.cuda.memory_stats().get("num_device_alloc", 0) - before

    return {"emptied": allocations(True), "cached": allocations(False)}


@case
def full_image_on_device() -> dict[str, int]:
    def whole() -> None:
        image = torch.zeros(1, 3, 3000, 4000).to(DEVICE)
        nn.functional.interpolate(image, size=(224, 224))

    def small() -> None:
        nn.functional.interpolate(torch.zeros(1, 3, 3000, 4000), size=(224, 224)).to(DEVICE)

    return {"whole": peak(whole), "small": peak(small)}


@case
def pad_to_max_length() -> dict[str, int]:
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True).to(DEVICE)
    lengths = (128, 512)

    def scores(length: int) -> torch.Tensor:
        query = torch.ones(8, length, 64, device=DEVICE)
        return (query @ query.mT).softmax(-1)

    grown = {
        str(length): peak(lambda length=length: layer(torch.ones(8, length, 64, device=DEVICE)))
        for length in lengths
    }
    return grown | {f"scores-{length}": held(lambda length=length: scores(length)) for length in lengths}


@case
def float_before_transfer() -> dict[str, int]:
    images = torch.zeros(8, 3, 64, 64, dtype=torch.uint8)
    moved = images.to(DEVICE)
    return {"bytes": moved.nbytes, "widened": images.float().to(DEVICE).nbytes}


@case
def whole_set_in_one_batch() -> dict[str, int]:
    model, dataset = net(), torch.ones(16 * 4096, 512)

    @torch.no_grad()
    def evaluate(size: int) -> None:
        for part in dataset.split(size):
            model(part.to(DEVICE))

    return {"whole": peak(lambda: evaluate(len(dataset))), "parts": peak(lambda: evaluate(4096))}


@case
def optimizer_state_before_device() -> dict[str, int]:
    def resumed(*, moved_first: bool) -> torch.optim.Optimizer:
        model = nn.Linear(512, 512, bias=False)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 512)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        state = optimizer.state_dict()
        again = torch.optim.Adam(model.parameters())
        if moved_first:
            model.to(DEVICE)
        again.load_state_dict(state)
        model.to(DEVICE)
        model(torch.ones(1, 512, device=DEVICE)).sum().backward()
        return again

    def moments(optimizer: torch.optim.Optimizer, kind: str) -> int:
        kept = [value for state in optimizer.state.values() for value in state.values()]
        return sum(value.nbytes for value in kept if value.dim() and value.device.type == kind)

    def raises(optimizer: torch.optim.Optimizer) -> int:
        try:
            optimizer.step()
        except RuntimeError:
            return 1
        return 0

    late, first = resumed(moved_first=False), resumed(moved_first=True)
    return {
        "late-on-host": moments(late, "cpu"),
        "late-raises": raises(late),
        "first-on-host": moments(first, "cpu"),
        "first-raises": raises(first),
    }


if __name__ == "__main__":
    answer = {}
    for name, measure in CASES.items():
        answer[name] = measure()
        gc.collect()
    Path(sys.argv[1]).write_text(json.dumps(answer))
