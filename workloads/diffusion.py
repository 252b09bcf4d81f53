"""Training of a diffusion model's network: it is shown pictures with noise, and says what the noise was."""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, count, size):
        self.count = count
        self.size = size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.randn(3, self.size, self.size)


class Residual(nn.Module):
    def __init__(self, inside, outside, times):
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(32, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1)
        )
        self.time = nn.Linear(times, outside)
        self.second = nn.Sequential(
            nn.GroupNorm(32, outside), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(outside, outside, 3, padding=1)
        )
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x, time):
        hidden = self.first(x) + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.second(hidden)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(32, width)
        self.into = nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, x):
        batch, width, rows, columns = x.shape
        q, k, v = (
            part.reshape(batch, self.heads, width // self.heads, rows * columns).transpose(2, 3)
            for part in self.into(self.norm(x)).chunk(3, dim=1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(2, 3).reshape(batch, width, rows, columns))


class Stage(nn.Module):
    def __init__(self, inside, outside, times, attends):
        super().__init__()
        self.residual = Residual(inside, outside, times)
        self.attention = Attention(outside, outside // 64) if attends else nn.Identity()

    def forward(self, x, time):
        return self.attention(self.residual(x, time))


class Network(nn.Module):
    """Down and up again over `widths`, with two stages at each size."""

    def __init__(self, width, factors, attends_from):
        super().__init__()
        times = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, times), nn.SiLU(), nn.Linear(times, times))
        widths = [width * factor for factor in factors]
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.up, kept, now = nn.ModuleList(), nn.ModuleList(), [width], width
        for level, outside in enumerate(widths):
            for _ in range(2):
                self.down.append(Stage(now, outside, times, level >= attends_from))
                now = outside
                kept.append(now)
        self.middle = Stage(now, now, times, True)
        for level, outside in reversed(list(enumerate(widths))):
            for _ in range(2):
                self.up.append(Stage(now + kept.pop(), outside, times, level >= attends_from))
                now = outside
        self.last = nn.Sequential(nn.GroupNorm(32, now), nn.SiLU(), nn.Conv2d(now, 3, 3, padding=1))

    def forward(self, x, times):
        half = self.width // 2
        rates = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        angles = times[:, None] * rates[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        x = self.first(x)
        kept = []
        for index, stage in enumerate(self.down):
            x = stage(x, time)
            kept.append(x)
            if index % 2 and index + 1 < len(self.down):
                x = functional.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for stage in self.up:
            before = kept.pop()
            if x.shape[-1] != before.shape[-1]:
                x = functional.interpolate(x, scale_factor=2)
            x = stage(torch.cat([x, before], dim=1), time)
        return self.last(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Network(args.width, (1, 2, 3, 4), attends_from=1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kept = torch.linspace(0.9999, 0.98, 1000, device=device).cumprod(0)
    loader = DataLoader(Pictures(args.batch_size * args.steps, args.image_size), batch_size=args.batch_size)

    model.train()
    for step, pictures in enumerate(loader):
        pictures = pictures.to(device)
        noise = torch.randn_like(pictures)
        times = torch.randint(1000, (len(pictures),), device=device)
        share = kept[times][:, None, None, None]
        noisy = share.sqrt() * pictures + (1 - share).sqrt() * noise
        loss = functional.mse_loss(model(noisy, times.float()), noise)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
