"""Makes a classifier of handwritten digits smaller, and measures what that costs in accuracy.

The data come with scikit-learn: 1,797 images of 8x8 pixels, of which 300 are trained on, so that there is
something to lose. Without arguments, every phase runs on the CPU; the peaks are those of the same phases on a
virtual GPU. `--phase NAME` trains one phase on the GPU, which is what the virtual GPU runs.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import memfit
import torch
from memfit import shrink
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

TRAINED_ON, BATCH, EPOCHS = 300, 50, 40
# The learning rate of a model that was trained before.
FURTHER = 2e-4
GPU = "t4"


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Classifier(nn.Module):
    def __init__(self, width: int = 512, depth: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(64, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)))


@dataclass
class Data:
    train: DataLoader
    test: DataLoader


def digits(turned: bool = False) -> Data:
    """The images, in one order; `turned` swaps rows and columns, as another scanner might."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32) / 16
    if turned:
        images = images.transpose(1, 2)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    inputs, labels = images.flatten(1)[order], torch.tensor(found.target)[order]
    numbers = torch.Generator().manual_seed(1)
    train = TensorDataset(inputs[:TRAINED_ON], labels[:TRAINED_ON])
    test = TensorDataset(inputs[TRAINED_ON:], labels[TRAINED_ON:])
    return Data(DataLoader(train, BATCH, shuffle=True, generator=numbers), DataLoader(test, 100))


def loss_of(outputs: torch.Tensor, batch: list[torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(outputs, batch[1])


def accuracy(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """One score for each sample."""
    return (model(batch[0]).argmax(1) == batch[1]).float()


def batches(data: Data, device: str, epochs: int, steps: int | None) -> Iterator[list[torch.Tensor]]:
    count = 0
    for _ in range(epochs):
        for batch in data.train:
            if steps is not None and count == steps:
                return
            yield [each.to(device) for each in batch]
            count += 1


def optimizer_of(model: nn.Module, lr: float = 1e-3) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr)


def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Data,
    device: str = "cpu",
    epochs: int = EPOCHS,
    steps: int | None = None,
) -> nn.Module:
    model.train()
    for batch in batches(data, device, epochs, steps):
        optimizer.zero_grad()
        loss_of(model(batch[0]), batch).backward()
        optimizer.step()
    return model


# The phases: each takes the trained model, which it may change, and returns what came of it.


def prune(model: nn.Module, data: Data, device: str, steps: int | None) -> nn.Module:
    """Half of the channels, and then further training."""
    optimizer = optimizer_of(model, FURTHER)
    shrink.prune_channels(model, torch.zeros(2, 64, device=device), optimizer, percent=50)
    return fit(model, optimizer, data, device, EPOCHS // 2, steps)


def prune_only(model: nn.Module, *_: object) -> nn.Module:
    shrink.prune_channels(model, torch.zeros(2, 64), percent=50)
    return model


def int8(model: nn.Module, *_: object) -> nn.Module:
    shrink.quantized_weights(model, bits=8)
    return model


def int4(model: nn.Module, *_: object) -> nn.Module:
    shrink.quantized_weights(model, bits=4)
    return model


def torchao(model: nn.Module, *_: object) -> nn.Module:
    shrink.torchao_weights(model, "int8-int4")
    return model


def qat(model: nn.Module, data: Data, device: str, steps: int | None) -> nn.Module:
    """Further training with rounded weights, and then the rounding."""
    rounded = shrink.qat(model)
    fit(model, optimizer_of(model, FURTHER), data, device, EPOCHS // 2, steps)
    rounded.undo()
    shrink.torchao_weights(model, "int8-int4")
    return model


def student(device: str) -> nn.Module:
    torch.manual_seed(2)
    return Classifier(width=24, depth=1).to(device)


def small(_: nn.Module, data: Data, device: str, steps: int | None) -> nn.Module:
    """A small model that learns from the labels alone."""
    model = student(device)
    return fit(model, optimizer_of(model), data, device, 3 * EPOCHS, steps)


def distil(teacher: nn.Module, data: Data, device: str, steps: int | None) -> nn.Module:
    """The same small model with the trained one as its teacher."""
    model = student(device)
    step = memfit.distill(teacher, model, optimizer_of(model), loss_of, temperature=2.0, weight=0.7)
    for batch in batches(data, device, 3 * EPOCHS, steps):
        step(batch)
    step.close()
    return model


def adapt(
    change: Callable[[nn.Module, torch.optim.Optimizer], shrink.Applied] | None,
) -> Callable[[nn.Module, Data, str, int | None], nn.Module]:
    """Trains on turned images: all of the model, or what `change` leaves."""

    def run(model: nn.Module, data: Data, device: str, steps: int | None) -> nn.Module:
        optimizer = optimizer_of(model)
        applied = change(model, optimizer) if change is not None else None
        fit(model, optimizer, data, device, EPOCHS // 2, steps)
        if applied is not None:
            # Adapters are merged into the weights.
            applied.undo()
        return model

    return run


@dataclass
class Phase:
    title: str
    run: Callable[[nn.Module, Data, str, int | None], nn.Module]
    # Its data have rows and columns swapped, and it has a peak of training.
    turned: bool = False
    trains: bool = True


PHASES = {
    "prune-only": Phase("half of the channels", prune_only, trains=False),
    "prune": Phase("half of the channels, trained further", prune),
    "int8": Phase("8-bit weights", int8, trains=False),
    "int4": Phase("4-bit weights", int4, trains=False),
    "torchao": Phase("torchao: 4-bit weights, 8-bit activations", torchao, trains=False),
    "qat": Phase("the same, trained for it (QAT)", qat),
    "small": Phase("a small model, from labels", small),
    "distil": Phase("a small model, from the trained one", distil),
    "adapt": Phase("turned images: all weights trained", adapt(None), turned=True),
    "adapt-lora": Phase(
        "turned images: LoRA", adapt(lambda model, it: shrink.lora(model, it, rank=8)), turned=True
    ),
    "adapt-head": Phase(
        "turned images: head only", adapt(lambda model, it: shrink.train_only(model, "head", it)), turned=True
    ),
}


def peak(name: str) -> str:
    """The most that tensors take in a few steps of a phase, on a virtual GPU."""
    command = [sys.executable, __file__, "--phase", name, "--steps", "3"]
    report = memfit.run(command, gpu=GPU)
    return f"{report.peak.allocated / 2**20:.1f} MiB" if report.verdict == "fits" else report.verdict


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--phase", choices=["train", *PHASES])
    parser.add_argument("--only", nargs="+", choices=list(PHASES), default=list(PHASES))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--no-peaks", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if options.phase:
        model = Classifier().cuda()
        if options.phase == "train":
            fit(model, optimizer_of(model), digits(), "cuda", steps=options.steps)
        else:
            phase = PHASES[options.phase]
            phase.run(model, digits(phase.turned), "cuda", options.steps)
        return

    started = time.perf_counter()
    data, turned = digits(), digits(turned=True)
    trained = Classifier()
    fit(trained, optimizer_of(trained), data)
    taken = time.perf_counter() - started
    original = shrink.compare(trained, trained, data.test, accuracy).before
    print(f"{'':42} {'accuracy, 95 %':>22} {'difference, 95 %':>24} {'weights':>9} {'peak':>9} {'time':>7}")
    line(
        "as trained",
        f"{original.score:.1%} [{original.low:.1%}, {original.high:.1%}]",
        "",
        original.weights,
        "" if options.no_peaks else peak("train"),
        taken,
    )
    for name in options.only:
        phase = PHASES[name]
        its = turned if phase.turned else data
        begun = time.perf_counter()
        try:
            after = phase.run(copy.deepcopy(trained), its, "cpu", None)
        except shrink.CannotApply as error:
            print(f"{phase.title:42} skipped: {error.why}")
            continue
        taken = time.perf_counter() - begun
        found = shrink.compare(trained, after, its.test, accuracy)
        line(
            phase.title,
            f"{found.after.score:.1%} [{found.after.low:.1%}, {found.after.high:.1%}]",
            f"{100 * found.difference:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}] points",
            found.after.weights,
            "" if options.no_peaks or not phase.trains else peak(name),
            taken,
        )


def line(title: str, score: str, difference: str, weights: int, most: str, taken: float) -> None:
    size = f"{weights / 2**10:,.0f} KiB"
    print(f"{title:42} {score:>22} {difference:>24} {size:>9} {most:>9} {taken:5.1f} s", flush=True)


if __name__ == "__main__":
    main()
