"""A trainer that moves a large recurrent model to the card.

cause: does-not-fit
line: .to(self.device)|.to(
"""

import torch
from torch import nn


class Trainer:
    def __init__(self, model, device="cuda"):
        self.device = device
        self.model = model.to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self):
        out, _ = self.model(torch.randn(8, 2, 4096, device=self.device))
        self.optimizer.zero_grad()
        out.mean().backward()
        self.optimizer.step()


if __name__ == "__main__":
    with torch.device("meta"):
        network = nn.LSTM(4096, 4096, num_layers=6)
    trainer = Trainer(network.to_empty(device="cpu"))
    trainer.step()
