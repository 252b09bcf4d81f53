"""Sizes are rounded up to the next half power of two, copied from a post about lengths that vary.

cause: setting-that-hurts
line: PYTORCH_CUDA_ALLOC_CONF
remedy: drop-setting
"""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "roundup_power2_divisions:2"

import torch  # noqa: E402
from torch import nn  # noqa: E402


class WaveUNet(nn.Module):
    """Separates the voice from the music; strided convolutions down, transposed ones up."""

    def __init__(self, channels=(24, 48, 96)):
        super().__init__()
        widths = (1, *channels)
        pairs = list(zip(widths, widths[1:], strict=False))
        self.down = nn.ModuleList([nn.Conv1d(a, b, 15, 2, 7) for a, b in pairs])
        self.up = nn.ModuleList([nn.ConvTranspose1d(2 * b, a, 4, 2, 1) for a, b in pairs[:0:-1]])
        self.last = nn.ConvTranspose1d(2 * channels[0], 2, 4, 2, 1)

    def forward(self, mixture):
        skips, h = [], mixture
        for layer in self.down:
            h = nn.functional.leaky_relu(layer(h), 0.2)
            skips.append(h)
        for layer in self.up:
            h = nn.functional.leaky_relu(layer(torch.cat([h, skips.pop()], 1)), 0.2)
        return self.last(torch.cat([h, skips.pop()], 1)).tanh()


model = WaveUNet().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for step in range(5):
    sources = torch.rand(46, 2, 65_536, device="cuda") - 0.5
    estimate = model(sources.sum(1, keepdim=True))
    loss = (estimate - sources).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
