"""A speech model that keeps the last hidden states of each utterance for a plot that is drawn at the end.

cause: leaking
line: self.seen.append(
"""

import torch
from torch import nn


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(80, 768, num_layers=2, batch_first=True)
        self.classify = nn.Linear(768, 64)
        self.seen = []

    def forward(self, sound):
        states, _ = self.rnn(sound)
        self.seen.append(states.detach())
        return self.classify(states)


def main():
    model = Recogniser().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(60):
        sound = torch.randn(24, 900, 80).to("cuda")
        target = torch.randint(0, 64, (24, 900)).to("cuda")
        loss = nn.functional.cross_entropy(model(sound).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
