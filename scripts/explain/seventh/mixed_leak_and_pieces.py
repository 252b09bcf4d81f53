"""Pictures of changing size are trained on, and a part of each batch's features is kept for a plot.

cause: leaking|fragmented
line: shown.append|features[|.clone()|.detach()
remedy: keep-on-cpu|expandable-segments
"""

import torch
from torch import nn

body = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU()).cuda()
head = nn.Conv2d(32, 4, 1).cuda()
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()])
shown = []
for step in range(90):
    side = 224 + 32 * (step % 7)
    features = body(torch.rand(12, 3, side, side, device="cuda"))
    loss = head(features).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shown.append(features[:4].detach().clone())
