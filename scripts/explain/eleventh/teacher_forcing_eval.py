"""The validation of a captioner runs inside the training loop, in eval mode and with gradients.

cause: evaluation-with-gradients
line: captioner(|validate(|scores.append
remedy: no-grad|release-graph
false: keep-on-cpu|checkpointing|activation-offload|micro-batch|expandable-segments|drop-variables
"""

import torch
import torch.nn.functional as F
from torch import nn


class Captioner(nn.Module):
    def __init__(self, vocab=8000, dim=512, layers=4):
        super().__init__()
        self.image = nn.Linear(2048, dim)
        self.words = nn.Embedding(vocab, dim)
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(dim, 8, 2048, batch_first=True), layers
        )
        self.head = nn.Linear(dim, vocab)

    def forward(self, image, words):
        mask = nn.Transformer.generate_square_subsequent_mask(words.size(1), device=words.device)
        return self.head(self.decoder(self.words(words), self.image(image), tgt_mask=mask))


def batch(size):
    return torch.randn(size, 49, 2048, device="cuda"), torch.randint(0, 8000, (size, 33), device="cuda")


def validate(captioner, batches):
    captioner.eval()
    total, count = 0.0, 0
    for image, words in batches:
        logits = captioner(image, words[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), words[:, 1:], reduction="sum")
        total, count = total + loss, count + words[:, 1:].numel()
    captioner.train()
    return (total / count).item()


captioner = Captioner().cuda()
optimizer = torch.optim.AdamW(captioner.parameters(), lr=1e-4)
for step in range(1, 200):
    image, words = batch(32)
    logits = captioner(image, words[:, :-1])
    loss = F.cross_entropy(logits.transpose(1, 2), words[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item(), validate(captioner, (batch(64) for _ in range(10))))
