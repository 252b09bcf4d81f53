"""Loss functions of the training loops in `loop_cases.py`, as people write them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def entropy(model: nn.Module, batch: Any, **settings: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], **settings)


def codes(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.normalize(model(batch[0]), dim=1)


def per_token(model: nn.Module, batch: Any, **settings: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), **settings)


def views(model: nn.Module, batch: Any) -> torch.Tensor:
    """SimCLR's loss over two views of each sample."""
    both = torch.cat([codes(model, batch), codes(model, (batch[0] + 0.1, batch[1]))])
    similar = both @ both.T / 0.5
    similar = similar.masked_fill(torch.eye(len(both), dtype=torch.bool), -1e9)
    count = len(batch[0])
    partner = torch.cat([torch.arange(count) + count, torch.arange(count)])
    return functional.cross_entropy(similar, partner)


def hard_triplets(model: nn.Module, batch: Any) -> torch.Tensor:
    found = model(batch[0])
    apart = (found.unsqueeze(0) - found.unsqueeze(1)).pow(2).sum(2)
    same = batch[1].unsqueeze(0) == batch[1].unsqueeze(1)
    return (apart.masked_fill(~same, 0).amax(1) - apart.masked_fill(same, 1e9).amin(1) + 1).relu().mean()


def supervised(model: nn.Module, batch: Any) -> torch.Tensor:
    found = codes(model, batch)
    logits = torch.einsum("id,jd->ij", found, found) / 0.5
    same = (batch[1][:, None] == batch[1][None]).double()
    return -(logits.log_softmax(1) * same).sum(1).div(same.sum(1)).mean()


def by_rows(model: nn.Module, batch: Any) -> torch.Tensor:
    found = codes(model, batch)
    return torch.stack(
        [-(found[index] @ found.T).log_softmax(0)[index] for index in range(len(found))]
    ).mean()


def barlow(model: nn.Module, batch: Any) -> torch.Tensor:
    one, other = model(batch[0]), model(batch[0] + 0.1)
    product = one.T @ other / len(one)
    return (product - torch.eye(5, dtype=product.dtype)).pow(2).mean()


def vicreg(model: nn.Module, batch: Any) -> torch.Tensor:
    one, other = model(batch[0]), model(batch[0] + 0.1)
    spread = functional.relu(1 - one.std(0)).mean()
    return functional.mse_loss(one, other) + spread


def discrepancy(model: nn.Module, batch: Any) -> torch.Tensor:
    """MMD between outputs and a sample of normal numbers."""
    found = model(batch[0])
    other = batch[0][:, :5]

    def kernel(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        return torch.exp(-torch.cdist(one, two).pow(2)).mean()

    return kernel(found, found) - 2 * kernel(found, other) + kernel(other, other)


def dice(model: nn.Module, batch: Any) -> torch.Tensor:
    found, there = model(batch[0]).sigmoid(), batch[0][:, :5].gt(0).double()
    return 1 - (2 * (found * there).sum() + 1) / (found.sum() + there.sum() + 1)


def focal(model: nn.Module, batch: Any) -> torch.Tensor:
    losses = entropy(model, batch, reduction="none")
    return ((1 - (-losses).exp()) ** 2 * losses).mean()


def advantages(model: nn.Module, batch: Any) -> torch.Tensor:
    """PPO's clipped objective with advantages that are normalised over the batch."""
    scores = batch[0][:, 0]
    scores = (scores - scores.mean()) / (scores.std() + 1e-8)
    chosen = model(batch[0]).log_softmax(1).gather(1, batch[1][:, None]).squeeze(1)
    ratio = (chosen - chosen.detach() - 0.05).exp()
    return -torch.min(ratio * scores, ratio.clamp(0.8, 1.2) * scores).mean()


def preferred(model: nn.Module, batch: Any) -> torch.Tensor:
    """DPO: chosen and rejected answers, sample by sample."""
    one, other = model(batch[0])[:, 0], model(batch[0].flip(1))[:, 0]
    return -functional.logsigmoid(0.1 * (one - other)).mean()


def penalty(model: nn.Module, batch: Any) -> torch.Tensor:
    """WGAN-GP's penalty, with a gradient within the loss."""
    inputs = batch[0].clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return ((gradient.norm(dim=1) - 1) ** 2).mean()


def inner_step(model: nn.Module, batch: Any) -> torch.Tensor:
    """MAML with one inner step for each sample."""
    parameters = dict(model.named_parameters())

    def of_one(inputs: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        def loss(now: Any, shift: float) -> torch.Tensor:
            found = torch.func.functional_call(model, now, (inputs[None] + shift,))
            return functional.cross_entropy(found, label[None])

        gradients = torch.func.grad(loss)(parameters, 0.0)
        moved = {name: value - 0.1 * gradients[name] for name, value in parameters.items()}
        return loss(moved, 0.1)

    return torch.func.vmap(of_one)(batch[0], batch[1]).mean()


def distilled(model: nn.Module, batch: Any, teacher: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        target = teacher(batch[0]).softmax(1)
    return functional.kl_div(model(batch[0]).log_softmax(1), target, reduction="batchmean")


def transcribed(model: nn.Module, batch: Any) -> torch.Tensor:
    """CTC, whose mean is weighed by the lengths of targets."""
    found = model(batch[0]).log_softmax(2).transpose(0, 1)
    lengths = 1 + batch[1][:, 0] % 3
    return functional.ctc_loss(found, batch[1][:, :3].clamp(1, 4), torch.full((len(batch[0]),), 7), lengths)


def mixed(model: nn.Module, batch: Any) -> torch.Tensor:
    """Mixup within the batch."""
    order = torch.randperm(len(batch[0]))
    found = model(0.7 * batch[0] + 0.3 * batch[0][order])
    return 0.7 * functional.cross_entropy(found, batch[1]) + 0.3 * functional.cross_entropy(
        found, batch[1][order]
    )


def balanced(model: nn.Module, batch: Any) -> torch.Tensor:
    """Weights of classes from the batch's own counts."""
    weights = 1 / (torch.bincount(batch[1], minlength=5).double() + 1)
    return entropy(model, batch, weight=weights)


def variational(model: nn.Module, batch: Any) -> torch.Tensor:
    found = model(batch[0])
    mean, spread = found[:, :2], found[:, 2:4]
    code = mean + torch.randn_like(mean) * (spread / 2).exp()
    return functional.mse_loss(code, batch[0][:, :2]) - 0.5 * (1 + spread - mean**2 - spread.exp()).mean()


def routed(model: nn.Module, batch: Any, weight: float) -> torch.Tensor:
    found, gate = model(batch[0])
    return functional.cross_entropy(found, batch[1]) + weight * (gate.mean(0) ** 2).sum()


def judged(model: nn.Module, batch: Any) -> torch.Tensor:
    with torch.no_grad():
        made = model.make(batch[0])
    real = functional.softplus(-model.judge(batch[0][:, :5])).mean()
    return real + functional.softplus(model.judge(made)).mean()


def simple(function: Callable[[nn.Module, Any], Any], **settings: Any) -> Callable[[nn.Module], Any]:
    """A loss function without anything around it."""
    return lambda _: lambda model, batch: function(model, batch, **settings)


def masked(model: nn.Module, batch: Any) -> torch.Tensor:
    losses = entropy(model, batch, reduction="none")
    return (losses * batch[2]).sum() / batch[2].sum()


def with_hidden(_: nn.Module) -> Any:
    hidden = torch.zeros(5, dtype=torch.float64)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal hidden
        found = model(batch[0]) + hidden
        hidden = found.detach().mean(0)
        return functional.cross_entropy(found, batch[1])

    return loss


def with_teacher(model: nn.Module) -> Any:
    teacher = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.mul_(1.5)
    return lambda now, batch: distilled(now, batch, teacher)


def with_memory(model: nn.Module) -> Any:
    """A mean teacher that is moved in the loss function."""
    teacher = copy.deepcopy(model).requires_grad_(False)

    def loss(now: nn.Module, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            for one, other in zip(teacher.parameters(), now.parameters(), strict=True):
                one.mul_(0.9).add_(other, alpha=0.1)
            target = teacher(batch[0])
        return entropy(now, batch) + functional.mse_loss(now(batch[0]), target)

    return loss


def pairs(model: nn.Module, batch: Any) -> torch.Tensor:
    inputs, labels = torch.stack([each for each, _ in batch]), torch.stack([label for _, label in batch])
    return functional.cross_entropy(model(inputs), labels)


def joined(model: nn.Module, batch: Any) -> torch.Tensor:
    found = model(torch.cat(batch)[None])
    return functional.cross_entropy(found.flatten(0, 1), torch.cat(batch) % 5)


def joined_sum(model: nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
    return torch.stack(
        [functional.cross_entropy(model(each[None])[0], each % 5, reduction="sum") for each in batch]
    ).sum(), sum(len(each) for each in batch)


def detected(model: nn.Module, batch: Any) -> torch.Tensor:
    found = model(torch.stack(batch[0]))
    return torch.cat(
        [(each - target["boxes"]).abs().flatten() for each, target in zip(found, batch[1], strict=True)]
    ).mean()


def detected_sums(model: nn.Module, batch: Any) -> dict[str, Any]:
    found = model(torch.stack(batch[0]))
    apart = torch.cat(
        [(each - target["boxes"]).abs().flatten() for each, target in zip(found, batch[1], strict=True)]
    )
    return {"boxes": (apart.sum(), apart.numel()), "size": (found.pow(2).sum(), found.numel())}


def packed(model: nn.Module, batch: Any) -> torch.Tensor:
    lengths = batch["attention_mask"].sum(1)
    found = model(batch["input_ids"], lengths)
    labels = batch["labels"][:, : found.size(1)]
    return functional.cross_entropy(found.flatten(0, 1), labels.flatten())


def packed_sums(model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    found = model(batch["input_ids"], batch["attention_mask"].sum(1))
    labels = batch["labels"][:, : found.size(1)]
    return functional.cross_entropy(found.flatten(0, 1), labels.flatten(), reduction="sum"), (
        labels != -100
    ).sum()


def lovasz(model: nn.Module, batch: Any) -> torch.Tensor:
    """The Lovasz extension, which sorts the errors of all samples."""
    found, there = model(batch[0])[:, 0], (batch[1] > 1).double()
    errors, order = (1 - found * (2 * there - 1)).sort(descending=True)
    there = there[order]
    shared = there.sum() - there.cumsum(0)
    jaccard = 1 - shared / (there.sum() + (1 - there).cumsum(0)).clamp(min=1e-9)
    jaccard = torch.cat([jaccard[:1], jaccard[1:] - jaccard[:-1]])
    return (errors.relu() * jaccard).sum()


def ranked(model: nn.Module, batch: Any) -> torch.Tensor:
    """ListNet over the whole batch as one list."""
    return -(batch[0][:, 0].softmax(0) * model(batch[0])[:, 0].log_softmax(0)).sum()


def pairwise_ranked(model: nn.Module, batch: Any) -> torch.Tensor:
    score = model(batch[0])[:, 0]
    above = (batch[1][:, None] > batch[1][None]).double()
    return (functional.softplus(score[None] - score[:, None]) * above).sum() / above.sum().clamp(min=1)


def concordant(model: nn.Module, batch: Any) -> torch.Tensor:
    """Cox's partial likelihood, with the risk set of the batch."""
    risk = model(batch[0])[:, 0]
    order = batch[0][:, 1].argsort(descending=True)
    happened = (batch[1] > 1).double()[order]
    return -((risk[order] - risk[order].logcumsumexp(0)) * happened).sum() / happened.sum().clamp(min=1)


def explained(model: nn.Module, batch: Any) -> torch.Tensor:
    """The coefficient of determination, which has the batch's variance."""
    found, target = model(batch[0])[:, 0], batch[0][:, 1]
    return (found - target).pow(2).sum() / (target - target.mean()).pow(2).sum()
