"""The scores of a step stay in a variable of the loop until those of the next one are there, and the images
beside them.

cause: two-batches-alive
line: scores = model(images)|images = |outputs = model(
"""

import torch
from torch import nn
from torch.nn import functional as F


class Upscaler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 24, 3, padding=1)
        self.body = nn.ModuleList(nn.Conv2d(24, 24, 3, padding=1) for _ in range(6))
        self.tail = nn.Conv2d(24, 3, 3, padding=1)

    def forward(self, images):
        features = self.head(images)
        for layer in self.body:
            features = torch.tanh(layer(features))
        return self.tail(features)


model = Upscaler().cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    images = torch.rand(14, 3, 256, 256, device="cuda")
    outputs = model(images)
    loss = F.l1_loss(outputs, images) + model(images.flip(3)).abs().mean() * 0
    if step % 2:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(step, float(loss.detach()))
