"""Photos as the camera made them go to the card as floats, and are made small there.

cause: giant-request
line: .float()|.to(device|interpolate
"""

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"
model = nn.Sequential(
    nn.Conv2d(3, 32, 7, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    photos = torch.randint(0, 256, (24, 3, 3000, 4000), dtype=torch.uint8)
    photos = photos.float().to(device)
    photos = F.interpolate(photos, size=(224, 224))
    loss = F.cross_entropy(model(photos), torch.randint(0, 10, (24,), device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
