"""Documents of all lengths, encoded one after the other and kept as vectors of their own sizes for a while.

cause: fragmented
line:
"""

import torch
from torch import nn

MIB = 1 << 20
encoder = nn.Linear(256, 256).cuda()
shelf = []
sizes = [22, 34, 46, 58, 70, 82, 94, 106]
with torch.no_grad():
    for turn in range(60):
        rows = sizes[turn % len(sizes)] * MIB // 1024
        shelf.append(encoder(torch.randn(rows, 256, device="cuda")))
        if len(shelf) > 22:
            # Every other one is done with.
            shelf = shelf[1::2] + shelf[-1:]
    long = encoder(torch.randn(880 * MIB // 1024, 256, device="cuda"))
print(long.shape)
