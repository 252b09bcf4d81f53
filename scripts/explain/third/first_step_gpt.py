"""A GPT of which forward and backward fit; the first AdamW step does not.

cause: first-step-surprise
line: .step()
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(
    GPT2Config(vocab_size=16000, n_embd=1024, n_layer=14, n_head=16, n_positions=64)
).cuda()
parameters = [
    {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
    {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(parameters, lr=1e-4)
for _ in range(2):
    tokens = torch.randint(0, 16000, (1, 64), device="cuda")
    model(tokens, labels=tokens).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
