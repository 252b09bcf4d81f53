"""Training that waits for data which never comes."""

import threading

import torch
from torch import nn


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(64, 4).to(device)
    torch.optim.SGD(model.parameters(), lr=0.1)
    print("waiting for the first batch", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
