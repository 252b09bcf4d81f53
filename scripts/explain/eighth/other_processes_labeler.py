"""Pseudo-labels come from a second process, whose large model stays on the same card as the training.

cause: other-processes
line:
remedy: end-other-process
"""

import torch
import torch.multiprocessing as mp
from torch import nn


def labeler(requests, answers):
    with torch.device("cuda"):
        big = nn.Sequential(nn.Linear(784, 12_288), nn.ReLU(), nn.Linear(12_288, 24_576), nn.ReLU())
        head = nn.Linear(24_576, 10)
    answers.put("ready")
    with torch.no_grad():
        while (batch := requests.get()) is not None:
            answers.put(head(big(batch.cuda())).argmax(1).cpu())


def cnn():
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(),
        nn.Linear(3136, 10),
    )  # fmt: skip


def main():
    context = mp.get_context("spawn")
    requests, answers = context.Queue(), context.Queue()
    process = context.Process(target=labeler, args=(requests, answers), daemon=True)
    process.start()
    answers.get()
    try:
        student = cnn().cuda()
        optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
        for step in range(10):
            digits = torch.zeros(1536, 784)
            requests.put(digits[:64])
            labels = answers.get().repeat(24)
            loss = nn.functional.cross_entropy(student(digits.cuda()), labels.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(step, loss.item())
    finally:
        requests.put(None)


if __name__ == "__main__":
    main()
