"""Every forward pass of a transformer leaves its attention maps in a list, for a figure of the thesis.

cause: leaking
line: self.maps.append(
remedy: keep-on-cpu
"""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim)
        self.maps = []

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5).softmax(-1)
        self.maps.append(weights.detach())
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, d))


class Encoder(nn.Module):
    def __init__(self, vocab=5000, dim=128, heads=4, layers=3, classes=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.attention = nn.ModuleList([Attention(dim, heads) for _ in range(layers)])
        self.mlp = nn.ModuleList(
            [nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, dim)) for _ in range(layers)]
        )
        self.classify = nn.Linear(dim, classes)

    def forward(self, tokens):
        x = self.embed(tokens)
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            x = x + attention(x)
            x = x + mlp(x)
        return self.classify(x.mean(1))


model = Encoder().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
loss_fn = nn.CrossEntropyLoss()
for step in range(150):
    reviews = torch.randint(0, 5000, (16, 256)).to("cuda")
    sentiment = torch.randint(0, 2, (16,)).to("cuda")
    loss = loss_fn(model(reviews), sentiment)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0:
        print(f"{step:4d} {loss.item():.4f}")
