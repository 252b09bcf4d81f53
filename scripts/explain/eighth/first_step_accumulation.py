"""Eight micro-batches go through under autocast; the scaler's first step creates Adam's state and its copies.

cause: first-step-surprise
line: scaler.step(|optim.Adam(
remedy: foreach-off|fused-optimizer|8-bit-optimizer
"""

import logging

import torch
from torch import nn

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("train")
ACCUMULATE = 8


class LanguageModel(nn.Module):
    def __init__(self, vocab=18_000, hidden=2048):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.rnn = nn.LSTM(hidden, hidden, num_layers=3, batch_first=True)
        self.decode = nn.Linear(hidden, vocab, bias=False)
        self.decode.weight = self.embed.weight

    def forward(self, tokens, state=None):
        y, state = self.rnn(self.embed(tokens), state)
        return self.decode(y), state


def main():
    with torch.device("cuda"):
        model = LanguageModel()
        extra = nn.Sequential(nn.Linear(18_000, 400), nn.Tanh(), nn.Linear(400, 18_000))
    parameters = [*model.parameters(), *extra.parameters()]
    log.info("%d million parameters", sum(p.numel() for p in parameters) // 10**6)
    optimizer = torch.optim.Adam(parameters, lr=2e-4)
    scaler = torch.amp.GradScaler("cuda")
    criterion = nn.CrossEntropyLoss()
    for step in range(64):
        tokens = torch.randint(18_000, (2, 36), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            logits, _ = model(tokens[:, :-1])
            logits = logits + extra(logits)
            loss = criterion(logits.transpose(1, 2).float(), tokens[:, 1:]) / ACCUMULATE
        scaler.scale(loss).backward()
        if (step + 1) % ACCUMULATE == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            log.info("step %d", step)


main()
