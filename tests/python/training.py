"""Models, losses and failures for the tests of `memfit.Step`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

# These models are so small that threads would only wait for each other.
torch.set_num_threads(1)


class Perceptron(nn.Module):
    """Dense layers; with dropout if asked."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Dropout(dropout), nn.Linear(12, 5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.net(inputs)


class Convolutional(nn.Module):
    """A small picture network with group normalisation, which does not look at other samples."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU())
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(4, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.body(inputs).mean((2, 3))))


class Normalised(nn.Module):
    """A network with batch normalisation, whose statistics are buffers that each forward writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 5)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.net(inputs)


class Tagger(nn.Module):
    """A recurrent network that tags every place of a sequence; a label of -100 is ignored."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.body = nn.GRU(8, 8, batch_first=True)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(8, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.body(self.embed(tokens))[0]))


class Transformer(nn.Module):
    """One layer of attention over a sequence, and a class for it."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.body = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(tokens)).mean(1))


def mean_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """A mean over samples."""
    inputs, labels = batch
    return functional.cross_entropy(model(inputs), labels)


def summed_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, float]:
    """A sum, and what it is over: the labels that are not ignored."""
    inputs, labels = batch
    outputs = model(inputs)
    losses = functional.cross_entropy(
        outputs.flatten(0, -2), labels.flatten(), ignore_index=-100, reduction="sum"
    )
    return losses, float((labels != -100).sum())


class FailAt(TorchDispatchMode):
    """Raises an out-of-memory error at the n-th operation that runs within it, and counts them."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.at = at
        self.seen = 0
        self.raised = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.namespace == "profiler":
            # A mark in a trace takes no memory.
            return func(*args, **(kwargs or {}))
        self.seen += 1
        if self.seen == self.at:
            self.raised = True
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return func(*args, **(kwargs or {}))


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters and buffers in one row."""
    return torch.cat([value.detach().reshape(-1).double() for value in model.state_dict().values()])


# The shape of a sample for each kind of model.
INPUTS = {"perceptron": (6,), "convolutional": (2, 5, 5), "tagger": (7,), "transformer": (7,)}


def batches(kind: str, sizes: list[int], dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches for a model, the last of which may be shorter; a tagger's labels are ignored here and there."""
    generator = torch.Generator().manual_seed(7)
    made = []
    for size in sizes:
        shape = (size, *INPUTS[kind])
        tokens = kind in ("tagger", "transformer")
        inputs = (
            torch.randint(0, 11, shape, generator=generator)
            if tokens
            else torch.randn(shape, generator=generator, dtype=dtype)
        )
        labels = torch.randint(0, 5, shape if kind == "tagger" else (size,), generator=generator)
        if kind == "tagger":
            labels[torch.rand(shape, generator=generator) < 0.3] = -100
            labels[0, 0] = 1
        made.append((inputs, labels))
    return made


def pictures(boxes: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples, and how many boxes each of them has."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(boxes), 6, generator=generator, dtype=torch.float64), torch.tensor(boxes)


def named_losses(
    model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]
) -> dict[str, tuple[torch.Tensor, float]]:
    """A loss over boxes, of which there may be none, and one over all that the model sees."""
    inputs, boxes = batch
    outputs = model(inputs)
    return {
        "box": ((outputs[:, :2].pow(2).sum(1) * boxes).sum(), int(boxes.sum())),
        "obj": (outputs[:, 2:].sin().pow(2).sum(), inputs.numel()),
    }


def sums_of_losses(returned: dict[str, tuple[torch.Tensor, float]]) -> torch.Tensor:
    """As a detector adds them: what counts nothing is nothing."""
    return torch.stack([total / max(count, 1) for total, count in returned.values()]).sum()


class Margin(nn.Module):
    """A criterion with parameters of its own: a centre for each class, and a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(5, 5))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        similar = functional.normalize(outputs, dim=1) @ functional.normalize(self.centres, dim=1).T
        return functional.cross_entropy(similar * self.scale, labels)
