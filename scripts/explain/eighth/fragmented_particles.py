"""A learned simulator on scenes with different numbers of particles, each rolled out for a matching time.

cause: fragmented
line:
remedy: expandable-segments|max-split-size
"""

import torch
from torch import nn

SCENES = {  # particles: steps of the rollout
    "dam": (160_000, 4),
    "drop": (88_000, 8),
    "wave": (46_000, 15),
}


class Simulator(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.encode = nn.Linear(6, width)
        self.message = nn.Linear(width, width)
        self.update = nn.Linear(width, width)
        self.decode = nn.Linear(width, 3)

    def interact(self, h, source, target):
        messages = torch.relu(self.message(h[source]))
        return torch.zeros_like(h).index_add_(0, target, messages)

    def forward(self, particles, source, target, steps):
        h = self.encode(particles)
        for _ in range(steps):
            h = h + self.update(self.interact(h, source, target))
        return self.decode(h)


def scene(count):
    particles = torch.randn(count, 6)
    source, target = torch.randint(count, (2, count))
    return particles.to("cuda"), source.to("cuda"), target.to("cuda")


model = Simulator().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for epoch in range(6):
    for name, (count, steps) in SCENES.items():
        particles, source, target = scene(count)
        acceleration = model(particles, source, target, steps)
        loss = acceleration.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, name, loss.item())
        del acceleration, loss
