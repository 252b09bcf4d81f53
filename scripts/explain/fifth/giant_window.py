"""Sliding windows over long signals, unfolded into one tensor.

cause: giant-request
line: unfold(|.contiguous()|windows
"""

import torch
from torch import nn

encoder = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 16)).cuda()
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01)
for length in (4_000, 8_000, 60_000):
    signals = torch.randn(32, length, device="cuda")
    windows = signals.unfold(1, 512, 1).contiguous()
    loss = encoder(windows).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(length, loss.item())
