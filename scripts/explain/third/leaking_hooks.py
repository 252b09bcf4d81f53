"""Forward hooks note every layer's output, for statistics that nobody has asked for yet.

cause: leaking
line: self.layers|layer(|model(
"""

from collections import defaultdict

import torch
from torch import nn

notes = defaultdict(list)


def note(name):
    return lambda module, inputs, output: notes[name].append(output)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(768, 768) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


model = Tower().cuda()
for name, module in model.named_modules():
    if isinstance(module, nn.Linear):
        module.register_forward_hook(note(name))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    loss = model(torch.randn(4096, 768, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
