"""A translation model's weights and gradients fit; Adam's two moments come with the first update.

cause: first-step-surprise
line: optimizer.step()
remedy: adafactor|8-bit-optimizer|bf16-optimizer-state|host-optimizer-state|optimizer-in-backward
remedy: pure-bf16|lora|shard|low-rank-gradients
"""

import torch
import torch.nn as nn

PAD, BOS = 0, 1


class Translator(nn.Module):
    def __init__(self, vocab=12_000, dim=1024):
        super().__init__()
        self.source = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.target = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.transformer = nn.Transformer(dim, 16, 6, 6, 4 * dim, dropout=0.0, batch_first=True)
        self.generator = nn.Linear(dim, vocab)

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1], device=tgt.device)
        out = self.transformer(self.source(src), self.target(tgt), tgt_mask=mask, tgt_is_causal=True)
        return self.generator(out)


def batches(n, size=4, length=32):
    for _ in range(n):
        yield torch.randint(2, 12_000, (size, length)), torch.randint(2, 12_000, (size, length + 1))


def run_epoch(model, data, criterion, optimizer, device):
    total = 0.0
    for src, tgt in data:
        src, tgt = src.to(device), tgt.to(device)
        logits = model(src, tgt[:, :-1])
        loss = criterion(logits.reshape(-1, logits.size(-1)), tgt[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total


if __name__ == "__main__":
    device = torch.device("cuda")
    with device:
        model = Translator()
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    for epoch in range(3):
        print(epoch, run_epoch(model, batches(10), criterion, optimizer, device))
