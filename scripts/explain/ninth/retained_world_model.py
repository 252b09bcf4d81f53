"""The recurrent state runs on through sixteen segments, whose graphs `retain_graph=True` keeps.

cause: retained-graph
line: backward(retain_graph=True)|state = self.cell(|self.cell(|state, loss =
remedy: release-graph
"""

import torch
from torch import nn


class WorldModel(nn.Module):
    def __init__(self, obs=256, hidden=1024):
        super().__init__()
        self.encoder = nn.Linear(obs, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.decoder = nn.Linear(hidden, obs)

    def segment(self, observations, state):
        loss = 0.0
        for obs in observations.unbind(1):
            loss = loss + (self.decoder(state) - obs).square().mean()
            state = self.cell(torch.tanh(self.encoder(obs)), state)
        return state, loss / observations.shape[1]


def train(model, episodes, accumulate=16):
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-4)
    for _ in range(episodes):
        state = torch.zeros(512, 1024, device="cuda")
        for i in range(accumulate):
            observations = torch.randn(512, 20, 256, device="cuda")
            state, loss = model.segment(observations, state)
            (loss / accumulate).backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())


train(WorldModel().cuda(), episodes=10)
