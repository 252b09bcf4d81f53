"""The last step's logits and pyramid stay in variables until the next ones exist.

cause: too-big
line: pyramid = |pyramid, heads = |level(|net(images)
remedy: checkpointing|activation-offload|micro-batch|smaller-batch|autocast-bf16|activation-budget
false: no-grad|release-graph|keep-on-cpu|fused-optimizer
"""

import torch
import torch.nn.functional as F
from torch import nn


class Pyramid(nn.Module):
    def __init__(self, c=64, levels=5):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, padding=1)
        self.levels = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for _ in range(levels))
        self.head = nn.Conv2d(c, 4, 1)

    def forward(self, x):
        maps = [F.relu_(self.stem(x))]
        for level in self.levels:
            maps.append(F.relu_(level(maps[-1])))
        return maps, [self.head(m) for m in maps]


net = Pyramid().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
for step in range(50):
    images, targets = torch.randn(14, 3, 256, 256, device="cuda"), torch.randn(14, 4, 256, 256, device="cuda")
    pyramid, heads = net(images)
    loss = sum(F.smooth_l1_loss(h, targets) for h in heads)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item(), pyramid[-1].abs().mean().item())
