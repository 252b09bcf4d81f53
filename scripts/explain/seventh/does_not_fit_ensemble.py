"""Five experts go to the card one after the other; the fourth has no place.

cause: does-not-fit
line: .cuda()|.to(device)|.to_empty(|expert
remedy: pure-bf16|quantized-weights|shard
"""

import torch
from torch import nn


def expert(width=4096, depth=12):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers)


device = torch.device("cuda")
ensemble = []
for number in range(5):
    with torch.device("meta"):
        member = expert()
    ensemble.append(member.to_empty(device=device))
x = torch.randn(16, 4096, device=device)
print(sum(member(x) for member in ensemble).shape)
