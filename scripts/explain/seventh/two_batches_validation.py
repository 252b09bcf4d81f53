"""The validation of larger pictures begins while the last training batch and its outputs are still in
variables.

cause: two-batches-alive
line: output = |outputs = |model(|features =
remedy: drop-variables
"""

import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)).cuda()
head = nn.Conv2d(32, 1, 1).cuda()
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
for epoch in range(2):
    for step in range(3):
        x = torch.randn(44, 3, 288, 288, device="cuda")
        features = model(x)
        output = head(features)
        loss = output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        big = torch.randn(42, 3, 448, 448, device="cuda")
        score = head(model(big)).mean().item()
    print(epoch, score)
