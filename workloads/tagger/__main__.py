"""Train the tagger: python -m tagger"""

import argparse

import torch
import torch.nn.functional as F

from .model import Tagger


def main():
    parser = argparse.ArgumentParser(prog="tagger")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Tagger(5000, 17, args.width, args.layers, args.heads).to(device)
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        tokens = torch.randint(5000, (args.batch_size, args.sequence)).to(device)
        tags = torch.randint(17, (args.batch_size, args.sequence)).to(device)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
