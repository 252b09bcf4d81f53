"""Training whose speed NVIDIA has published, as in its examples: convolutional networks and BERT-Large.

python scripts/accuracy/published_training.py NETWORK --batch N --precision fp32|tf32|amp [--length N]
[--inference]

Networks: resnet50, resnext101-32x4d, bert-large. Data are made up, and on the card from the start.
"""

from __future__ import annotations

import argparse
import contextlib

import torch
import torchvision
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    """A layer of BERT as it was in 2019: attention spelled out, dropout everywhere."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (self.split(each(x)) for each in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 + mask
        mixed = self.dropout(scores.softmax(-1)) @ value
        x = self.norms[0](x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2))))
        return self.norms[1](x + self.dropout(self.shrink(functional.gelu(self.grow(x)))))


class Bert(nn.Module):
    """BERT-Large with its two pre-training heads; the decoder shares the embedding's weight."""

    def __init__(self, vocabulary: int = 30528, width: int = 1024, layers: int = 24, heads: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        self.kinds, self.norm = nn.Embedding(2, width), nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.transform, self.head_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.pooler, self.next = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = functional.dropout(self.norm(self.words(ids) + self.places(places) + self.kinds(kinds)), 0.1)
        for layer in self.layers:
            x = layer(x, mask)
        words = self.head_norm(functional.gelu(self.transform(x)))
        return functional.linear(words, self.words.weight, self.bias), self.next(self.pooler(x[:, 0]).tanh())


def images(name: str, batch: int, channels_last: bool) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The network, and a batch with its labels. NVIDIA's mixed precision was in NHWC, the others in NCHW."""
    if name == "resnet50":
        model = torchvision.models.resnet50()
    else:
        block = torchvision.models.resnet.Bottleneck
        model = torchvision.models.ResNet(block, [3, 4, 23, 3], groups=32, width_per_group=4)
    form = torch.channels_last if channels_last else torch.contiguous_format
    model = model.cuda().to(memory_format=form)
    data = torch.randn(batch, 3, 224, 224, device="cuda").contiguous(memory_format=form)
    return model, (data, torch.zeros(batch, dtype=torch.long, device="cuda"))


def words(batch: int, length: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    zeros = torch.zeros(batch, length, dtype=torch.long, device="cuda")
    mask = torch.zeros(batch, 1, 1, length, device="cuda")
    # Fifteen in a hundred words are to be guessed; of the others nothing is asked.
    labels = (
        torch.full((batch, length), -1, dtype=torch.long).index_fill(1, torch.arange(0, length, 7), 0).cuda()
    )
    return Bert().cuda(), (zeros, zeros, mask, labels, zeros[:, 0])


def loss_of(name: str, model: nn.Module, data: tuple[torch.Tensor, ...]) -> torch.Tensor:
    if name == "bert-large":
        ids, kinds, mask, labels, following = data
        guesses, sentences = model(ids, kinds, mask)
        loss = functional.cross_entropy(guesses.flatten(0, 1), labels.flatten(), ignore_index=-1)
        return loss + functional.cross_entropy(sentences, following)
    return functional.cross_entropy(model(data[0]), data[1], label_smoothing=0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("network", choices=["resnet50", "resnext101-32x4d", "bert-large"])
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--precision", choices=["fp32", "tf32", "amp"], required=True)
    parser.add_argument("--length", type=int, default=128)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.precision != "fp32"
    mixed = args.precision == "amp"
    is_text = args.network == "bert-large"
    model, data = words(args.batch, args.length) if is_text else images(args.network, args.batch, mixed)
    if is_text:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.256, momentum=0.875, weight_decay=3e-5)
    scaler = torch.amp.GradScaler("cuda", enabled=mixed)
    for _ in range(8):
        with torch.autocast("cuda", dtype=torch.float16) if mixed else contextlib.nullcontext():
            loss = loss_of(args.network, model, data)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    main()
