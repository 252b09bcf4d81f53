"""A worker that evaluates older checkpoints keeps its model and its data on the training's card.

cause: other-processes
line:
"""

import torch
import torch.multiprocessing as mp
from torch import nn


def evaluate_for_ever(inbox, outbox) -> None:
    data = [torch.randn(10_000, 4096, device="cuda") for _ in range(8)]
    outbox.put("ready")
    while inbox.get() is not None:
        outbox.put(float(data[0].mean()))


class Trainer:
    def __init__(self) -> None:
        context = mp.get_context("spawn")
        self.tasks, self.answers = context.Queue(), context.Queue()
        self.worker = context.Process(target=evaluate_for_ever, args=(self.tasks, self.answers), daemon=True)
        self.worker.start()
        self.answers.get()
        self.model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(10))).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def run(self) -> None:
        for _ in range(3):
            loss = self.model(torch.randn(20_000, 1024, device="cuda")).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.tasks.put(None)


if __name__ == "__main__":
    Trainer().run()
