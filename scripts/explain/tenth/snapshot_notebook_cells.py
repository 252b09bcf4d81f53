"""Cells that are run again: a second model and optimizer beside the first, whose output is still displayed.

cause: leaking|does-not-fit|two-batches-alive|first-step-surprise
line: trainers.append|.cuda()|make_trainer
remedy: keep-on-cpu|drop-variables
snapshot: notebook.pickle
false: checkpointing|no-grad|release-graph|micro-batch|expandable-segments
"""

import torch
import torch.nn.functional as F
from torch import nn

torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
Out = {}


class Trainer:
    def __init__(self, lr, width=2048, depth=8):
        layers = [nn.Linear(512, width), nn.GELU()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.GELU()]
        self.model = nn.Sequential(*layers, nn.Linear(width, 10)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)

    def fit(self, steps):
        for _ in range(steps):
            x, y = torch.randn(128, 512, device="cuda"), torch.randint(0, 10, (128,), device="cuda")
            self.loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            self.loss.backward()
            self.optimizer.step()
        return self


def run_cell(number, code):
    Out[number] = code()


try:
    for cell, lr in enumerate([1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6]):
        run_cell(cell, lambda lr=lr: Trainer(lr).fit(20))
except torch.OutOfMemoryError as error:
    print(error)
    torch.cuda.memory._dump_snapshot("notebook.pickle")
