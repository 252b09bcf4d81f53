"""SGD warms an autoencoder up for thirty steps, then Adam takes over and dies on its very first step.

cause: first-step-surprise
line: opt.step()|torch.optim.Adam(
remedy: foreach-off|fused-optimizer|8-bit-optimizer
"""

import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self, features=16_384, code=256):
        super().__init__()
        widths = [features, 2048, 4096, 4096, 4096, code]
        self.encoder = self.stack(widths)
        self.decoder = self.stack(widths[::-1])

    @staticmethod
    def stack(widths):
        pairs = zip(widths, widths[1:], strict=False)
        return nn.Sequential(*[nn.Sequential(nn.Linear(a, b), nn.LeakyReLU()) for a, b in pairs])

    def forward(self, x):
        return self.decoder(self.encoder(x))


def train(model, opt, steps):
    for _ in range(steps):
        expression = torch.rand(64, 16_384).to("cuda")
        loss = nn.functional.mse_loss(model(expression), expression)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


model = Autoencoder()
model.to("cuda")
print("warm-up", train(model, torch.optim.SGD(model.parameters(), lr=0.01), 30))
for lr in (1e-3, 1e-4):
    print("adam", lr, train(model, torch.optim.Adam(model.parameters(), lr=lr), 100))
