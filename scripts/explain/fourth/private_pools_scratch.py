"""Scratch tensors of a preprocessing come from a MemPool, whose memory nobody else gets when they are gone.

cause: private-pools
line: use_mem_pool|torch.empty|torch.rand|scratch
"""

import torch
from torch import nn

pool = torch.cuda.MemPool()


def statistics():
    with torch.cuda.use_mem_pool(pool):
        scratch = torch.rand(200, 1024, 1024, device="cuda")
        return scratch.mean().item(), scratch.square().mean().item()


mean, square = statistics()
model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(10))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = ((model(torch.randn(32_768, 1024, device="cuda")) - mean) / square).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
