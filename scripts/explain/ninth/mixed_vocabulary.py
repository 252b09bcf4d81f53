"""A small decoder with a large vocabulary: the logits and their gradient weigh more than all of its layers.

cause: giant-request|too-big
line: logits = |F.cross_entropy(|self.lm_head(
remedy: chunked-loss|by-parts|micro-batch|smaller-batch|shorter-sequences
"""

import torch
from torch import nn
from torch.nn import functional as F


class TinyLM(nn.Module):
    def __init__(self, vocab=50_304, dim=384, layers=4):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.h = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 6, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def forward(self, idx, targets=None):
        x = self.wte(idx)
        mask = nn.Transformer.generate_square_subsequent_mask(idx.shape[1], device=idx.device)
        for block in self.h:
            x = block(x, src_mask=mask, is_causal=True)
        logits = self.lm_head(x)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))
        return logits, loss


model = TinyLM()
model.to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for iter_num in range(100):
    data = torch.randint(50_304, (16, 513), device="cuda")
    logits, loss = model(data[:, :-1], data[:, 1:])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if iter_num % 10 == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}")
