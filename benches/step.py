"""Compares `memfit.Step` with a loop written by hand, Accelerate and Lightning, in CPU time of the thread.

    python benches/step.py [-o measurements/step.md]
    python benches/step.py --device cuda            # on a GPU, or under `memfit run --gpu NAME --steps 0`

All loops do the same: one batch, as a single micro-batch or as two with gradient accumulation, then clipping
and AdamW. Their rounds alternate, each between two rounds of the handwritten loop, so that other load slows
both. The figure of a loop is the median over rounds of its time minus the mean of these two. Libraries that
are not installed are left out and named.

One model has no running statistics; another has batch normalisation in every layer, whose buffers a step must
be able to restore. A wide model shows how much the cost matters if the kernels take longer. On a virtual GPU
kernels take no host time, but memfit's queries of the allocator do. The comparison of batches with and
without splitting runs before the first measured step.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import memfit
import torch
from torch import nn
from torch.nn import functional

DEVICE = torch.device("cpu")
TITLE = {
    "cpu": "CPU time that `memfit.Step` adds to a training step",
    "cuda": "CPU time that `memfit.Step` adds to a training step on a virtual GPU",
}
# memfit's CPU time does not depend on the model; a small one leaves less noise.
WIDTH, CLASSES, SAMPLES, PARTS, LAYERS = 32, 10, 8, 2, 4
WIDE = 512
CLIP, RATE = 1.0, 1e-3
# Steps before the first measured one, so that memfit's checks of split batches are over.
WARM = 150
torch.set_num_threads(1)


class Training(NamedTuple):
    """A training case: the number of micro-batches in a batch, and the model."""

    parts: int = PARTS
    norms: bool = False
    width: int = WIDTH

    def build(self) -> tuple[nn.Module, torch.optim.Optimizer, tuple[torch.Tensor, torch.Tensor]]:
        torch.manual_seed(0)
        width = self.width
        layers: list[nn.Module] = []
        for _ in range(LAYERS):
            layers += [nn.Linear(width, width), *([nn.BatchNorm1d(width)] if self.norms else []), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(width, CLASSES)).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        inputs, labels = torch.randn(SAMPLES, width), torch.randint(0, CLASSES, (SAMPLES,))
        return model, optimizer, (inputs.to(DEVICE), labels.to(DEVICE))


def by_hand(training: Training) -> Callable[[], None]:
    model, optimizer, (inputs, labels) = training.build()
    size = SAMPLES // training.parts

    def step() -> None:
        if training.parts == 1:
            functional.cross_entropy(model(inputs), labels).backward()
        else:
            for start in range(0, SAMPLES, size):
                part = inputs[start : start + size], labels[start : start + size]
                loss = functional.cross_entropy(model(part[0]), part[1], reduction="sum") / SAMPLES
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return step


def with_memfit(training: Training) -> Callable[[], None]:
    model, optimizer, batch = training.build()

    def loss(module: nn.Module, part: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return functional.cross_entropy(module(part[0]), part[1])

    step = memfit.Step(
        model,
        optimizer,
        loss,
        micro_batch=SAMPLES // training.parts if training.parts > 1 else None,
        clip_grad_norm=CLIP,
        # Batch normalisation has other statistics in parts, as in the loop by hand.
        allow="changes-training" if training.norms else None,
    )
    return lambda: step(batch)


def with_accelerate(training: Training) -> Callable[[], None]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=DEVICE.type == "cpu", gradient_accumulation_steps=PARTS)
    plain, plain_optimizer, (inputs, labels) = training.build()
    model, optimizer = accelerator.prepare(plain, plain_optimizer)
    size = SAMPLES // PARTS

    def step() -> None:
        for start in range(0, SAMPLES, size):
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(
                    model(inputs[start : start + size]), labels[start : start + size]
                )
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()

    return step


def lightning_steps(count: int) -> float:
    """Return the thread's time for steps of Lightning, which has its own loop."""
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model, optimizer, (inputs, labels) = Training().build()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.began = model, 0.0

        def training_step(self, part: tuple[torch.Tensor, torch.Tensor], _index: int) -> torch.Tensor:
            return functional.cross_entropy(self.model(part[0]), part[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

        def on_train_epoch_start(self) -> None:
            self.began = time.thread_time()

        def on_train_epoch_end(self) -> None:
            self.took = time.thread_time() - self.began

    size = SAMPLES // PARTS
    parts = [
        (inputs[start : start + size], labels[start : start + size]) for start in range(0, SAMPLES, size)
    ]
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=1,
        accumulate_grad_batches=PARTS,
        gradient_clip_val=CLIP,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(parts * count, batch_size=None))
    return module.took


def measured(step: Callable[[], None], count: int) -> float:
    before = time.thread_time()
    for _ in range(count):
        step()
    return time.thread_time() - before


def place() -> str:
    """Name the device."""
    if DEVICE.type != "cuda":
        return "the CPU"
    mapped = Path("/proc/self/maps").read_text().splitlines()
    virtual = "a virtual " if any("memfit" in line and "libcuda.so.1" in line for line in mapped) else ""
    return f"{virtual}{torch.cuda.get_device_name()}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    global DEVICE
    DEVICE = torch.device(arguments.device)
    ways: dict[str, Callable[[int], float]] = {}
    # Each way's own loop by hand.
    loops: dict[str, Callable[[], None]] = {}
    missing = []
    makers: dict[str, tuple[Callable[[Training], Callable[[], None]], Training]] = {
        "memfit.Step, one micro-batch": (with_memfit, Training(parts=1)),
        "memfit.Step, two micro-batches": (with_memfit, Training()),
        "memfit.Step, one micro-batch, batch normalisation": (with_memfit, Training(parts=1, norms=True)),
        "memfit.Step, two micro-batches, batch normalisation": (with_memfit, Training(norms=True)),
        "memfit.Step, one micro-batch, wide model": (with_memfit, Training(parts=1, width=WIDE)),
        "memfit.Step, two micro-batches, wide model": (with_memfit, Training(width=WIDE)),
        "Accelerate, two micro-batches": (with_accelerate, Training()),
    }
    for name, (make, training) in makers.items():
        try:
            step = make(training)
        except ImportError:
            missing.append(name)
            continue
        measured(step, WARM)
        ways[name] = lambda count, step=step: measured(step, count)  # type: ignore[misc]
        loops[name] = by_hand(training)
    if DEVICE.type == "cpu":
        name = "Lightning, two micro-batches"
        with contextlib.suppress(ImportError):
            import lightning  # noqa: F401

            ways[name], loops[name] = lightning_steps, by_hand(Training())
        if name not in ways:
            missing.append(name)
    for loop in loops.values():
        measured(loop, WARM)
    own: dict[str, list[float]] = {name: [] for name in ways}
    beyond: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            before = measured(loops[name], arguments.steps)
            took = way(arguments.steps)
            loop_took = (before + measured(loops[name], arguments.steps)) / 2
            own[name].append(loop_took / arguments.steps * 1e6)
            beyond[name].append((took - loop_took) / arguments.steps * 1e6)
    text = (
        f"Load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores. If that is more than the cores, other programs "
        "disturb both loops: a quartile below 0 is a round in which they slowed the handwritten loop more.\n\n"
        "| loop | handwritten loop, CPU µs per step: median | added CPU µs per step: median | lower quartile | upper quartile | "
        "median, relative to the handwritten loop |\n|---|---|---|---|---|---|\n"
    )
    for name, values in beyond.items():
        lower, middle, upper = statistics.quantiles(values, n=4)
        whole = statistics.median(own[name])
        text += (
            f"| {name} | {whole:.0f} | {middle:.0f} | {lower:.0f} | {upper:.0f} | {middle / whole:.1%} |\n"
        )
    if missing:
        text += f"\nNot installed, so not measured: {', '.join(missing)}.\n"
    print(text)
    if arguments.output:
        command = "python benches/step.py"
        if DEVICE.type == "cuda":
            command = f"memfit run --gpu … --steps 0 -- {command} --device cuda"
        arguments.output.write_text(
            f"# {TITLE[DEVICE.type]}\n\n"
            f"Written by `{command}`: {arguments.rounds} rounds of {arguments.steps} steps each, torch "
            f"{torch.__version__}, Python {platform.python_version()}, {platform.machine()}, on "
            f"{place()}. Each loop trains the same model on one batch per step, as a single micro-batch or as two. Rounds alternate with "
            "a handwritten loop; the added CPU time of the thread is the difference.\n\n"
            f"{text}",
            encoding="utf-8",
        )
    print(f"{arguments.rounds} rounds of {arguments.steps} steps", file=sys.stderr)


if __name__ == "__main__":
    main()
