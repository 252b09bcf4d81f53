"""Self-play keeps the root of every search, and with it the latent state of each node on the card.

cause: leaking
line: Node(|self.history.append(|history.append(root)|self.dynamics(
remedy: keep-on-cpu|drop-variables
"""

import torch
from torch import nn


class Node:
    def __init__(self, latent, prior, parent=None):
        self.latent = latent
        self.prior = prior
        self.parent = parent
        self.children = []
        self.visits = 0


class World(nn.Module):
    def __init__(self, planes=128, board=19):
        super().__init__()
        self.represent = nn.Conv2d(17, planes, 3, padding=1)
        self.dynamics = nn.Sequential(nn.Conv2d(planes, planes, 3, padding=1), nn.ReLU())
        self.policy = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(planes, board * board + 1)
        )


class SelfPlay:
    def __init__(self, world, games=32, simulations=24):
        self.world, self.games, self.simulations = world, games, simulations
        self.history = []

    def search(self, board):
        latent = self.world.represent(board)
        root = Node(latent, self.world.policy(latent).softmax(-1))
        leaf = root
        for i in range(self.simulations):
            latent = self.world.dynamics(leaf.latent)
            child = Node(latent, self.world.policy(latent).softmax(-1), parent=leaf)
            leaf.children.append(child)
            leaf.visits += 1
            leaf = child if i % 3 else root
        return root

    @torch.inference_mode()
    def play(self, moves):
        board = torch.zeros(self.games, 17, 19, 19, device="cuda")
        for _ in range(moves):
            root = self.search(board)
            self.history.append(root)
            board = board.roll(1, dims=1)
        return self.history


world = World().cuda()
records = SelfPlay(world).play(moves=200)
print(sum(len(r.children) for r in records))
