"""The trainer keeps the last logits and log-probabilities for its callbacks, also during the next step.

cause: two-batches-alive
line: self.last = |logits = self.model(|.log_softmax(-1)|loss.backward()
remedy: drop-variables|keep-on-cpu
"""

import torch
import torch.nn.functional as F
from torch import nn


class Summarizer(nn.Module):
    def __init__(self, vocab=16_000, dim=512):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens))[0])


class Callback:
    def on_step_end(self, trainer):
        pass


class EntropyMonitor(Callback):
    def __init__(self):
        self.values = []

    def on_step_end(self, trainer):
        sample = trainer.last["log_probs"][:1]
        self.values.append(-(sample.exp() * sample).sum(-1).mean().item())


class Trainer:
    def __init__(self, model, callbacks):
        self.model, self.callbacks = model.cuda(), callbacks
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.last = {}

    def step(self, tokens):
        logits = self.model(tokens[:, :-1])
        log_probs = logits.log_softmax(-1)
        loss = F.nll_loss(log_probs.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.last = {"logits": logits.detach(), "log_probs": log_probs.detach(), "loss": loss.detach()}
        for callback in self.callbacks:
            callback.on_step_end(self)

    def fit(self, batches):
        for tokens in batches:
            self.step(tokens.cuda())


monitor = EntropyMonitor()
Trainer(Summarizer(), [monitor]).fit(torch.randint(16_000, (16, 513)) for _ in range(20))
print(monitor.values[-1])
