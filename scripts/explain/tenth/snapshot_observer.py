"""An observer writes the snapshot in the moment that memory runs out, with C++ frames.

cause: too-big
line: level(x)|self.enter(|model(a, b)
remedy: checkpointing|activation-offload|micro-batch|smaller-batch|autocast-bf16|activation-budget
snapshot: oom.pickle
false: no-grad|release-graph|keep-on-cpu|fused-optimizer|drop-variables
"""

import torch
import torch.nn.functional as F
from torch import nn


def on_oom(device, alloc, device_alloc, device_free):
    torch.cuda.memory._dump_snapshot("oom.pickle")


class Pyramid(nn.Module):
    def __init__(self, c=32, levels=4):
        super().__init__()
        self.enter = nn.Conv2d(6, c, 3, padding=1)
        self.levels = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for _ in range(levels))
        self.flow = nn.Conv2d(c, 2, 3, padding=1)

    def forward(self, a, b):
        x = F.leaky_relu_(self.enter(torch.cat([a, b], dim=1)), 0.1)
        features = [x]
        for level in self.levels:
            x = F.leaky_relu_(level(x), 0.1)
            features.append(x)
        return self.flow(x), features


def photometric(flow, a, b):
    ys, xs = torch.meshgrid(torch.linspace(-1, 1, a.size(2)), torch.linspace(-1, 1, a.size(3)), indexing="ij")
    grid = torch.stack([xs, ys], dim=-1).to(a.device) + flow.permute(0, 2, 3, 1)
    return (F.grid_sample(b, grid, align_corners=True) - a).abs().mean()


torch.cuda.memory._record_memory_history(stacks="all")
torch._C._cuda_attach_out_of_memory_observer(on_oom)
model = Pyramid().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
smooth = 0.0
for step in range(30):
    a, b = torch.rand(11, 3, 384, 512, device="cuda"), torch.rand(11, 3, 384, 512, device="cuda")
    flow, features = model(a, b)
    loss = photometric(flow, a, b) + 1e-4 * sum(f.abs().mean() for f in features)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smooth = 0.9 * smooth + 0.1 * loss.item()
