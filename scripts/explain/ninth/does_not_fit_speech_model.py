"""An encoder-decoder for speech with 0.9 billion float32 parameters is put on the card for fine-tuning.

cause: does-not-fit
line: EncoderLayer(dim|DecoderLayer(dim|nn.Linear(dim|SpeechModel(|self.fc|self.q|Attention(dim)
remedy: pure-bf16|quantized-base|quantized-weights|torchao-weights|peft-qlora|shard
"""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, memory=None):
        source = x if memory is None else memory
        heads = [
            t.unflatten(-1, (-1, 64)).transpose(1, 2) for t in (self.q(x), self.k(source), self.v(source))
        ]
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=memory is None)
        return self.out(y.transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attention, self.norm = Attention(dim), nn.LayerNorm(dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.fc2(nn.functional.gelu(self.fc1(x)))


class DecoderLayer(EncoderLayer):
    def __init__(self, dim):
        super().__init__(dim)
        self.cross = Attention(dim)

    def forward(self, x, memory):
        return super().forward(x + self.cross(x, memory))


class SpeechModel(nn.Module):
    def __init__(self, dim=1280, layers=20, vocab=51_864):
        super().__init__()
        self.stem = nn.Conv1d(80, dim, 3, stride=2, padding=1)
        self.encoder = nn.ModuleList([EncoderLayer(dim) for _ in range(layers)])
        self.tokens = nn.Embedding(vocab, dim)
        self.decoder = nn.ModuleList([DecoderLayer(dim) for _ in range(layers)])

    def forward(self, mel, tokens):
        memory = self.stem(mel).transpose(1, 2)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.tokens(tokens)
        for layer in self.decoder:
            x = layer(x, memory)
        return x @ self.tokens.weight.T


with torch.device("cuda"):
    model = SpeechModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for step in range(10):
    mel, tokens = torch.randn(1, 80, 1000).cuda(), torch.randint(51_864, (1, 48)).cuda()
    logits = model(mel, tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
