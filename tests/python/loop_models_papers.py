"""Models and batches of `loop_others.py`: heads, mixtures, codebooks and layouts as papers have them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from loop_models import pictures, ragged, rows
from torch import nn
from torch.nn import functional
from training import Perceptron


class Angular(nn.Module):
    """ArcFace: a margin on the angle to each class's weight, which is in the model."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Perceptron()
        self.weight = nn.Parameter(torch.randn(5, 5))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        cosine = functional.linear(functional.normalize(self.body(inputs)), functional.normalize(self.weight))
        angle = cosine.clamp(-1 + 1e-7, 1 - 1e-7).acos()
        margin = functional.one_hot(labels, 5).to(cosine.dtype) * 0.3
        return 8 * (angle + margin).cos()


class Centres(nn.Module):
    """Center loss, whose centres move by the batch's own mean in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Perceptron()
        self.register_buffer("centres", torch.zeros(5, 5))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.body(inputs)
        apart = (found - self.centres[labels]).pow(2).sum(1)
        with torch.no_grad():
            for label in labels.unique():
                self.centres[label].lerp_(found[labels == label].mean(0), 0.5)
        return found, apart


class Quantised(nn.Module):
    """A vector-quantised autoencoder with a straight-through gradient and a commitment loss."""

    def __init__(self, moves: bool) -> None:
        super().__init__()
        self.body, self.head = Perceptron(), nn.Linear(5, 6)
        self.register_buffer("book", torch.randn(7, 5, generator=torch.Generator().manual_seed(1)))
        self.register_buffer("sizes", torch.ones(7))
        self.moves = moves

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        code = self.body(inputs)
        index = torch.cdist(code, self.book).argmin(1)
        taken = self.book[index]
        if self.moves and self.training:
            with torch.no_grad():
                hot = functional.one_hot(index, 7).to(code.dtype)
                self.sizes.mul_(0.9).add_(hot.sum(0), alpha=0.1)
                self.book.mul_(0.9).add_(hot.T @ code / self.sizes.unsqueeze(1), alpha=0.1)
        return self.head(code + (taken - code).detach()), functional.mse_loss(code, taken.detach())


class TopExperts(nn.Module):
    """A mixture with the best expert of each sample, and Switch's loss for balance."""

    def __init__(self, capacity: float | None = None) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 5) for _ in range(3))
        self.capacity = capacity

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate = self.gate(inputs).softmax(1)
        weight, chosen = gate.max(1)
        outputs = inputs.new_zeros(len(inputs), 5)
        for index, expert in enumerate(self.experts):
            mine = (chosen == index).nonzero().squeeze(1)
            if self.capacity is not None:
                # Tokens beyond an expert's capacity are dropped.
                mine = mine[: max(1, int(self.capacity * len(inputs) / 3))]
            outputs = outputs.index_add(0, mine, expert(inputs[mine]) * weight[mine, None])
        share = functional.one_hot(chosen, 3).to(gate.dtype).mean(0)
        return outputs, 3 * (share * gate.mean(0)).sum()


class Straight(torch.autograd.Function):
    """Rounds, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return values.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return gradient


class MeanGradient(torch.autograd.Function):
    """The identity, whose gradient is divided by the number of rows: it depends on the batch size."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        ctx.count = len(values)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / ctx.count


class Dropping(nn.Module):
    """Dropout by a generator of the model's own, and a layer that is dropped as a whole."""

    def __init__(self, whole_layers: bool) -> None:
        super().__init__()
        self.body, self.more = Perceptron(), nn.Linear(5, 5)
        self.source = torch.Generator().manual_seed(7)
        self.whole_layers = whole_layers

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.body(inputs)
        if self.whole_layers:
            skips = torch.rand((), generator=self.source) < 0.5
            return found if skips else found + self.more(found)
        kept = (torch.rand(found.shape, generator=self.source) < 0.7).to(found.dtype)
        return self.more(found * kept / 0.7)


class Skipping(nn.Module):
    """LayerDrop: a layer is left out of half of all forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.more = Perceptron(), nn.Linear(5, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.body(inputs)
        return found if random.random() < 0.5 else found + self.more(found)


class Bayesian(nn.Module):
    """A layer with noise on its weights, the same for all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 6))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return functional.linear(inputs, self.weight + 0.1 * torch.randn_like(self.weight))


class Scheduled(nn.Module):
    """A temperature that falls with each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Perceptron()
        self.passes = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return self.body(inputs) / (1 + 1 / self.passes)


class Renormalised(nn.Module):
    """Weight normalisation, and outputs without their mean over the batch."""

    def __init__(self, centred: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 5)
        )
        self.centred = centred

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.body(inputs)
        return found - found.mean(0) if self.centred else found


class Packing(nn.Module):
    """Attention over sequences packed into one row, which may not look across their borders."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, inputs: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
        found = self.embed(inputs)
        allowed = document[:, None] == document[None]
        scores = (found @ found.T / math.sqrt(8)).masked_fill(~allowed.tril(), -torch.inf)
        return self.head(scores.softmax(1) @ found)


class Learned(nn.Module):
    """Several losses weighed by learned uncertainties."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Perceptron()
        self.scales = nn.Parameter(torch.zeros(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body(inputs)


class Outputs(NamedTuple):
    """Output of a model, with fields."""

    logits: torch.Tensor
    hidden: torch.Tensor


@dataclass
class Item:
    """A batch with fields, one of them for all samples."""

    inputs: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    name: str = "train"


def fielded(generator: torch.Generator, size: int) -> Any:
    inputs, labels = rows(generator, size)
    return Item(inputs, labels, torch.tensor([[1.0, 2, 1, 2, 3]], dtype=torch.float64))


def arrays(generator: torch.Generator, size: int) -> Any:
    inputs, labels = rows(generator, size)
    return {
        "inputs": inputs.numpy(),
        "labels": labels.numpy(),
        "ids": [f"sample {each}" for each in range(size)],
    }


def documents(generator: torch.Generator, size: int) -> Any:
    """Sequences packed one behind the other, and the sequence that each token belongs to."""
    found = ragged(generator, size)
    return torch.cat(found), torch.cat([torch.full((len(each),), at) for at, each in enumerate(found)])


def transcripts(generator: torch.Generator, size: int) -> Any:
    inputs = torch.randint(0, 11, (size, 9), generator=generator)
    lengths = torch.randint(5, 10, (size,), generator=generator)
    targets = torch.randint(1, 5, (size, 4), generator=generator)
    return inputs, targets, lengths, torch.randint(1, 4, (size,), generator=generator)


def joined_targets(generator: torch.Generator, size: int) -> Any:
    """Targets of CTC one behind the other, as PyTorch's own example has them."""
    inputs, targets, lengths, target_lengths = transcripts(generator, size)
    flat = torch.cat([each[:length] for each, length in zip(targets, target_lengths, strict=True)])
    return inputs, flat, lengths, target_lengths


def split_targets(batch: Any, start: int, stop: int) -> Any:
    inputs, targets, lengths, target_lengths = batch
    ends = target_lengths.cumsum(0)
    begin = int(ends[start - 1]) if start else 0
    part = slice(start, stop)
    return inputs[part], targets[begin : int(ends[stop - 1])], lengths[part], target_lengths[part]


def graphs(generator: torch.Generator, size: int) -> Any:
    """Nodes of several graphs, and the graph that each belongs to."""
    counts = torch.randint(2, 5, (size,), generator=generator)
    owner = torch.repeat_interleave(torch.arange(size), counts)
    nodes = torch.randn(int(counts.sum()), 6, generator=generator, dtype=torch.float64)
    return {"nodes": nodes, "owner": owner, "labels": torch.randint(0, 5, (size,), generator=generator)}


def masks(generator: torch.Generator, size: int) -> Any:
    inputs, _ = pictures(generator, size)
    return inputs, torch.randint(0, 3, (size, 5, 5), generator=generator)


def jagged(generator: torch.Generator, size: int) -> Any:
    """Sequences of several lengths in one nested tensor."""
    rows = [torch.randn(1 + index % 4, 6, generator=generator, dtype=torch.float64) for index in range(size)]
    inputs = torch.nested.nested_tensor(rows, layout=torch.jagged)
    return inputs, torch.randint(0, 5, (size,), generator=generator)
