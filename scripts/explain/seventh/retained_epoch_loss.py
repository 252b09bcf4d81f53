"""The epoch's loss is summed to be printed, as a tensor.

cause: retained-graph
line: epoch_loss +=|epoch_loss = |model(
remedy: release-graph
"""

import torch
from torch import nn
from torchvision.models import mobilenet_v2

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = mobilenet_v2(weights=None, num_classes=10).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)


def regularizer():
    return sum(p.abs().sum() for p in model.parameters())


for epoch in range(3):
    epoch_loss = 0.0
    for step in range(30):
        images = torch.randn(8, 3, 224, 224, device=device)
        labels = torch.randint(0, 10, (8,), device=device)
        with torch.no_grad():
            pass
        optimizer.zero_grad()
        loss = criterion(model(images), labels) + 1e-5 * regularizer()
        loss.backward()
        optimizer.step()
        check = criterion(model(images), labels)
        epoch_loss += check
    print(f"epoch {epoch}: {epoch_loss / 30:.4f}")
