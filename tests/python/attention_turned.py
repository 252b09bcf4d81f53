"""Attention with transposed scores or weights, as convolutional networks have it."""

from __future__ import annotations

from collections.abc import Callable

import torch

LENGTH = 6
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
Seen = list[torch.Tensor]
Body = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Seen], torch.Tensor]


def product(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.transpose(-2, -1)


def of_channels(turn: Callable[[torch.Tensor], torch.Tensor]) -> Body:
    """Attention of a convolutional network, whose features are (samples, channels, places)."""

    def body(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
        queries, keys, values = (each.flatten(0, 1).transpose(1, 2).contiguous() for each in (q, k, v))
        weights = (torch.bmm(queries.permute(0, 2, 1), keys) * 0.5).softmax(dim=2)
        answer = torch.bmm(values, turn(weights))
        return answer.transpose(1, 2).unflatten(0, q.shape[:2])

    return body


def both_ways(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: Seen) -> torch.Tensor:
    weights = product(q, k).softmax(-1)
    turned = weights.mT
    seen.append(turned)
    return weights @ v + (v.mT @ turned).mT + turned @ v


def edited_then_turned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    scores = product(q, k)
    turned = scores.mT
    scores.mul_(0.5)
    return turned.mT.softmax(-1) @ v + (v.mT @ turned).mT


def turned_then_edited(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _seen: Seen) -> torch.Tensor:
    scores = product(q, k)
    scores.mT.masked_fill_(CAUSAL.T, float("-inf"))
    return scores.softmax(-1) @ v


#: Name, body, `True` if the attention kernels are used, `True` for a run under autocast.
TURNED: list[tuple[str, Body, bool, bool]] = [
    ("channels, transposed", of_channels(lambda w: w.transpose(1, 2)), True, False),
    (
        "channels, transposed by dimensions from the end",
        of_channels(lambda w: w.swapaxes(-1, -2)),
        True,
        False,
    ),
    ("channels, permuted", of_channels(lambda w: w.permute(0, 2, 1)), True, False),
    ("channels, permuted by a list", of_channels(lambda w: torch.permute(w, [0, 2, 1])), True, False),
    ("channels, as matrices", of_channels(lambda w: w.mT), True, False),
    ("channels, transposed three times", of_channels(lambda w: w.mT.mT.mT), True, False),
    ("channels, not transposed", of_channels(lambda w: w), False, False),
    ("channels, samples and places exchanged", of_channels(lambda w: w.mT.permute(0, 1, 2)), False, False),
    ("channels, scaled after the transposition", of_channels(lambda w: w.mT * 2.0), False, False),
    ("channels, autocast", of_channels(lambda w: w.permute(0, 2, 1)), True, True),
    ("weights and their transposition", both_ways, True, False),
    ("an edit after the transposition", edited_then_turned, True, False),
    ("an edit of the transposition", turned_then_edited, False, False),
]
