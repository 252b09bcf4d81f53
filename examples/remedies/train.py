"""A small GPT whose memory each remedy of docs/remedies/ changes by hand: one option for each.

python examples/remedies/train.py [--batch 16] [--accumulate 4] [--precision bf16] [--checkpoint] …
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

VOCABULARY, LENGTH, WIDTH, LAYERS, HEADS = 32000, 512, 768, 12, 12


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        query, key, value = (
            part.view(rows, length, HEADS, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.checkpointed = checkpointed

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            # Runs the block again in the backward pass instead of keeping what is inside it.
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of each batch")
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--optimizer", choices=["adamw", "sgd", "adafactor"], default="adamw")
    parser.add_argument("--evaluate", choices=["no", "sum-tensors", "sum-numbers", "no-grad"], default="no")
    args = parser.parse_args()

    model = GPT(args.checkpoint).cuda()
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "adafactor": torch.optim.Adafactor}
    optimizer = kind[args.optimizer](model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=args.precision == "fp16")
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(args.precision)

    for _ in range(args.steps):
        batch = torch.randint(VOCABULARY, (args.batch, LENGTH + 1))
        for part in batch.chunk(args.accumulate):
            tokens = part.cuda()
            with torch.autocast("cuda", half, enabled=half is not None):
                loss = model(tokens[:, :-1], tokens[:, 1:])
            # A part's loss is a mean over the part: weighted, they add up to the mean over the batch.
            scaler.scale(loss * (len(part) / len(batch))).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    if args.evaluate != "no":
        print(evaluate(model.eval(), args.batch, args.evaluate))


def evaluate(model: nn.Module, rows: int, way: str) -> float:
    total: torch.Tensor | float = 0.0
    with torch.set_grad_enabled(way != "no-grad"):
        for _ in range(4):
            tokens = torch.randint(VOCABULARY, (rows, LENGTH + 1)).cuda()
            loss = model(tokens[:, :-1], tokens[:, 1:])
            # A tensor keeps the graph of its batch, and all activations in it; a number keeps nothing.
            total = total + (loss if way == "sum-tensors" else loss.item())
    return float(total)


if __name__ == "__main__":
    main()
