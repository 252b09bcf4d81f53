"""Student's and teacher's logits over the whole vocabulary, and their logarithms, for the divergence.

cause: giant-request|too-big
line: F.kl_div|F.log_softmax|F.softmax|self.lm_head(|teacher(|student(
remedy: chunked-loss|micro-batch|smaller-batch|autocast-bf16|by-parts|shorter-sequences
false: no-grad|release-graph|drop-variables|keep-on-cpu|fused-optimizer|expandable-segments
"""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB = 64_000


class TinyLM(nn.Module):
    def __init__(self, width, layers, heads=8):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.h = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.lm_head = nn.Linear(width, VOCAB, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.size(1), device=ids.device)
        return self.lm_head(self.h(self.wte(ids), mask=mask, is_causal=True))


def distillation_loss(student_logits, teacher_logits, temperature=2.0):
    return (
        F.kl_div(
            F.log_softmax(student_logits / temperature, dim=-1),
            F.softmax(teacher_logits / temperature, dim=-1),
            reduction="batchmean",
        )
        * temperature**2
    )


teacher = TinyLM(512, 4).cuda().eval().requires_grad_(False)
student = TinyLM(256, 2).cuda()
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4)
for step in range(50):
    ids = torch.randint(0, VOCAB, (4, 512), device="cuda")
    with torch.no_grad():
        teacher_logits = teacher(ids)
    student_logits = student(ids)
    loss = distillation_loss(student_logits.flatten(0, 1), teacher_logits.flatten(0, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
