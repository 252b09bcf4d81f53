"""A generator and a discriminator, each with its own optimizer."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def generator(latent, width):
    layers = [nn.ConvTranspose2d(latent, 8 * width, 4), nn.BatchNorm2d(8 * width), nn.ReLU(True)]
    for scale in (8, 4, 2):
        layers += [
            nn.ConvTranspose2d(scale * width, scale * width // 2, 4, stride=2, padding=1),
            nn.BatchNorm2d(scale * width // 2),
            nn.ReLU(True),
        ]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1), nn.Tanh())


def discriminator(width):
    layers = [nn.Conv2d(3, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2, True)]
    for scale in (1, 2, 4):
        layers += [
            nn.Conv2d(scale * width, 2 * scale * width, 4, stride=2, padding=1),
            nn.BatchNorm2d(2 * scale * width),
            nn.LeakyReLU(0.2, True),
        ]
    return nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4), nn.Flatten(0))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--latent", type=int, default=128)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument(
        "--critic-steps", type=int, default=1, help="discriminator steps for each generator step"
    )
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    make, judge = generator(args.latent, args.width).to(device), discriminator(args.width).to(device)
    make_optimizer = torch.optim.Adam(make.parameters(), lr=2e-4, betas=(0.5, 0.999))
    judge_optimizer = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    ones = torch.ones(args.batch_size, device=device)
    zeros = torch.zeros(args.batch_size, device=device)

    for step in range(args.steps):
        for _ in range(args.critic_steps):
            real = torch.rand(args.batch_size, 3, 64, 64).to(device) * 2 - 1
            noise = torch.randn(args.batch_size, args.latent, 1, 1, device=device)
            fake = make(noise).detach()
            loss_judge = F.binary_cross_entropy_with_logits(judge(real), ones)
            loss_judge = loss_judge + F.binary_cross_entropy_with_logits(judge(fake), zeros)
            judge_optimizer.zero_grad()
            loss_judge.backward()
            judge_optimizer.step()

        noise = torch.randn(args.batch_size, args.latent, 1, 1, device=device)
        loss_make = F.binary_cross_entropy_with_logits(judge(make(noise)), ones)
        make_optimizer.zero_grad()
        loss_make.backward()
        make_optimizer.step()
        print(f"step {step} discriminator {loss_judge.item():.4f} generator {loss_make.item():.4f}")


if __name__ == "__main__":
    main()
