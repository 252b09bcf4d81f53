"""Follows the samples of a batch through a model: it succeeds exactly if no sample depends on another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
SAMPLES = 6


class Attention(nn.Module):
    """Causal attention written out, as in small language models."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 32), nn.Embedding(10, 32)
        self.norm, self.projections = nn.LayerNorm(32), nn.Linear(32, 96)
        self.out, self.head = nn.Linear(32, 32), nn.Linear(32, 50)

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.size(1)))
        batch, length, width = x.shape
        parts = self.projections(self.norm(x)).split(32, dim=2)
        query, key, value = (part.view(batch, length, 4, 8).transpose(1, 2) for part in parts)
        scores = (query @ key.transpose(-2, -1)) * 0.3
        scores = scores.masked_fill(torch.tril(torch.ones(length, length)) == 0, float("-inf"))
        mixed = functional.dropout(scores.softmax(-1), 0.1) @ value
        return self.head(x + self.out(mixed.transpose(1, 2).contiguous().view(batch, length, width)))


class Token(nn.Module):
    """A learnt token in front of a sequence, as in vision transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.layer(torch.cat([self.token.expand(x.size(0), -1, -1), x], 1))[:, 0]


def convolutional(norm: Any) -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        norm,
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )


class Mixed(nn.Module):
    """Does something with the samples of a batch before a linear layer."""

    def __init__(self, mix: Callable[[Any], Any]) -> None:
        super().__init__()
        self.mix, self.layer = mix, nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.layer(self.mix(x))


def pictures() -> Any:
    return torch.randn(SAMPLES, 3, 16, 16)


def numbers() -> Any:
    return torch.randn(SAMPLES, 4)


def tokens() -> Any:
    return torch.randint(0, 50, (SAMPLES, 9))


# A model, its inputs, and why its samples are not apart; nothing where they are.
MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "convolutions and group norm": (lambda: convolutional(nn.GroupNorm(2, 8)), pictures, ""),
    "instance norm": (lambda: convolutional(nn.InstanceNorm2d(8)), pictures, ""),
    "batch norm": (lambda: convolutional(nn.BatchNorm2d(8)), pictures, "statistics over the batch"),
    "batch norm that only evaluates": (lambda: convolutional(nn.BatchNorm2d(8).eval()), pictures, ""),
    "attention written out": (Attention, tokens, ""),
    "a token for each sequence": (Token, lambda: torch.randn(SAMPLES, 7, 8), ""),
    "layers of a transformer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True),
        lambda: torch.randn(SAMPLES, 5, 8),
        "",
    ),
    "attention over samples": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16),
        lambda: torch.randn(SAMPLES, 5, 8),
        "combines the samples",
    ),
    "samples mixed": (lambda: Mixed(lambda x: 0.3 * x + 0.7 * x[torch.randperm(len(x))]), numbers, "`index`"),
    "samples in another order": (lambda: Mixed(lambda x: x.roll(1, 0)), numbers, "`roll`"),
    "each less the mean": (lambda: Mixed(lambda x: x - x.mean(0)), numbers, "with its samples"),
    "sums along the batch": (lambda: Mixed(lambda x: x.cumsum(0)), numbers, "`cumsum`"),
    "products of all pairs": (lambda: Mixed(lambda x: x @ x.T @ x), numbers, "`mm`"),
    "one sample for all": (lambda: Mixed(lambda x: x + x[0]), numbers, "`select`"),
    "the batch twice": (lambda: Mixed(lambda x: torch.cat([x, x])), numbers, "`cat`"),
    "weights by place": (lambda: Mixed(lambda x: x * torch.arange(len(x))[:, None]), numbers, "not theirs"),
    "folded into features": (
        lambda: Mixed(lambda x: x.reshape(2, -1).repeat(3, 1)[:, :4]),
        numbers,
        "merges samples",
    ),
    "numbers of an extension": (
        lambda: Mixed(lambda x: x + torch.empty(SAMPLES, 4)),
        numbers,
        "a custom CUDA kernel",
    ),
}


def followed(probe: Any, batch: torch.Tensor, steps: Callable[[torch.Tensor], torch.Tensor]) -> str | None:
    """Why the loss that these steps compute from a batch is not proved to be a mean."""
    with probe("independence").Independence(SAMPLES) as following:
        following.follow(batch)
        loss = steps(batch)
    return following.why_not([loss])  # type: ignore[no-any-return]


def places() -> torch.Tensor:
    """Positions that are the same in each sample."""
    return torch.arange(4)[None].expand(SAMPLES, -1)


READS: dict[str, tuple[Callable[[torch.Tensor], Any], bool]] = {
    "a value": (lambda batch: bool((batch > 0).any()), False),
    "a number of them": (lambda batch: (batch > 9).sum().item(), False),
    "positions": (lambda _: bool((places().diff(dim=-1) != 1).cumsum(-1)[:, -1].eq(0).all()), True),
    "the last position": (lambda _: int((places() + 1).amax()), True),
    "how many there are": (lambda _: int(places().sum()), False),
    "positions and a value": (lambda batch: bool((places() > batch).all()), False),
    "random numbers": (lambda _: bool((torch.rand(SAMPLES, 4) > 2).any()), False),
    "a view that was written to": (
        lambda batch: (held := torch.zeros(SAMPLES, 4), held[:, :].copy_(batch), bool(held.any())),
        False,
    ),
    "where it is": (lambda batch: batch.is_pinned(), True),
}


@pytest.mark.parametrize("name", READS)
def test_only_what_is_the_same_for_each_batch_may_be_read(name: str, probe: Any) -> None:
    reads, harmless = READS[name]

    def steps(batch: torch.Tensor) -> torch.Tensor:
        reads(batch)
        return batch.pow(2).mean()

    found = followed(probe, torch.randn(SAMPLES, 4), steps)
    assert found is None if harmless else found is not None, found


@pytest.mark.parametrize(
    ("given", "divides", "proved"),
    [
        (True, lambda total, count, *_: total / count, True),
        (True, lambda total, count, *_: total / count.to(torch.float32), True),
        (False, lambda total, count, *_: total / count, False),
        # A mean over the labels of a micro-batch, whatever a library counts.
        (True, lambda total, _, own: total / own, False),
        (True, lambda total, *_: total, False),
    ],
)
def test_a_sum_is_divided_by_the_labels_of_a_whole_step(
    given: bool, divides: Callable[..., torch.Tensor], proved: bool, probe: Any
) -> None:
    batch, labels = torch.randn(SAMPLES, 4), torch.randint(0, 4, (SAMPLES,))
    with probe("independence").Independence(SAMPLES) as following:
        following.follow(batch)
        following.follow(labels)
        count, own = labels.ne(-100).sum(), labels.ne(-100).sum()
        if given:
            following.divides_by(count)
        total = nn.functional.cross_entropy(batch, labels, ignore_index=-100, reduction="sum")
        loss = divides(total, count, own)
    found = following.why_not([loss])
    assert (found is None) == proved, found


@pytest.mark.parametrize("name", MODELS)
def test_samples_are_apart_only_where_every_operation_leaves_them_so(name: str, probe: Any) -> None:
    build, inputs, why = MODELS[name]
    model = build()
    found = followed(probe, inputs(), lambda batch: model(batch).pow(2).mean())
    assert (found is not None and why in found) if why else found is None, found
