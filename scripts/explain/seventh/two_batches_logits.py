"""Binary masks of aerial images. Everything that a step made is in variables of the module's scope.

cause: two-batches-alive
line: probabilities =|logits =|model(|predictions =
remedy: drop-variables
"""

import torch
import torch.nn.functional as F
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(24, 21, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    images = torch.randn(21, 3, 512, 512, device="cuda")
    masks = torch.zeros(21, 512, 512, dtype=torch.long, device="cuda")
    logits = model(images)
    loss = F.cross_entropy(logits, masks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        probabilities = logits.softmax(dim=1)
        predictions = probabilities.argmax(dim=1)
        accuracy = (predictions == masks).float().mean().item()
    print(step, loss.item(), accuracy)
