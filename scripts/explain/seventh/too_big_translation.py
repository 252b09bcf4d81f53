"""A Transformer for translation, with the sentences padded to 256 tokens.

cause: too-big
line: self.transformer(|model(
remedy: checkpointing|activation-offload|autocast-bf16|autocast-fp16|micro-batch|activation-budget
"""

import torch
from torch import nn


class Translator(nn.Module):
    def __init__(self, words=8000, width=512):
        super().__init__()
        self.source = nn.Embedding(words, width)
        self.target = nn.Embedding(words, width)
        self.transformer = nn.Transformer(width, 8, 6, 6, 2048, batch_first=True)
        self.out = nn.Linear(width, words)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        hidden = self.transformer(self.source(source), self.target(target), tgt_mask=mask)
        return self.out(hidden)


device = torch.device("cuda")
model = Translator().to(device)
criterion = nn.CrossEntropyLoss(ignore_index=0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))
for epoch in range(2):
    for batch in range(4):
        source = torch.randint(1, 8000, (20, 256), device=device)
        target = torch.randint(1, 8000, (20, 257), device=device)
        logits = model(source, target[:, :-1])
        loss = criterion(logits.reshape(-1, logits.shape[-1]), target[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(epoch, loss.item())
