"""Large blocks may not be split and may be handed out for far smaller requests; the settings were a guess.

cause: setting-that-hurts
line: PYTORCH_CUDA_ALLOC_CONF
remedy: drop-setting
"""

import os

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:32,max_non_split_rounding_mb:1024")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402


def normalize(images):
    images = images.cuda().expand(-1, 3, -1, -1).float()
    return (images - images.mean((2, 3), keepdim=True)) / images.std((2, 3), keepdim=True)


class Shallow(nn.Module):
    def __init__(self):
        super().__init__()
        self.reduce = nn.Conv2d(3, 16, 3, 2, 1)
        self.blocks = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1) for _ in range(10)])
        self.out = nn.Linear(16, 14)

    def forward(self, x):
        x = self.reduce(x)
        for block in self.blocks:
            x = x + F.relu(block(x))
        return self.out(x.mean((2, 3)))


model = Shallow().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for step in range(8):
    xrays = torch.zeros(32, 1, 928, 928, dtype=torch.uint8)
    findings = torch.zeros(32, 14, device="cuda")
    loss = F.binary_cross_entropy_with_logits(model(F.avg_pool2d(normalize(xrays), 2)), findings)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
