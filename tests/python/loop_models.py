"""Batches and models of the training loops in `loop_cases.py`."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from training import Normalised, Perceptron


def rows(generator: torch.Generator, size: int) -> Any:
    inputs = torch.randn(size, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, 5, (size,), generator=generator)


def pictures(generator: torch.Generator, size: int) -> Any:
    inputs = torch.randn(size, 2, 5, 5, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, 5, (size,), generator=generator)


def tokens(generator: torch.Generator, size: int) -> Any:
    inputs = torch.randint(0, 11, (size, 7), generator=generator)
    labels = torch.randint(0, 5, (size, 7), generator=generator)
    labels[torch.rand(size, 7, generator=generator) < 0.3] = -100
    labels[:, 0] = 1
    return inputs, labels


def full_tokens(generator: torch.Generator, size: int) -> Any:
    return (
        torch.randint(0, 11, (size, 7), generator=generator),
        torch.randint(0, 5, (size, 7), generator=generator),
    )


def named(generator: torch.Generator, size: int) -> Any:
    inputs, labels = tokens(generator, size)
    lengths = torch.randint(3, 8, (size, 1), generator=generator)
    return {"input_ids": inputs, "labels": labels, "attention_mask": (torch.arange(7) < lengths).long()}


def weighted(generator: torch.Generator, size: int) -> Any:
    inputs, labels = rows(generator, size)
    return inputs, labels, torch.rand(size, generator=generator, dtype=torch.float64) + 0.1


def time_major(generator: torch.Generator, size: int) -> Any:
    return tuple(each.T.contiguous() for each in full_tokens(generator, size))


def samples(generator: torch.Generator, size: int) -> Any:
    inputs, labels = rows(generator, size)
    return [(inputs[index], labels[index]) for index in range(size)]


def ragged(generator: torch.Generator, size: int) -> Any:
    lengths = torch.randint(2, 8, (size,), generator=generator).tolist()
    return [torch.randint(0, 11, (length,), generator=generator) for length in lengths]


def boxes(generator: torch.Generator, size: int) -> Any:
    inputs = [torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(size)]
    counts = torch.randint(1, 4, (size,), generator=generator).tolist()
    return inputs, [
        {"boxes": torch.randn(count, 5, generator=generator, dtype=torch.float64)} for count in counts
    ]


def masked_rows(generator: torch.Generator, size: int) -> Any:
    inputs, labels = rows(generator, size)
    return inputs, labels, torch.rand(size, generator=generator) < 0.6


def array_weights(generator: torch.Generator, size: int) -> Any:
    inputs, labels, weights = weighted(generator, size)
    return inputs, labels, weights.numpy()


class Averaged(nn.Module):
    """A model with a slowly moving copy of itself, which each forward in training moves."""

    def __init__(self, moves: bool = True) -> None:
        super().__init__()
        self.student = Perceptron()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.moves = moves

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            if self.moves:
                for one, other in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                    one.lerp_(other, 0.1)
            target = self.teacher(inputs)
        return self.student(inputs), target


class Queued(nn.Module):
    """Momentum contrast: keys of earlier batches wait in a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.query = Perceptron()
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.queue = torch.randn(16, 5, generator=torch.Generator().manual_seed(5)).double()

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        query = functional.normalize(self.query(inputs), dim=1)
        with torch.no_grad():
            key = functional.normalize(self.key(inputs), dim=1)
        found = torch.cat([(query * key).sum(1, keepdim=True), query @ self.queue.T], 1)
        self.queue = torch.cat([key, self.queue])[:16]
        return found, torch.zeros(len(inputs), dtype=torch.long)


class Remembering(nn.Module):
    """A recurrent network that goes on where the batch before ended."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.GRU(6, 5, batch_first=True)
        self.hidden: torch.Tensor | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        before = self.hidden if self.hidden is not None and self.hidden.size(1) == len(inputs) else None
        outputs, hidden = self.body(inputs.unsqueeze(1).expand(-1, 3, -1), before)
        self.hidden = hidden.detach()
        return outputs[:, -1]


class Packed(nn.Module):
    """A recurrent network over packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.body = nn.GRU(6, 5, batch_first=True)

    def forward(self, padded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.embed(padded), lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.body(packed)[0], batch_first=True)[0]


class Tied(nn.Module):
    """A language model whose first and last layer share their weights; its embedding's gradient may be
    sparse.
    """

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8, sparse=sparse)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11 if not sparse else 5)
        if not sparse:
            self.head.weight = self.embed.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(inputs)).tanh())


class Experts(nn.Module):
    """A choice of experts for each sample, and how evenly it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 5) for _ in range(3))

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate = self.gate(inputs).softmax(1)
        outputs = torch.stack([expert(inputs) for expert in self.experts], 1)
        return (outputs * gate.unsqueeze(2)).sum(1), gate


class Adversaries(nn.Module):
    """A generator with batch normalisation, and what judges its pictures."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.make = Normalised() if norm else Perceptron()
        self.judge = nn.Linear(5, 1)


class Drawing(nn.Module):
    """Noise from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Perceptron()
        self.source = torch.Generator().manual_seed(3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(inputs.shape, generator=self.source, dtype=inputs.dtype)
        return self.inner(inputs + 0.1 * noise)
