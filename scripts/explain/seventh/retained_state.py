"""A character model goes on from the state of the batch before, with `retain_graph=True` so that no error
comes.

cause: retained-graph
line: lstm(|model(|state
remedy: release-graph
"""

import torch
from torch import nn


class CharModel(nn.Module):
    def __init__(self, letters=96, hidden=512):
        super().__init__()
        self.embed = nn.Embedding(letters, hidden)
        self.lstm = nn.LSTM(hidden, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, letters)

    def forward(self, x, state):
        x, state = self.lstm(self.embed(x), state)
        return self.out(x), state


model = CharModel().cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
state = (torch.zeros(2, 64, 512, device="cuda"), torch.zeros(2, 64, 512, device="cuda"))
for step in range(60):
    x = torch.randint(0, 96, (64, 100), device="cuda")
    y = torch.randint(0, 96, (64, 100), device="cuda")
    out, state = model(x, state)
    loss = criterion(out.flatten(0, 1), y.flatten())
    loss.backward(retain_graph=True)
    if step % 30 == 29:
        optimizer.step()
        optimizer.zero_grad()
    print(step, loss.item())
