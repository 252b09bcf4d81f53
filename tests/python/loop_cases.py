"""Training loops of many kinds, for `test_step_equivalence.py`: models, batches and losses as people write
them.

Whether a batch of a loop may be divided is not written here: the test computes it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from loop_losses import (
    advantages,
    balanced,
    barlow,
    by_rows,
    codes,
    detected,
    detected_sums,
    dice,
    discrepancy,
    distilled,
    entropy,
    focal,
    hard_triplets,
    inner_step,
    joined,
    joined_sum,
    judged,
    masked,
    mixed,
    packed,
    packed_sums,
    pairs,
    penalty,
    per_token,
    preferred,
    routed,
    simple,
    supervised,
    transcribed,
    variational,
    vicreg,
    views,
    with_hidden,
    with_memory,
    with_teacher,
)
from loop_models import (
    Adversaries,
    Averaged,
    Drawing,
    Experts,
    Packed,
    Queued,
    Remembering,
    Tied,
    array_weights,
    boxes,
    full_tokens,
    masked_rows,
    named,
    pictures,
    ragged,
    rows,
    samples,
    time_major,
    tokens,
    weighted,
)
from torch import nn
from torch.nn import functional
from training import Convolutional, Normalised, Perceptron, Tagger, Transformer

SIZES = (8, 8, 5)


@dataclass
class Loop:
    """A training: what makes its model, its batches, and its loss function."""

    build: Callable[[], nn.Module]
    data: Callable[[torch.Generator, int], Any]
    loss: Callable[[nn.Module], Callable[[nn.Module, Any], Any]]
    settings: dict[str, Any] = field(default_factory=dict)


LOOPS: dict[str, Loop] = {
    "a mean": Loop(Perceptron, rows, simple(entropy)),
    "smoothed labels": Loop(Perceptron, rows, simple(entropy, label_smoothing=0.1)),
    "squares": Loop(
        Perceptron, rows, simple(lambda model, batch: functional.mse_loss(model(batch[0]), batch[0][:, :5]))
    ),
    "Huber": Loop(
        Perceptron, rows, simple(lambda model, batch: functional.huber_loss(model(batch[0]), batch[0][:, :5]))
    ),
    "a sum": Loop(Perceptron, rows, simple(entropy, reduction="sum")),
    "a sum over its number": Loop(
        Perceptron, rows, simple(lambda model, batch: entropy(model, batch, reduction="sum") / len(batch[0]))
    ),
    "a sum over a fixed number": Loop(
        Perceptron, rows, simple(lambda model, batch: entropy(model, batch, reduction="sum") / 8)
    ),
    "weights of classes": Loop(
        Perceptron, rows, simple(entropy, weight=torch.tensor([1.0, 5, 0.1, 2, 3], dtype=torch.float64))
    ),
    "an ignored class": Loop(Perceptron, rows, simple(entropy, ignore_index=3)),
    "weights of samples, over their number": Loop(
        Perceptron,
        weighted,
        simple(lambda model, batch: (entropy(model, batch, reduction="none") * batch[2]).mean()),
    ),
    "weights of samples, over their sum": Loop(
        Perceptron,
        weighted,
        simple(
            lambda model, batch: (entropy(model, batch, reduction="none") * batch[2]).sum() / batch[2].sum()
        ),
    ),
    "weights in NumPy": Loop(
        Perceptron,
        array_weights,
        simple(
            lambda model, batch: (entropy(model, batch, reduction="none") * torch.from_numpy(batch[2])).mean()
        ),
    ),
    "a mask": Loop(Perceptron, masked_rows, simple(masked)),
    "means of tokens": Loop(Tagger, tokens, simple(per_token)),
    "means of all tokens": Loop(Tagger, full_tokens, simple(per_token)),
    "sums of tokens": Loop(
        Tagger,
        tokens,
        simple(lambda model, batch: (per_token(model, batch, reduction="sum"), (batch[1] != -100).sum())),
    ),
    "dropout": Loop(lambda: Perceptron(0.5), rows, simple(entropy)),
    "attention with dropout": Loop(
        lambda: Transformer(0.3),
        full_tokens,
        simple(lambda model, batch: entropy(model, (batch[0], batch[1][:, 0]))),
    ),
    "convolution with dropout": Loop(lambda: Convolutional(0.5), pictures, simple(entropy)),
    "batch normalisation": Loop(Normalised, rows, simple(entropy)),
    "batch normalisation that rests": Loop(lambda: Normalised().eval(), rows, simple(entropy)),
    "spectral normalisation": Loop(
        lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 5))), rows, simple(entropy)
    ),
    "contrast by a product": Loop(
        Perceptron,
        rows,
        simple(
            lambda model, batch: functional.cross_entropy(
                codes(model, batch) @ codes(model, batch).T, torch.arange(len(batch[0]))
            )
        ),
    ),
    "contrast by einsum": Loop(Perceptron, rows, simple(supervised)),
    "contrast by similarity": Loop(
        Perceptron,
        rows,
        simple(
            lambda model, batch: functional.cross_entropy(
                functional.cosine_similarity(model(batch[0])[:, None], model(batch[0])[None], dim=2),
                torch.arange(len(batch[0])),
            )
        ),
    ),
    "contrast of views": Loop(Perceptron, rows, simple(views)),
    "contrast by rows": Loop(Perceptron, rows, simple(by_rows)),
    "hard triplets": Loop(Perceptron, rows, simple(hard_triplets)),
    "triplets": Loop(
        Perceptron,
        rows,
        simple(
            lambda model, batch: functional.triplet_margin_loss(
                model(batch[0]), model(batch[0] + 0.1), model(batch[0].flip(1))
            )
        ),
    ),
    "Barlow": Loop(Perceptron, rows, simple(barlow)),
    "VICReg": Loop(Perceptron, rows, simple(vicreg)),
    "BYOL": Loop(
        lambda: Averaged(moves=False),
        rows,
        simple(lambda model, batch: functional.mse_loss(*model(batch[0]))),
    ),
    "BYOL that moves in its forward": Loop(
        Averaged, rows, simple(lambda model, batch: functional.mse_loss(*model(batch[0])))
    ),
    "momentum contrast": Loop(
        Queued, rows, simple(lambda model, batch: functional.cross_entropy(*model(batch[0])))
    ),
    "a mean teacher in the loss": Loop(Perceptron, rows, with_memory),
    "a discrepancy": Loop(Perceptron, rows, simple(discrepancy)),
    "Dice of all": Loop(Perceptron, rows, simple(dice)),
    "focal": Loop(Perceptron, rows, simple(focal)),
    "normalised advantages": Loop(Perceptron, rows, simple(advantages)),
    "preferences": Loop(Perceptron, rows, simple(preferred)),
    "gradient penalty": Loop(Perceptron, rows, simple(penalty)),
    "an inner step": Loop(Perceptron, rows, simple(inner_step)),
    "distillation": Loop(Perceptron, rows, with_teacher),
    "distillation by oneself": Loop(
        Perceptron, rows, lambda model: partial(distilled, teacher=copy.deepcopy(model))
    ),
    "transcription": Loop(Tagger, full_tokens, simple(transcribed)),
    "mixup": Loop(Perceptron, rows, simple(mixed)),
    "weights from counts": Loop(Perceptron, rows, simple(balanced)),
    "variational": Loop(Perceptron, rows, simple(variational)),
    "experts": Loop(Experts, rows, simple(routed, weight=0.0)),
    "balanced experts": Loop(Experts, rows, simple(routed, weight=0.1)),
    "a judge": Loop(Adversaries, rows, simple(judged)),
    "a judge of normalised pictures": Loop(lambda: Adversaries(norm=True), rows, simple(judged)),
    "tied weights": Loop(Tied, full_tokens, simple(per_token)),
    "sparse gradients": Loop(lambda: Tied(sparse=True), full_tokens, simple(per_token)),
    "a generator of its own": Loop(Drawing, rows, simple(entropy)),
    "a hidden state in the model": Loop(Remembering, rows, simple(entropy)),
    "a hidden state around the loss": Loop(Perceptron, rows, with_hidden),
    "time first": Loop(
        Tagger, time_major, simple(lambda model, batch: per_token(model, (batch[0].T, batch[1].T)))
    ),
    "time first, and said": Loop(
        Tagger,
        time_major,
        simple(lambda model, batch: per_token(model, (batch[0].T, batch[1].T))),
        {"batch_dim": 1},
    ),
    "time first, recurrent": Loop(Tagger, time_major, simple(lambda model, batch: per_token(model, batch))),
    "pairs as they come": Loop(Perceptron, samples, simple(pairs)),
    "sequences as they come": Loop(Tagger, ragged, simple(joined)),
    "sums of sequences": Loop(Tagger, ragged, simple(joined_sum)),
    "boxes": Loop(Perceptron, boxes, simple(detected)),
    "sums of boxes": Loop(Perceptron, boxes, simple(detected_sums)),
    "packed sequences": Loop(Packed, named, simple(packed)),
    "sums of packed sequences": Loop(Packed, named, simple(packed_sums)),
    "weight decay in the loss": Loop(
        Perceptron,
        rows,
        simple(
            lambda model, batch: (
                entropy(model, batch) + 1e-2 * sum(each.pow(2).sum() for each in model.parameters())
            )
        ),
    ),
    "a root": Loop(
        Perceptron,
        rows,
        simple(lambda model, batch: functional.mse_loss(model(batch[0]), batch[0][:, :5]).sqrt()),
    ),
    "the largest": Loop(
        Perceptron, rows, simple(lambda model, batch: entropy(model, batch, reduction="none").max())
    ),
    "the worst half": Loop(
        Perceptron,
        rows,
        simple(
            lambda model, batch: (
                entropy(model, batch, reduction="none").topk(len(batch[0]) // 2).values.mean()
            )
        ),
    ),
    "two losses": Loop(
        Perceptron,
        rows,
        simple(lambda model, batch: {"one": entropy(model, batch), "size": model(batch[0]).pow(2).mean()}),
    ),
    "a middle": Loop(
        Perceptron, rows, simple(lambda model, batch: entropy(model, batch, reduction="none").median())
    ),
}

# The parts of random loops.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, torch.Tensor], torch.Tensor]]] = {
    "dense": (Perceptron, lambda model, inputs: model(inputs)),
    "dropout": (lambda: Perceptron(0.4), lambda model, inputs: model(inputs)),
    "normalised": (Normalised, lambda model, inputs: model(inputs)),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5)),
        lambda model, inputs: model(inputs),
    ),
    "recurrent": (
        lambda: nn.GRU(6, 5, batch_first=True),
        lambda model, inputs: model(inputs[:, None])[0][:, 0],
    ),
    "attention": (
        lambda: nn.TransformerEncoderLayer(6, 2, 8, 0.2, batch_first=True),
        lambda model, inputs: model(inputs[:, None].expand(-1, 3, -1))[:, 0, :5],
    ),
    "samples attend to samples": (
        lambda: nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True),
        lambda model, inputs: model(inputs[None])[0, :, :5],
    ),
}
PER_SAMPLE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "entropy": lambda found, labels: functional.cross_entropy(found, labels, reduction="none"),
    "squares": lambda found, labels: (found - functional.one_hot(labels, 5)).pow(2).mean(1),
    "margin": lambda found, labels: functional.multi_margin_loss(found, labels, reduction="none"),
    "sparse": lambda found, labels: found.abs().sum(1) * (labels > 1),
    "likelihood": lambda found, labels: functional.gaussian_nll_loss(
        found[:, 0], labels.double(), found[:, 1].exp(), reduction="none"
    ),
}
TAKEN: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "mean": lambda losses, _: losses.mean(),
    "sum": lambda losses, _: losses.sum(),
    "sum and count": lambda losses, _: (losses.sum(), len(losses)),
    "masked mean": lambda losses, labels: losses[labels != 2].mean(),
    "masked sum and count": lambda losses, labels: (losses[labels != 2].sum(), (labels != 2).sum()),
    "mean of what is positive": lambda losses, _: losses.sum() / (losses > 0).sum().clamp(min=1),
    "smooth maximum": lambda losses, _: losses.logsumexp(0),
    "softmax of losses": lambda losses, _: (losses * losses.detach().softmax(0)).sum(),
    "norm": lambda losses, _: losses.norm(),
    "less its spread": lambda losses, _: losses.mean() + 0.1 * losses.var(),
    "less the mean": lambda losses, _: (losses - losses.detach().mean()).abs().mean(),
    "by a half": lambda losses, _: 0.5 * losses.mean() + 0.5 * losses.sum() / len(losses),
    "clipped": lambda losses, _: losses.clamp(max=2).mean(),
    "per class": lambda losses, labels: torch.stack(
        [losses[labels == each].mean() for each in labels.unique()]
    ).mean(),
    "in Python": lambda losses, _: sum(losses) / len(losses),
}
