"""All logits of the evaluation are put together with `torch.cat` as they come.

cause: growing-cache
line: torch.cat|all_logits =
remedy: keep-on-cpu|preallocate
"""

import torch
from torch import nn

model = nn.Sequential(nn.Embedding(32_000, 128), nn.Linear(128, 32_000)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    tokens = torch.randint(0, 32_000, (512,), device="cuda")
    loss = nn.functional.cross_entropy(model(tokens), tokens)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@torch.no_grad()
def evaluate():
    model.eval()
    all_logits = None
    for _ in range(60):
        tokens = torch.randint(0, 32_000, (512,), device="cuda")
        logits = model(tokens)
        all_logits = logits if all_logits is None else torch.cat((all_logits, logits), dim=0)
    return all_logits.argmax(-1)


print(evaluate().shape)
