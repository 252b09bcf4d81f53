"""Code copied from an inference server rounds every request to a power of two.

cause: setting-that-hurts
line: _set_allocator_settings(
remedy: drop-setting
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:1")


class CrossEncoder(nn.Module):
    def __init__(self, dim=1100, layers=11):
        super().__init__()
        self.inputs = nn.Linear(256, dim)
        self.layers = nn.ModuleList([nn.Linear(dim, dim) for _ in range(layers)])
        self.score = nn.Linear(dim, 1)

    def forward(self, pairs):
        x = self.inputs(pairs)
        for layer in self.layers:
            x = F.silu(layer(x))
        return self.score(x)[..., 0]


net = CrossEncoder().cuda()
sgd = torch.optim.SGD(net.parameters(), lr=0.01)
for query in range(40):
    pairs = torch.randn(17_000, 256, device="cuda")
    relevance = torch.rand(17_000, device="cuda")
    loss = F.binary_cross_entropy_with_logits(net(pairs), relevance)
    loss.backward()
    sgd.step()
    sgd.zero_grad()
print(loss.item())
