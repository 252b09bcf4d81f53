"""A classifier of long documents computes its attention weights with matmul and softmax.

cause: too-big|giant-request
line: torch.matmul(q, k|torch.softmax(scores|scores = |weights =|probs =
remedy: sdpa|checkpointing|micro-batch|smaller-batch|activation-offload|shorter-sequences|activation-budget
false: no-grad|drop-variables|keep-on-cpu|release-graph|fused-optimizer|chunked-loss
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab_size: int = 30_522
    hidden_size: int = 384
    num_hidden_layers: int = 6
    num_attention_heads: int = 6
    max_position_embeddings: int = 2048
    num_labels: int = 20


class SelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, hidden):
        q, k, v = self.split(self.query(hidden)), self.split(self.key(hidden)), self.split(self.value(hidden))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.size(-1))
        probs = torch.softmax(scores, dim=-1)
        context = torch.matmul(probs, v)
        return self.out(context.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = SelfAttention(config)
        self.norm1, self.norm2 = nn.LayerNorm(config.hidden_size), nn.LayerNorm(config.hidden_size)
        self.up = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.down = nn.Linear(4 * config.hidden_size, config.hidden_size)

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Classifier(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.head = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, input_ids, labels):
        x = self.words(input_ids) + self.positions(torch.arange(input_ids.size(1), device=input_ids.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x[:, 0])
        return F.cross_entropy(logits, labels), logits


config = Config()
model = Classifier(config).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
for step in range(10):
    input_ids = torch.randint(0, config.vocab_size, (4, 2048), device="cuda")
    labels = torch.randint(0, config.num_labels, (4,), device="cuda")
    loss, _ = model(input_ids, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
