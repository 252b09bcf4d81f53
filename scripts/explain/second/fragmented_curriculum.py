"""Sequences get longer; a momentum queue of keys (as in MoCo, but a list) of a bounded number of batches.

cause: fragmented
line:
"""

from collections import deque

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(64, 192, batch_first=True)
        self.project = nn.Linear(192, 192)

    def forward(self, x):
        return self.project(self.rnn(x)[0])


def keys_of(features):
    return features.detach()[:, :96].contiguous()


def main():
    encoder = Encoder().cuda()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
    queue = deque(maxlen=180)
    for step in range(320):
        batch = torch.randn(24, 150 + 5 * step, 64, device="cuda")
        features = encoder(batch)
        loss = -features.logsumexp(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue.append(keys_of(features))
        del batch, features, loss


if __name__ == "__main__":
    main()
