"""A line from a shared server's wiki leaves the process a third of the card, although nobody else is there.

cause: setting-that-hurts
line: set_per_process_memory_fraction
"""

import torch
from torch import nn

torch.cuda.set_per_process_memory_fraction(0.33)
model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = model(torch.randn(16_384, 2048, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
