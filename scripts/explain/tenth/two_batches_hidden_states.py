"""The outputs of the last step, with all hidden states, are alive while the next step's forward pass runs.

cause: two-batches-alive
line: outputs = model(|hidden_states
remedy: drop-variables
false: no-grad|release-graph|keep-on-cpu|fused-optimizer
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class ModelOutput:
    loss: torch.Tensor | None
    logits: torch.Tensor
    hidden_states: tuple


class GatedLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mix = nn.Linear(dim, dim)

    def forward(self, x):
        return x + F.silu(self.mix(x))


class EncoderModel(nn.Module):
    def __init__(self, vocab=20_000, dim=512, layers=8, labels=9):
        super().__init__()
        self.embeddings = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(GatedLayer(dim) for _ in range(layers))
        self.classifier = nn.Linear(dim, labels)

    def forward(self, input_ids, labels=None):
        hidden = self.embeddings(input_ids)
        hidden_states = (hidden,)
        for layer in self.layers:
            hidden = layer(hidden)
            hidden_states += (hidden,)
        logits = self.classifier(hidden)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten()) if labels is not None else None
        return ModelOutput(loss, logits, hidden_states)


def batches(count, size, length):
    for _ in range(count):
        yield {
            "input_ids": torch.randint(0, 20_000, (size, length)),
            "labels": torch.randint(0, 9, (size, length)),
        }


model = EncoderModel().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
for epoch in range(2):
    for batch in batches(20, 124, 512):
        batch = {k: v.cuda() for k, v in batch.items()}
        outputs = model(**batch)
        outputs.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
