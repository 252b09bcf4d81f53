"""The state of a recurrent network is carried from batch to batch with all that led to it.

cause: retained-graph
line: self.lstm(|model(tokens, state)
"""

import torch
from torch import nn
from torch.nn import functional as F


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 256)
        self.lstm = nn.LSTM(256, 512, num_layers=2, batch_first=True)
        self.head = nn.Linear(512, 20)

    def forward(self, tokens, state):
        x, state = self.lstm(self.embed(tokens), state)
        return self.head(x), state


def main() -> None:
    model = Tagger().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = None
    for step in range(60):
        tokens = torch.randint(0, 1000, (64, 64), device="cuda")
        tags = torch.randint(0, 20, (64 * 64,), device="cuda")
        out, state = model(tokens, state)
        loss = F.cross_entropy(out.flatten(0, 1), tags)
        loss.backward(retain_graph=True)
        if step % 50 == 49:
            optimizer.step()
            optimizer.zero_grad()


main()
