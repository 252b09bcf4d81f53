"""Planning noise of 1 GiB and the episodes' frames share segments: the fourth plan finds only pieces.

cause: fragmented
line: torch.randn(CANDIDATES|planner.plan(|noise =
remedy: expandable-segments|by-parts|keep-on-cpu|preallocate
"""

import torch
import torch.nn.functional as F
from torch import nn

CANDIDATES, HORIZON, ACTIONS = 4096, 64, 1024


class Planner:
    def __init__(self):
        self.mean = torch.zeros(HORIZON, ACTIONS, device="cuda")
        self.reward = nn.Linear(HORIZON * ACTIONS, 1, device="cuda")

    def plan(self):
        noise = torch.randn(CANDIDATES, HORIZON, ACTIONS, device="cuda")
        scores = self.reward(noise.flatten(1)).squeeze(-1)
        best = noise[int(scores.argmax())]
        return self.mean + best


class Simulator(nn.Module):
    def __init__(self):
        super().__init__()
        self.draw = nn.Linear(ACTIONS, 3 * 16 * 16)

    def forward(self, plan):
        small = self.draw(plan).view(HORIZON, 3, 16, 16)
        return F.interpolate(small, size=(720, 720))


def main(episodes=4):
    planner, simulator = Planner(), Simulator().cuda()
    recorded = []
    with torch.no_grad():
        for _ in range(episodes):
            plan = planner.plan()
            recorded.append(simulator(plan))
    print(sum(frames.mean().item() for frames in recorded))


main()
