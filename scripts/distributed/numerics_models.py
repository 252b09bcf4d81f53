"""Models as people write them, for `numerics.py`: each with its batches and its loss."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

# The vocabulary can be divided over 2, 4 and 8 ranks.
VOCABULARY, LENGTH, CLASSES = 40, 6, 5
# The last batch is ragged: with eight ranks, most of them have no sample of it.
SIZES = (8, 7, 8, 3, 8, 2)

Batch = tuple[torch.Tensor, torch.Tensor]


class Attention(nn.Module):
    """Attention with one matrix each for query, key and value, and a norm of the query's heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width // heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, width = x.shape

        def divided(layer: nn.Module) -> torch.Tensor:
            return layer(x).view(samples, length, self.heads, width // self.heads).transpose(1, 2)

        found = functional.scaled_dot_product_attention(
            self.norm(divided(self.query)), divided(self.key), divided(self.value), is_causal=True
        )
        return self.out(found.transpose(1, 2).reshape(samples, length, width))


class Block(nn.Module):
    """A block of a decoder with a gated MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.gate, self.up = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        h = self.between(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """A decoder whose head may be its embedding, with a table of positions in a buffer."""

    def __init__(self, width: int = 16, heads: int = 8, blocks: int = 2, *, tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.register_buffer("places", torch.randn(LENGTH, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Patches(nn.Module):
    """Convolutions with a frozen stem, residual blocks, and an auxiliary head that no step uses."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1).requires_grad_(False)
        self.stages = nn.Sequential(
            *[
                nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(2, width), nn.GELU())
                for _ in range(3)
            ]
        )
        self.auxiliary = nn.Linear(width, CLASSES)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.stages(self.stem(pictures)).mean((2, 3)))


def llama() -> nn.Module:
    """A model of Transformers, with its own tensor-parallel plan and grouped queries."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=8,
            max_position_embeddings=16,
            attn_implementation="sdpa",
        )
    )


def gpt2() -> nn.Module:
    """GPT-2 of Transformers, whose head is its embedding, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )
    )  # fmt: skip


class Encoder(nn.Module):
    """PyTorch's own encoder, without dropout."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(tokens)))


def tokens(dtype: torch.dtype) -> list[Batch]:  # noqa: ARG001
    """Sequences; of the labels, some are ignored, more in some samples than in others."""
    generator = torch.Generator().manual_seed(5)
    made = []
    for size in SIZES:
        inputs = torch.randint(0, VOCABULARY, (size, LENGTH), generator=generator)
        labels = torch.randint(0, VOCABULARY, (size, LENGTH), generator=generator)
        ignored = torch.rand((size, LENGTH), generator=generator) < torch.linspace(0.1, 0.8, size)[:, None]
        labels[ignored] = -100
        made.append((inputs, labels))
    return made


def pictures(dtype: torch.dtype) -> list[Batch]:
    """Images and their classes."""
    generator = torch.Generator().manual_seed(5)
    return [
        (
            torch.randn(size, 3, 6, 6, generator=generator, dtype=torch.float64).to(dtype),
            torch.randint(0, CLASSES, (size,), generator=generator),
        )
        for size in SIZES
    ]


def summed(model: nn.Module, batch: Batch) -> Any:
    """The sum over the labels that are not ignored, and their number."""
    inputs, labels = batch
    outputs = model(inputs)
    logits = getattr(outputs, "logits", outputs)
    total = functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), ignore_index=-100, reduction="sum"
    )
    return total, (labels != -100).sum()


def mean(model: nn.Module, batch: Batch) -> Any:
    """A mean over samples."""
    return functional.cross_entropy(model(batch[0]), batch[1])


@dataclass(frozen=True)
class Kind:
    """A model with its data and its loss."""

    build: Callable[[], nn.Module]
    batches: Callable[[torch.dtype], list[Batch]]
    loss: Callable[[nn.Module, Batch], Any]
    # Tensor parallelism applies to it.
    tensor: bool
    # The number of its repeated blocks.
    blocks: int = 2


KINDS = {
    "decoder": Kind(Decoder, tokens, summed, True),
    "untied": Kind(functools.partial(Decoder, tied=False), tokens, summed, True),
    "deep": Kind(functools.partial(Decoder, blocks=8), tokens, summed, True, 8),
    "llama": Kind(llama, tokens, summed, True),
    "gpt2": Kind(gpt2, tokens, summed, False),
    "encoder": Kind(Encoder, tokens, summed, False),
    "patches": Kind(Patches, pictures, mean, False, 3),
}
