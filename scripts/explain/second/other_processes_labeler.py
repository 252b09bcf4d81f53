"""A teacher in another process makes soft labels; its activations and weights take the student's room.

cause: other-processes
line:
"""

import multiprocessing

import torch
from torch import nn


def teacher(requests, answers):
    model = nn.Sequential(*(nn.Linear(5000, 5000) for _ in range(13))).cuda()
    answers.put("here")
    with torch.no_grad():
        while (seed := requests.get()) is not None:
            torch.manual_seed(seed)
            answers.put(model(torch.randn(64, 5000, device="cuda")).mean().item())


def main():
    context = multiprocessing.get_context("spawn")
    requests, answers = context.Queue(), context.Queue()
    process = context.Process(target=teacher, args=(requests, answers))
    process.start()
    answers.get()
    student = nn.Sequential(*(nn.Linear(1400, 1400) for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    try:
        for step in range(3):
            requests.put(step)
            loss = (student(torch.randn(20_000, 1400, device="cuda")) - answers.get()).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        requests.put(None)


if __name__ == "__main__":
    main()
