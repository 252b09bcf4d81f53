"""A transformer compiled by Inductor, in each of the ways that torch.compile offers."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary, width, layers, heads):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--mode",
        choices=["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"],
        default="default",
    )
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--fullgraph", action="store_true")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--compiled-optimizer", action="store_true")
    parser.add_argument("--compiled-autograd", action="store_true")
    parser.add_argument("--budget", type=float, help="the share of activations that may be kept")
    parser.add_argument("--fp32", action="store_true")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.budget is not None:
        torch._functorch.config.activation_memory_budget = args.budget
    torch._dynamo.config.compiled_autograd = args.compiled_autograd
    model = GPT(2048, args.width, args.layers, args.width // 64).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def loss_of(tokens):
        with torch.autocast(device, torch.bfloat16, enabled=not args.fp32):
            logits = model(tokens)
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())

    step_optimizer = optimizer.step
    if not args.eager:
        mode = None if args.mode == "default" else args.mode
        loss_of = torch.compile(
            loss_of, mode=mode, fullgraph=args.fullgraph, dynamic=True if args.dynamic else None
        )
        if args.compiled_optimizer:
            step_optimizer = torch.compile(optimizer.step)

    for step in range(args.steps):
        length = args.sequence + (16 * step if args.dynamic else 0)
        tokens = torch.randint(2048, (args.batch_size, length)).to(device)
        loss = loss_of(tokens)
        loss.backward()
        step_optimizer()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
