"""Sentence embeddings are made for a search index: batches get longer, a small result of each stays
between them.

cause: fragmented
line:
remedy: expandable-segments|max-split-size|garbage-collection|roundup-sizes
"""

import torch
from torch import nn

device = "cuda"
embedding = nn.Embedding(30_000, 512).to(device)
mix = nn.Linear(512, 512).to(device)
index = []
with torch.inference_mode():
    for batch in range(300):
        length = 96 + 9 * batch
        tokens = torch.randint(0, 30_000, (128, length), device=device)
        hidden = embedding(tokens)
        hidden = torch.tanh(mix(hidden))
        index.append(hidden[:, :8].clone())
        del hidden, tokens
print(len(index))
