"""History starts after the model is built, and only the last 20000 events are kept.

cause: leaking
line: self.shadow_history.append|.clone()
remedy: keep-on-cpu
snapshot: mem.pickle
false: release-graph|no-grad|checkpointing|micro-batch|drop-variables|expandable-segments
"""

import torch
import torch.nn.functional as F
from torch import nn


class WeightAverages:
    """Remembers the averaged weights of each epoch, for the final ensemble."""

    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}
        self.shadow_history = []

    @torch.no_grad()
    def update(self, model):
        for n, p in model.named_parameters():
            self.shadow[n].mul_(self.decay).add_(p, alpha=1 - self.decay)

    def end_of_epoch(self):
        self.shadow_history.append({n: s.clone() for n, s in self.shadow.items()})


model = nn.Sequential(
    nn.Flatten(), nn.Linear(3072, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
averages = WeightAverages(model)
torch.cuda.memory._record_memory_history(max_entries=20_000)
try:
    for epoch in range(40):
        for _ in range(5):
            x, y = torch.randn(256, 3, 32, 32, device="cuda"), torch.randint(0, 10, (256,), device="cuda")
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            averages.update(model)
        averages.end_of_epoch()
except torch.OutOfMemoryError:
    torch.cuda.memory._dump_snapshot("mem.pickle")
    raise
