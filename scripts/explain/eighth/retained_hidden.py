"""Character model with a stateful LSTM: the state is never detached, and retain_graph hides the error.

cause: retained-graph
line: hidden = model|retain_graph=True|model(x, hidden)|self.lstm(
remedy: release-graph
"""

import torch
import torch.nn as nn


class CharRNN(nn.Module):
    def __init__(self, n_chars, hidden_size=512):
        super().__init__()
        self.embed = nn.Embedding(n_chars, 64)
        self.lstm = nn.LSTMCell(64, hidden_size)
        self.fc = nn.Linear(hidden_size, n_chars)

    def forward(self, x, hidden):
        outputs = []
        for char in self.embed(x).unbind(1):
            hidden = self.lstm(char, hidden)
            outputs.append(self.fc(hidden[0]))
        return torch.stack(outputs, 1), hidden

    def init_hidden(self, batch_size, device):
        return tuple(torch.zeros(batch_size, 512, device=device) for _ in range(2))


device = torch.device("cuda:0")
text = torch.randint(0, 96, (256, 32 * 200))
model = CharRNN(96).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.002)

for epoch in range(2):
    hidden = model.init_hidden(256, device)
    for i in range(0, text.size(1) - 33, 32):
        x = text[:, i : i + 32].to(device)
        y = text[:, i + 1 : i + 33].to(device)
        output, hidden = model(x, hidden)
        loss = criterion(output.transpose(1, 2), y)
        loss.backward(retain_graph=True)
        if i % 320 == 0:
            print(f"epoch {epoch} pos {i} loss {loss.item():.3f}")
    # one step per pass over the text: a step in between makes autograd complain about changed weights
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    optimizer.zero_grad()
