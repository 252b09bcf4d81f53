"""Training that fails for a reason of its own, in its second step."""

import argparse
import os
import signal
import sys

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=["exception", "status", "signal"], default="exception")
    parser.add_argument("--status", type=int, default=7)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(64, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        if step == 1:
            print("this run is about to fail", file=sys.stderr, flush=True)
            if args.how == "status":
                sys.exit(args.status)
            if args.how == "signal":
                os.kill(os.getpid(), signal.SIGSEGV)
            raise ValueError("the labels of batch 1 are missing")
        loss = model(torch.randn(8, 64).to(device)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
