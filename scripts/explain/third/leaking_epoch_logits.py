"""For an AUC at the end of the epoch all pixel scores are collected, detached, but on the card.

cause: leaking
line: model(|sigmoid|.detach()
"""

import torch
from torch import nn

device = torch.device("cuda:0")
model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 1, 1)).to(
    device
)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()
for epoch in range(2):
    scores, truths = [], []
    for batch in range(300):
        scans = torch.randn(8, 1, 256, 256, device=device)
        masks = (scans > 0).float()
        logits = model(scans)
        loss = criterion(logits, masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scores += [torch.sigmoid(logits.detach())]
        truths += [masks]
    scores, truths = torch.cat(scores), torch.cat(truths)
    print(epoch, ((scores > 0.5) == truths.bool()).float().mean().item())
