"""A recurrent video model with a budget of frames: short clips in large batches, long ones in small.

cause: fragmented
line:
remedy: expandable-segments|max-split-size
"""

import random

import torch
from torch import nn

FRAMES = 1600


class Recurrence(nn.Module):
    def __init__(self, cin, hidden):
        super().__init__()
        self.look = nn.Conv2d(cin, hidden, 5, padding=2)
        self.remember = nn.Conv2d(hidden, hidden, 3, padding=1, bias=False)
        nn.init.dirac_(self.remember.weight)

    def forward(self, frame, h):
        return torch.relu(self.look(frame) + self.remember(h))


class Anticipation(nn.Module):
    def __init__(self, hidden=64, classes=12):
        super().__init__()
        self.hidden = hidden
        self.cell = Recurrence(3, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, clips):
        b, t, _, height, width = clips.shape
        h = clips.new_zeros(b, self.hidden, height, width)
        for i in range(t):
            h = self.cell(clips[:, i], h)
        return self.head(h.mean((2, 3)))


def lengths(steps, seed=4):
    """Lengths of the clips; a batch holds clips of one length only."""
    rng = random.Random(seed)
    for _ in range(steps):
        yield rng.choice([8, 15, 28])


model = Anticipation().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for step, length in enumerate(lengths(40)):
    clips = torch.rand(FRAMES // length, length, 3, 64, 64, device="cuda")
    labels = torch.randint(0, 12, (len(clips),), device="cuda")
    loss = nn.functional.cross_entropy(model(clips), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
