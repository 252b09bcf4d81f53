"""A study of gradient noise: the gradients of every step are kept on the card for the statistics at the end.

cause: leaking
line: self.history.append(|p.grad.detach().clone()|recorder.record(
remedy: keep-on-cpu
"""

import torch
from torch import nn


class GradientRecorder:
    def __init__(self, module):
        self.module = module
        self.history = []

    def record(self):
        self.history.append([p.grad.detach().clone() for p in self.module.parameters()])

    def noise_scale(self):
        small = torch.stack([torch.cat([g.flatten() for g in grads]) for grads in self.history])
        return small.var(0).sum() / small.mean(0).square().sum()


class Mixer(nn.Module):
    def __init__(self, patches=64, dim=512, depth=8):
        super().__init__()
        self.token = nn.ModuleList([self.mlp(patches, 256) for _ in range(depth)])
        self.channel = nn.ModuleList([self.mlp(dim, 1024) for _ in range(depth)])
        self.head = nn.Linear(dim, 10)

    @staticmethod
    def mlp(dim, hidden):
        return nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x):
        for token, channel in zip(self.token, self.channel, strict=True):
            x = x + token(x.transpose(1, 2)).transpose(1, 2)
            x = x + channel(x)
        return self.head(x.mean(1))


model = Mixer().cuda()
recorder = GradientRecorder(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(200):
    x, y = torch.randn(64, 64, 512, device="cuda"), torch.randint(10, (64,), device="cuda")
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    recorder.record()
    optimizer.step()
print("noise scale", recorder.noise_scale().item())
