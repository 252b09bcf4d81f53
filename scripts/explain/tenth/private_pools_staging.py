"""Data is prepared in a memory pool of its own; it is freed, but the pool keeps it from the training.

cause: private-pools
line: MemPool()|use_mem_pool
remedy: pool-on-oom
false: checkpointing|micro-batch|no-grad|fused-optimizer|activation-offload|release-graph|keep-on-cpu
false: drop-variables
"""

import torch
import torch.nn.functional as F
from torch import nn

staging = torch.cuda.MemPool()


def spectrograms(seconds=64, rate=16_000, clips=64):
    """Log spectra of all clips, standardised; only the standardised half-precision copy stays."""
    with torch.cuda.use_mem_pool(staging):
        audio = torch.randn(clips, seconds * rate, device="cuda")
        window = torch.hann_window(400, device="cuda")
        spectrum = torch.stft(audio, 400, 160, window=window, return_complex=True).abs()
        spectrum = spectrum.clamp_(min=1e-5).log_()
        return ((spectrum - spectrum.mean()) / spectrum.std()).half().cpu().pin_memory()


class Tagger(nn.Module):
    def __init__(self, bins=201, c=192, tags=527):
        super().__init__()
        self.inp = nn.Conv1d(bins, c, 3, padding=1)
        self.body = nn.ModuleList(nn.Conv1d(c, c, 9, padding=4, groups=4) for _ in range(8))
        self.out = nn.Linear(c, tags)

    def forward(self, x):
        x = F.gelu(self.inp(x))
        for layer in self.body:
            x = x + F.gelu(layer(x))
        return self.out(x.mean(-1))


data = spectrograms()
targets = torch.randint(0, 2, (len(data), 527)).float()
model = Tagger().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(3):
    for i in range(0, len(data), 16):
        x, y = data[i : i + 16].cuda().float(), targets[i : i + 16].cuda()
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
