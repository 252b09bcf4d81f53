"""All rays of a picture go through the radiance field at once.

cause: too-big
line: self.layers(x)|density, colour = |torch.cat([x, skip]|F.relu(layer(x))
remedy: checkpointing|micro-batch|smaller-batch|activation-offload|autocast-bf16|autocast-fp16
remedy: activation-budget
false: no-grad|drop-variables|keep-on-cpu|release-graph|fused-optimizer
"""

import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("cuda")


def encode(x, levels):
    freq = 2.0 ** torch.arange(levels, device=x.device) * torch.pi
    angles = x[..., None] * freq
    return torch.cat([x, angles.sin().flatten(-2), angles.cos().flatten(-2)], dim=-1)


class RadianceField(nn.Module):
    def __init__(self, width=256, depth=8):
        super().__init__()
        first = 3 + 3 * 2 * 10
        self.layers = nn.ModuleList(
            nn.Linear(first if i == 0 else width + first if i == 5 else width, width) for i in range(depth)
        )
        self.sigma = nn.Linear(width, 1)
        self.rgb = nn.Sequential(
            nn.Linear(width + 3 + 3 * 2 * 4, 128), nn.ReLU(), nn.Linear(128, 3), nn.Sigmoid()
        )

    def forward(self, points, directions):
        skip = x = encode(points, 10)
        for i, layer in enumerate(self.layers):
            if i == 5:
                x = torch.cat([x, skip], dim=-1)
            x = F.relu(layer(x))
        return F.softplus(self.sigma(x))[..., 0], self.rgb(torch.cat([x, encode(directions, 4)], dim=-1))


def render(field, origins, directions, samples=96):
    t = torch.linspace(2.0, 6.0, samples, device=origins.device)
    points = origins[:, None] + directions[:, None] * t[:, None]
    density, colour = field(points, directions[:, None].expand_as(points))
    alpha = 1 - torch.exp(-density * (t[1] - t[0]))
    free = torch.cumprod(1 - alpha + 1e-10, dim=-1)
    weights = alpha * torch.cat([torch.ones_like(free[:, :1]), free[:, :-1]], dim=-1)
    return (weights[..., None] * colour).sum(1)


field = RadianceField().to(device)
optimizer = torch.optim.Adam(field.parameters(), lr=5e-4)
for step in range(20):
    rays = 4096
    origins = torch.randn(rays, 3, device=device)
    directions = F.normalize(torch.randn(rays, 3, device=device), dim=-1)
    target = torch.rand(rays, 3, device=device)
    loss = F.mse_loss(render(field, origins, directions), target)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
