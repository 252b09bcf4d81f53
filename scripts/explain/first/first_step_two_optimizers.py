"""Two optimizers; the second one's first step, with momentum and averages, is what is too much.

cause: first-step-surprise
line: critic_optimizer.step()|step()
"""

import torch
from torch import nn


def stack(width: int, depth: int) -> nn.Module:
    return nn.Sequential(
        *(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.LeakyReLU()))
    )


def main() -> None:
    actor, critic = stack(1024, 12).cuda(), stack(3072, 13).cuda()
    actor_optimizer = torch.optim.Adam(actor.parameters())
    critic_optimizer = torch.optim.RMSprop(critic.parameters(), momentum=0.9, centered=True)
    for _ in range(2):
        actor_loss = actor(torch.randn(256, 1024, device="cuda")).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        critic_loss = critic(torch.randn(256, 3072, device="cuda")).square().mean()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()


main()
