"""Training with torchao's float8 linear layers, scaled by tensor or by row."""

import argparse

import torch
from arithmetic import adam_moments, say, stored
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", choices=["tensorwise", "rowwise"], default="tensorwise")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()

    layers = [
        nn.Sequential(nn.Linear(args.width, args.width, bias=False), nn.GELU()) for _ in range(args.layers)
    ]
    model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
    convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(args.recipe))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    say(parameters=stored(model.parameters()), optimizer=adam_moments(model.parameters()))
    forward = torch.compile(model) if args.compile else model
    for step in range(args.steps):
        tokens = torch.randn(args.tokens, args.width, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        loss = forward(tokens).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
