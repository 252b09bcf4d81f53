"""All 400 million weights of a language model are trained in float32: they and their gradients are too much.

cause: does-not-fit
line: loss.backward()|accelerator.backward(
remedy: lora|dora|peft-qlora|train-only|shard|quantized-base|low-rank-gradients
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

DIM, LAYERS, HEADS, VOCAB = 1152, 24, 18, 16_000


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.up, self.down = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, h):
        b, n, _ = h.shape
        q, k, v = self.qkv(self.ln1(h)).view(b, n, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.o(a.transpose(1, 2).reshape(b, n, DIM))
        return h + self.down(F.silu(self.up(self.ln2(h))))


class CausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.Sequential(*[Layer() for _ in range(LAYERS)])
        self.norm = nn.RMSNorm(DIM)

    def forward(self, ids):
        return F.linear(self.norm(self.layers(self.embed(ids))), self.embed.weight)


def schedule(step, warmup=10, total=100):
    if step < warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def main():
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = CausalLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    lr = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    for step in range(100):
        ids = torch.randint(VOCAB, (1, 65), device="cuda")
        loss = F.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:])
        loss.backward()
        optimizer.step()
        lr.step()
        optimizer.zero_grad(set_to_none=True)


main()
