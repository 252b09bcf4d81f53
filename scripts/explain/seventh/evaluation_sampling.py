"""A small GPT writes text after its training, one token after the other, and records a graph as it does.

cause: evaluation-with-gradients
line: model(|self(|logits =
remedy: no-grad
"""

import torch
import torch.nn.functional as F
from torch import nn


class GPT(nn.Module):
    def __init__(self, words=4096, width=512, depth=8, context=512):
        super().__init__()
        self.context = context
        self.token = nn.Embedding(words, width)
        self.place = nn.Embedding(context, width)
        block = nn.TransformerEncoderLayer(
            width, 8, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.token(tokens) + self.place(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        return self.head(self.blocks(x, mask=mask, is_causal=True))

    def generate(self, tokens, count):
        for _ in range(count):
            logits = self(tokens[:, -self.context :])[:, -1]
            following = torch.multinomial(F.softmax(logits, dim=-1), 1)
            tokens = torch.cat([tokens, following], dim=1)
        return tokens


model = GPT().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(3):
    tokens = torch.randint(0, 4096, (4, 257), device="cuda")
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
text = model.generate(torch.zeros(24, 400, dtype=torch.long, device="cuda"), 60)
print(text.shape)
