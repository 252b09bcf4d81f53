"""The joint network of a transducer scores every frame with every label over the whole vocabulary.

cause: giant-request
line: self.out(torch.tanh(|joint(
remedy: by-parts|micro-batch|smaller-batch|chunked-loss
"""

import torch
from torch import nn


class Joint(nn.Module):
    def __init__(self, width, vocab):
        super().__init__()
        self.enc, self.pred = nn.Linear(width, 256), nn.Linear(width, 256)
        self.out = nn.Linear(256, vocab)

    def forward(self, frames, labels):
        lattice = self.enc(frames)[:, :, None] + self.pred(labels)[:, None]
        return self.out(torch.tanh(lattice)).log_softmax(-1)


class Transducer(nn.Module):
    def __init__(self, width=320, vocab=5000):
        super().__init__()
        self.encoder = nn.LSTM(80, width, 2, batch_first=True)
        self.embed = nn.Embedding(vocab, width)
        self.predictor = nn.LSTM(width, width, 1, batch_first=True)
        self.joint = Joint(width, vocab)

    def forward(self, mel, targets):
        frames, _ = self.encoder(mel)
        labels, _ = self.predictor(self.embed(targets))
        return self.joint(frames[:, ::2], labels)


def lattice_loss(log_probs, targets):
    # The best monotonic path, with blanks as label 0.
    blank = log_probs[..., 0].sum(1).mean()
    emit = log_probs.amax(1).gather(-1, targets[..., None]).mean()
    return -(blank + emit)


def loader(n):
    for _ in range(n):
        yield torch.randn(8, 800, 80), torch.randint(1, 5000, (8, 60))


if __name__ == "__main__":
    net = Transducer().cuda()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    for mel, targets in loader(20):
        mel, targets = mel.cuda(non_blocking=True), targets.cuda(non_blocking=True)
        loss = lattice_loss(net(mel, targets), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
