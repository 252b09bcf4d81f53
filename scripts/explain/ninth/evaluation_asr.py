"""Validation of a speech recogniser calls `eval()` but saves activations that nothing needs.

cause: evaluation-with-gradients
line: logits = self.model(|x = layer(x)|validate(
remedy: no-grad
"""

import torch
from torch import nn


class Recognizer(nn.Module):
    def __init__(self, dim=512, layers=12, vocab=128):
        super().__init__()
        self.subsample = nn.Conv1d(80, dim, 3, 2, 1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 8, 2048, dropout=0.1, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.out = nn.Linear(dim, vocab)

    def forward(self, mel):
        x = self.subsample(mel).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


class Experiment:
    def __init__(self):
        self.model = Recognizer().cuda()
        self.ctc = nn.CTCLoss(zero_infinity=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def loss(self, logits, labels):
        steps = torch.full((len(logits),), logits.shape[1])
        lengths = torch.full((len(labels),), labels.shape[1])
        return self.ctc(logits.log_softmax(-1).transpose(0, 1), labels, steps, lengths)

    def train(self, batches):
        self.model.train()
        for mel, labels in batches:
            logits = self.model(mel.cuda())
            loss = self.loss(logits, labels.cuda())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def validate(self, batches):
        self.model.eval()
        errors = total = 0
        for mel, labels in batches:
            logits = self.model(mel.cuda())
            best = logits.argmax(-1).cpu()
            errors += int((best[:, : labels.shape[1]] != labels).sum())
            total += labels.numel()
        return errors / total


def utterances(batches, size, frames):
    return [(torch.randn(size, 80, frames), torch.randint(1, 128, (size, 30))) for _ in range(batches)]


experiment = Experiment()
for epoch in range(2):
    experiment.train(utterances(4, 8, 400))
    print(epoch, experiment.validate(utterances(2, 48, 800)))
