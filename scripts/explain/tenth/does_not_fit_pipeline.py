"""All three models of a text-to-image pipeline go to the GPU in float32, before a picture is made.

cause: does-not-fit
line: .to(device)
remedy: shard|pure-bf16|quantized-weights|torchao-weights
false: checkpointing|micro-batch|smaller-batch|fused-optimizer|8-bit-optimizer|no-grad|expandable-segments
"""

import torch
from torch import nn


class TextEncoder(nn.Module):
    def __init__(self, vocabulary=49_408, width=1024, layers=12):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers)

    def forward(self, ids):
        return self.layers(self.tokens(ids))


class Denoiser(nn.Module):
    def __init__(self, channels=640, blocks=36):
        super().__init__()
        self.enter = nn.Conv2d(4, channels, 3, padding=1)
        self.text = nn.Linear(1024, channels)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.GroupNorm(32, channels),
                nn.SiLU(),
                nn.Conv2d(channels, 2 * channels, 3, padding=1),
                nn.SiLU(),
                nn.Conv2d(2 * channels, channels, 3, padding=1),
            )
            for _ in range(blocks)
        )
        self.leave = nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, latents, text):
        x = self.enter(latents) + self.text(text.mean(1))[..., None, None]
        for block in self.blocks:
            x = x + block(x)
        return self.leave(x)


class Pipeline:
    def __init__(self):
        self.text_encoder = TextEncoder()
        self.unet = Denoiser()
        self.decoder = nn.ConvTranspose2d(4, 3, 8, stride=8)

    def to(self, device):
        for part in (self.text_encoder, self.unet, self.decoder):
            part.to(device)
        return self

    @torch.inference_mode()
    def __call__(self, ids, steps=20):
        text = self.text_encoder(ids)
        latents = torch.randn(len(ids), 4, 64, 64, device=ids.device)
        for _ in range(steps):
            latents = latents - self.unet(latents, text) / steps
        return self.decoder(latents)


pipe = Pipeline().to("cuda")
images = pipe(torch.randint(0, 49_408, (1, 77), device="cuda"))
print(images.shape)
