"""Two pieces of advice at once: expandable segments and max_split_size_mb, which do not go together.

cause: setting-that-hurts
line:
settings: expandable_segments:True,max_split_size_mb:32
"""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    rows = 33_500 + 2_400 * (step % 19)
    x = torch.randn(rows, 1024, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del x, loss
