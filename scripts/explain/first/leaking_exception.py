"""Failed batches are kept with their exceptions, whose tracebacks keep the frames and all tensors in them.

cause: leaking
line: torch.randn(|features
"""

import torch
from torch import nn

device = torch.device("cuda")
model = nn.Linear(512, 512).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
problems = []


def check(out: torch.Tensor) -> torch.Tensor:
    raise ValueError("not finite")


def train_on(index: int) -> None:
    features = torch.randn(60_000, 512, device=device)
    out = model(features[:4096])
    if index % 2:
        check(out)
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for index in range(80):
    try:
        train_on(index)
    except ValueError as error:
        problems.append(error)
print(len(problems))
