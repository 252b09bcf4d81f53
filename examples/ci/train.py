"""A small training, whose peak is a reviewed number: see pyproject.toml."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
criterion = nn.CrossEntropyLoss()

for _ in range(10):
    inputs = torch.randn(256, 1024).cuda()
    labels = torch.randint(1000, (256,)).cuda()
    loss = criterion(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
