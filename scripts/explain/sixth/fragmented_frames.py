"""The features of a film's frames: every second one is kept, and those of a cut are put together.

cause: fragmented
line:
"""

import torch
from torch import nn

encode = nn.Conv2d(3, 48, 3, padding=1).cuda().requires_grad_(False)
frames = []
for number in range(264):
    frame = torch.full((1, 3, 224, 224), number / 264, device="cuda")
    frames.append(encode(frame))
frames = frames[::2]
for begin in range(0, len(frames), 33):
    cut = torch.cat(frames[begin : begin + 33])
    print(begin, float(cut.mean()))
    del cut
