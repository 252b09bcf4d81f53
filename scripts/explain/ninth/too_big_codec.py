"""A neural audio codec trained on three-second clips keeps every full-rate feature map for the backward pass.

cause: too-big
line: self.conv2(F.elu(|self.down(|self.codec(|self.encoder(|x = stage(x)
remedy: checkpointing|micro-batch|smaller-batch|autocast-fp16|activation-offload|shorter-sequences
"""

import torch
import torch.nn.functional as F
from torch import nn


class ResidualUnit(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.conv1 = nn.Conv1d(channels, channels, 3, dilation=dilation, padding=dilation)
        self.conv2 = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        return x + self.conv2(F.elu(self.conv1(F.elu(x))))


class Stage(nn.Module):
    def __init__(self, channels, stride):
        super().__init__()
        self.units = nn.Sequential(*(ResidualUnit(channels, d) for d in (1, 3, 9)))
        self.down = nn.Conv1d(channels, channels * 2, stride * 2, stride, padding=stride // 2)

    def forward(self, x):
        return self.down(F.elu(self.units(x)))


class Codec(nn.Module):
    def __init__(self, width=32, strides=(2, 4, 5, 8)):
        super().__init__()
        self.stem = nn.Conv1d(1, width, 7, padding=3)
        self.encoder = nn.ModuleList(Stage(width * 2**i, s) for i, s in enumerate(strides))
        self.latent = nn.Conv1d(width * 2 ** len(strides), 128, 3, padding=1)
        self.decoder = nn.ConvTranspose1d(128, 1, 640, 320, padding=160)

    def forward(self, wave):
        x = self.stem(wave)
        for stage in self.encoder:
            x = stage(x)
        return self.decoder(self.latent(x))


class CodecTrainer:
    def __init__(self, device="cuda"):
        self.device = device
        with torch.device(device):
            self.codec = Codec()
        self.optimizer = torch.optim.AdamW(self.codec.parameters(), lr=3e-4, betas=(0.8, 0.99))

    def spectral_loss(self, fake, real):
        window = torch.hann_window(1024, device=self.device)
        a = torch.stft(fake.squeeze(1), 1024, 256, window=window, return_complex=True).abs()
        b = torch.stft(real.squeeze(1), 1024, 256, window=window, return_complex=True).abs()
        return (a - b).abs().mean()

    def training_step(self, wave):
        wave = wave.to(self.device)
        fake = self.codec(wave)
        n = min(fake.shape[-1], wave.shape[-1])
        loss = self.spectral_loss(fake[..., :n], wave[..., :n])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, steps, batch_size):
        for step in range(steps):
            loss = self.training_step(torch.randn(batch_size, 1, 48_000))
            print(f"step {step}: {loss:.3f}")


if __name__ == "__main__":
    CodecTrainer().fit(steps=20, batch_size=24)
