"""The process was given half of the card when two people shared it; it is alone now.

cause: setting-that-hurts
line: set_per_process_memory_fraction
remedy: drop-setting
"""

import torch
from torch import nn
from torchvision.models import resnet18


def setup(fraction=0.5):
    torch.cuda.set_per_process_memory_fraction(fraction, 0)
    return torch.device("cuda:0")


device = setup()
model = resnet18(weights=None, num_classes=10).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(3):
    images = torch.randn(84, 3, 224, 224, device=device)
    labels = torch.randint(0, 10, (84,), device=device)
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
