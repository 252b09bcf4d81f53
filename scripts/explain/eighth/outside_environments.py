"""Five environment processes answer with tensors made on the GPU by habit; each has a context on the card.

cause: outside
line:
remedy: cpu-only-workers|end-other-process
"""

import torch
import torch.multiprocessing as mp
import torch.nn as nn


def environment(pipe, device="cuda"):
    state = torch.zeros(24, device=device)
    pipe.send(state.cpu())
    while (action := pipe.recv()) is not None:
        state = state * 0.99 + action.to(device).mean()
        pipe.send(state.cpu())


class ActorCritic(nn.Module):
    def __init__(self, width=2048):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, width), nn.Tanh(), *[self.layer(width) for _ in range(4)])
        self.mean, self.value = nn.Linear(width, 6), nn.Linear(width, 1)

    @staticmethod
    def layer(width):
        return nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def forward(self, obs):
        h = self.body(obs)
        return self.mean(h), self.value(h).squeeze(-1)


def main(workers=5):
    context = mp.get_context("fork")
    pipes = []
    for _ in range(workers):
        here, there = context.Pipe()
        context.Process(target=environment, args=(there,), daemon=True).start()
        pipes.append(here)
    model = ActorCritic().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    try:
        for update in range(5):
            states = torch.stack([pipe.recv() for pipe in pipes])
            obs = states.repeat(8_000, 1).cuda()
            mean, value = model(obs)
            loss = mean.square().mean() + (value - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(update, loss.item())
            for pipe, action in zip(pipes, mean[:workers].detach().cpu(), strict=True):
                pipe.send(action)
    finally:
        for pipe in pipes:
            pipe.send(None)


if __name__ == "__main__":
    main()
