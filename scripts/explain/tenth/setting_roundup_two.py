"""An allocator setting from a serving guide rounds each activation up by up to a half.

cause: setting-that-hurts
line: os.environ["PYTORCH_CUDA_ALLOC_CONF"]
remedy: drop-setting
false: checkpointing|no-grad|fused-optimizer|release-graph|keep-on-cpu|drop-variables
"""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "roundup_power2_divisions:2"

import torch
import torch.nn.functional as F
from torch import nn


class TCN(nn.Module):
    def __init__(self, inputs=40, c=256, depth=14, classes=61):
        super().__init__()
        self.inp = nn.Conv1d(inputs, c, 1)
        self.convs = nn.ModuleList(
            nn.Conv1d(c, c, 3, padding=2 ** (i % 6), dilation=2 ** (i % 6)) for i in range(depth)
        )
        self.out = nn.Conv1d(c, classes, 1)

    def forward(self, x):
        x = self.inp(x)
        for conv in self.convs:
            x = x + torch.tanh(conv(x))
        return self.out(x)


model = TCN().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(20):
    x = torch.randn(38, 40, 2000, device="cuda")
    y = torch.randint(0, 61, (38, 2000), device="cuda")
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
