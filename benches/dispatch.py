"""Compares a virtual step's cost with PyTorch's own dispatch: the same training step on the `meta` device.

    memfit run --gpu a100-80gb --steps 0 --show-output -- python benches/dispatch.py

On `meta` PyTorch does all the host work of a step (modules, autograd, the dispatcher, shapes) and nothing
else. `virtual` is the virtual GPU alone, `watched` the virtual GPU as `memfit run` uses it. Each runs in a
process of its own. CPU time of the whole process is counted, so that other load changes little.

PyTorch itself is slow on `meta`, where it computes the shapes of many operators in Python. So `report.py`
also runs the virtual GPU alone with its clock stopped (`memfit run --clock instant … dispatch.py --ways
virtual`), which adds little to PyTorch's own work for a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from unwatched import environment

WAYS = ("meta", "virtual", "watched")


def resnet(device: Any) -> tuple[Any, Callable[[Any], Any]]:
    import torch
    from torch import nn
    from torchvision.models import resnet50

    images = torch.empty(64, 3, 224, 224, device=device)
    labels = torch.zeros(64, dtype=torch.long, device=device)
    loss = nn.CrossEntropyLoss()
    return resnet50(), lambda model: loss(model(images), labels)


def gpt(device: Any) -> tuple[Any, Callable[[Any], Any]]:
    import torch
    from torch import nn

    # Attention is written out: on `meta` PyTorch would take the plain form, on a card a fused kernel.
    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            scores = (q @ k.transpose(-2, -1)).softmax(-1)
            x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, width))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    width, vocabulary = 768, 32000
    model = nn.Sequential(
        nn.Embedding(vocabulary, width),
        *[Block(width, 12) for _ in range(12)],
        nn.LayerNorm(width),
        nn.Linear(width, vocabulary),
    )
    tokens = torch.zeros(4, 512, dtype=torch.long, device=device)

    def loss(model: Any) -> Any:
        return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return model, loss


def perceptron(device: Any) -> tuple[Any, Callable[[Any], Any]]:
    import torch
    from torch import nn

    layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(50)]
    rows = torch.empty(32, 256, device=device)
    return nn.Sequential(*layers), lambda model: model(rows).sum()


NETWORKS = {"ResNet-50": resnet, "GPT, 12 layers": gpt, "perceptron, 50 layers": perceptron}


def measure(name: str, way: str, count: int) -> dict[str, float]:
    import torch

    device = torch.device("meta" if way == "meta" else "cuda")
    with device:
        model, loss = NETWORKS[name](device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    times = []
    for _ in range(count):
        start = time.process_time()
        loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append((time.process_time() - start) * 1000)
    settled = times[count // 3 :]
    return {"median_ms": statistics.median(settled), "least_ms": min(settled)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--network", choices=NETWORKS)
    parser.add_argument("--as", dest="way", choices=WAYS)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(measure(args.network, args.way, args.steps)), flush=True)
        return
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in NETWORKS:
        for way in args.ways:
            command = [sys.executable, __file__, "--as", way, "--network", name, "--steps", str(args.steps)]
            env = None if way == "watched" else environment()
            printed = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
            results.setdefault(name, {})[way] = json.loads(printed.splitlines()[-1])
        print(f"{name}: {results[name]}", flush=True)
    print("dispatch: " + json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
