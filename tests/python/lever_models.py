"""Small models that levers are applied to, and trainings of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from memfit._levers import Target
from torch import nn
from torch.nn import functional

torch.set_num_threads(1)
CLASSES, WIDTH, LENGTH = 5000, 16, 12


class Attention(nn.Module):
    """Attention written out, as people write it."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (each.view(batch, length, 2, width // 2).transpose(1, 2) for each in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / (width // 2) ** 0.5)
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        weights = self.drop(functional.softmax(scores, dim=-1))
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention(dropout)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH), nn.Dropout(dropout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Language(nn.Module):
    """A small language model with a large vocabulary."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Pictures(nn.Module):
    """Residual blocks with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.body = nn.Sequential(
            *(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(2))
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3)))


def language_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens)
    return functional.cross_entropy(
        logits[:, :-1].float().reshape(-1, logits.size(-1)), tokens[:, 1:].flatten(), ignore_index=3
    )


def picture_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


TOKENS = torch.randint(0, CLASSES, (4, LENGTH), generator=torch.Generator().manual_seed(5))
PICTURES = (
    torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(6)),
    torch.tensor([0, 1, 2, 3]),
)
Make = Callable[[nn.Module], torch.optim.Optimizer]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def target_of(model: nn.Module, make: Make = adam) -> Target:
    pictures = isinstance(model, Pictures)
    return Target(model, [make(model)], picture_loss if pictures else language_loss)


def train(target: Target, steps: int = 2) -> list[float]:
    """Train like the code that applies levers; return the loss of each step."""
    torch.manual_seed(11)
    losses = []
    batch: Any = PICTURES if isinstance(target.model, Pictures) else TOKENS
    for _ in range(steps):
        assert target.loss is not None
        with target.around():
            loss = target.loss(target.model, target.prepare(target.arrive(batch)))
        loss.backward()
        for optimizer in target.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def traces(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return everything that a lever could leave behind on a model and its optimizer."""
    found: list[Any] = [type(optimizer), sorted(optimizer.__dict__), len(optimizer.param_groups)]
    found += [sorted(group) for group in optimizer.param_groups]
    found += [[id(each) for each in group["params"]] for group in optimizer.param_groups]
    found += [len(optimizer._optimizer_state_dict_post_hooks)]
    for name, module in model.named_modules():
        hooks = [len(held) for key, held in sorted(module.__dict__.items()) if key.endswith("_hooks")]
        found.append((name, type(module), sorted(module.__dict__), hooks, module._compiled_call_impl is None))
    for name, parameter in model.named_parameters():
        hooks = len(getattr(parameter, "_post_accumulate_grad_hooks", None) or ())
        found.append(
            (name, id(parameter), parameter.stride(), parameter.dtype, parameter.requires_grad, hooks)
        )
    return found


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def beside_a_plain_one() -> tuple[Target, Target, list[Any]]:
    """A training to put levers on, the same trained without them, and what there is to be seen of the first
    before.
    """
    torch.manual_seed(0)
    model = Language(0.0)
    plain = target_of(copy.deepcopy(model), sgd)
    train(plain)
    target = target_of(model, sgd)
    return target, plain, traces(model, target.optimizers[0])


def saved_bytes(run: Callable[[], object]) -> int:
    """Bytes that autograd saves for the backward pass."""
    sizes: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(sizes)
