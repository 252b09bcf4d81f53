"""A training module in the style of Lightning; memory runs out in its optimizer's first step, after three
micro-batches.

cause: first-step-surprise
line: .step()
"""

import torch
from torch import nn


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(3712, 3712) for _ in range(11)))

    def training_step(self, batch):
        return self.net(batch).abs().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.NAdam(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 10)]


class Loop:
    def __init__(self, module, accumulate):
        self.module, self.accumulate = module.cuda(), accumulate
        (self.optimizer,), (self.scheduler,) = module.configure_optimizers()

    def fit(self, steps):
        for _ in range(steps):
            for _ in range(self.accumulate):
                loss = self.module.training_step(torch.randn(64, 3712, device="cuda")) / self.accumulate
                loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()


Loop(Module(), 3).fit(2)
