"""GPT-2 XL's shape, as transformers makes it, is put on a card with a quarter of the room for it.

cause: does-not-fit
line: .cuda()|.to(|.to_empty(
remedy: pure-bf16|lora|quantized-base|quantized-weights|shard
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(n_embd=1600, n_layer=30, n_head=25, n_positions=256)
with torch.device("meta"):
    model = GPT2LMHeadModel(config)
model = model.to_empty(device="cuda")
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
tokens = torch.randint(0, 50257, (1, 128), device="cuda")
loss = model(tokens, labels=tokens).loss
loss.backward()
optimizer.step()
