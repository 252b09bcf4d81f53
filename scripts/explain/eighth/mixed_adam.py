"""Fine-tuning a translation model: three copies of the weights fit, but Adam wants a fourth and a fifth.

cause: does-not-fit|first-step-surprise
line: optimizer.step()|torch.optim.Adam(|Adam(
remedy: 8-bit-optimizer|adafactor|bf16-optimizer-state|host-optimizer-state|lora
"""

import torch
import torch.nn.functional as F
from torch import nn


class Seq2Seq(nn.Module):
    def __init__(self, vocab=40_000, hidden=1536):
        super().__init__()
        self.source, self.target = nn.Embedding(vocab, hidden), nn.Embedding(vocab, hidden)
        self.encoder = nn.GRU(hidden, hidden, num_layers=3, batch_first=True)
        self.decoder = nn.GRU(hidden, hidden, num_layers=3, batch_first=True)
        self.attend = nn.Linear(hidden, hidden, bias=False)
        self.generate = nn.Linear(2 * hidden, hidden)

    def forward(self, src, tgt):
        memory, state = self.encoder(self.source(src))
        y, _ = self.decoder(self.target(tgt), state)
        weights = (self.attend(y) @ memory.transpose(1, 2)).softmax(-1)
        y = torch.tanh(self.generate(torch.cat([y, weights @ memory], -1)))
        return y @ self.target.weight.T


class Trainer:
    def __init__(self, model, lr=1e-5):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def step(self, src, tgt):
        logits = self.model(src, tgt[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), label_smoothing=0.1)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


with torch.device("cuda"):
    model = Seq2Seq()
    print(sum(p.numel() for p in model.parameters()) * 4 // 2**20, "MiB of weights")
    trainer = Trainer(model)
    for _ in range(10):
        print(trainer.step(torch.randint(40_000, (4, 20)), torch.randint(40_000, (4, 21))))
