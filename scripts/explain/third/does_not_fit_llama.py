"""A language model of two billion parameters in float32 on a card of 3 GiB.

cause: does-not-fit
line: LlamaForCausalLM(
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=32000, hidden_size=2560, intermediate_size=6912, num_hidden_layers=24, num_attention_heads=20
)
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
tokens = torch.randint(0, 32000, (1, 512), device="cuda")
model(tokens, labels=tokens).loss.backward()
optimizer.step()
