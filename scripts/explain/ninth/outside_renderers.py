"""Six simulator processes keep a small tensor each on the card, which costs a CUDA context each.

cause: outside
remedy: cpu-only-workers
"""

import torch
import torch.multiprocessing as mp
from torch import nn


class Simulator:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.position = torch.zeros(128, 3, device="cuda")
        self.velocity = torch.randn(128, 3, device="cuda")

    def advance(self, dt=0.02):
        self.position += dt * self.velocity
        return self.position.flatten().cpu()


def serve(connection, seed):
    simulator = Simulator(seed)
    connection.send(simulator.advance())
    while connection.recv():
        connection.send(simulator.advance())


def main(simulators=6):
    context = mp.get_context("spawn")
    connections = []
    for seed in range(simulators):
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, seed), daemon=True).start()
        connections.append(ours)
    observations = [c.recv() for c in connections]

    policy = nn.Sequential(
        nn.Linear(384, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 32)
    ).cuda()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    for step in range(20):
        obs = torch.stack(observations).cuda().repeat(2048, 1)
        loss = policy(obs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for c in connections:
            c.send(True)
        observations = [c.recv() for c in connections]
    for c in connections:
        c.send(False)


if __name__ == "__main__":
    main()
