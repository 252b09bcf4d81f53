"""What `memfit.Step` costs beside a loop written by hand, in CPU time of the thread, with Accelerate's and Lightning's beside it.

    python benches/step.py [-o measurements/step.md]

Each way runs the same mathematics: a batch in two parts whose gradients are added up, clipping, AdamW. Rounds of all ways take
turns, so that a busy machine slows all of them; the figure of a way is the median over rounds of what it took beyond the loop
of the same round. What is not installed is left out, and said.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import memfit
import torch
from torch import nn
from torch.nn import functional

# The package whose CPU time is measured does the same whatever the model; a small one leaves less noise.
WIDTH, CLASSES, SAMPLES, PARTS, LAYERS = 32, 10, 8, 2, 4
CLIP, RATE = 1.0, 1e-3
torch.set_num_threads(1)


def training() -> tuple[nn.Module, torch.optim.Optimizer, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    return model, optimizer, (torch.randn(SAMPLES, WIDTH), torch.randint(0, CLASSES, (SAMPLES,)))


def by_hand() -> Callable[[], None]:
    model, optimizer, (inputs, labels) = training()
    size = SAMPLES // PARTS

    def step() -> None:
        for start in range(0, SAMPLES, size):
            part = inputs[start : start + size], labels[start : start + size]
            loss = functional.cross_entropy(model(part[0]), part[1], reduction="sum") / SAMPLES
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return step


def with_memfit() -> Callable[[], None]:
    model, optimizer, batch = training()

    def loss(module: nn.Module, part: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return functional.cross_entropy(module(part[0]), part[1])

    step = memfit.Step(model, optimizer, loss, micro_batch=SAMPLES // PARTS, clip_grad_norm=CLIP)
    return lambda: step(batch)


def with_accelerate() -> Callable[[], None]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=PARTS)
    plain, plain_optimizer, (inputs, labels) = training()
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
    """Lightning has a loop of its own: the thread's time of so many steps."""
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model, optimizer, (inputs, labels) = training()

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    ways: dict[str, Callable[[int], float]] = {}
    missing = []
    plain = by_hand()
    for name, make in {"memfit.Step": with_memfit, "Accelerate": with_accelerate}.items():
        try:
            step = make()
        except ImportError:
            missing.append(name)
            continue
        measured(step, 20)
        ways[name] = lambda count, step=step: measured(step, count)  # type: ignore[misc]
    with contextlib.suppress(ImportError):
        import lightning  # noqa: F401

        ways["Lightning"] = lightning_steps
    if "Lightning" not in ways:
        missing.append("Lightning")
    measured(plain, 20)
    loops, beyond = [], {name: [] for name in ways}  # type: ignore[var-annotated]
    for _ in range(arguments.rounds):
        loop = measured(plain, arguments.steps)
        loops.append(loop)
        for name, way in ways.items():
            beyond[name].append((way(arguments.steps) - loop) / arguments.steps * 1e6)
    text = (
        "| way | CPU time of a step beyond the loop by hand, microseconds | beside the loop |\n|---|---|---|\n"
        f"| the loop by hand | 0 ({statistics.median(loops) / arguments.steps * 1e6:.0f} in all) | 1.00 |\n"
    )
    loop = statistics.median(loops) / arguments.steps * 1e6
    for name, values in beyond.items():
        middle = statistics.median(values)
        text += f"| {name} | {middle:.0f} | {1 + middle / loop:.2f} |\n"
    if missing:
        text += f"\nNot installed where this ran: {', '.join(missing)}.\n"
    print(text)
    if arguments.output:
        arguments.output.write_text(
            "# What a step costs the host\n\n"
            f"Written by `python benches/step.py`: {arguments.rounds} rounds of {arguments.steps} steps each, torch "
            f"{torch.__version__}, Python {platform.python_version()}, {platform.machine()}.\n\n{text}",
            encoding="utf-8",
        )
    print(f"{arguments.rounds} rounds of {arguments.steps} steps", file=sys.stderr)


if __name__ == "__main__":
    main()
