"""A program that answers --help at once, since it imports torch only to train."""

import argparse
import json
import subprocess
import sys


def train(width, batch_size, steps):
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 1)).to(device)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    inputs = torch.randn(batch_size, width).to(device)
    targets = torch.randn(batch_size, 1).to(device)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    for step in range(steps):
        print(f"step {step} loss {optimizer.step(closure).item():.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    # Such programs ask other programs things before they start: here, an interpreter for its version.
    question = "import json, sys; print(json.dumps(sys.version_info[:2]))"
    version = json.loads(subprocess.check_output([sys.executable, "-c", question]))
    print("python", *version)
    train(args.width, args.batch_size, args.steps)


if __name__ == "__main__":
    main()
