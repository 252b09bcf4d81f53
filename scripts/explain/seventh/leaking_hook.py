"""A forward hook was left in after looking at what a layer gives.

cause: leaking
line: activations.append|.detach()|seen[
remedy: keep-on-cpu
"""

import torch
from torch import nn

activations = []


def remember(module, args, output):
    activations.append(output.detach().clone())


model = nn.Sequential(
    nn.Linear(256, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 10)
).cuda()
model[2].register_forward_hook(remember)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loss_fn = nn.CrossEntropyLoss()

for step in range(100):
    x = torch.randn(4096, 256, device="cuda")
    y = torch.zeros(4096, dtype=torch.long, device="cuda")
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
