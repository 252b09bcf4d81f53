"""Training of what a latent diffusion model is made of: the network that removes noise, or the autoencoder."""

import argparse

import torch
import torch.nn.functional as F
from arithmetic import adam_moments, say, stored
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel, UNet2DModel
from diffusers.training_utils import EMAModel


def conditional():
    return UNet2DConditionModel(
        sample_size=32,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(64, 128, 256),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=256,
        attention_head_dim=8,
    )


def unconditional():
    return UNet2DModel(
        sample_size=64,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(64, 128, 256),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
    )


def autoencoder():
    return AutoencoderKL(
        block_out_channels=(32, 64, 128),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        latent_channels=4,
        norm_num_groups=16,
    )


def noisy(model, scheduler, images, **condition):
    noise = torch.randn_like(images)
    times = torch.randint(0, scheduler.config.num_train_timesteps, (len(images),), device=images.device)
    return F.mse_loss(model(scheduler.add_noise(images, noise, times), times, **condition).sample, noise)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--model", choices=["conditional", "unconditional", "autoencoder"], default="conditional"
    )
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--ema", action="store_true")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    make = {"conditional": conditional, "unconditional": unconditional, "autoencoder": autoencoder}
    model = make[args.model]().to(device)
    if args.gradient_checkpointing:
        model.enable_gradient_checkpointing()
    average = EMAModel(model.parameters()) if args.ema else None
    if average:
        average.to(device)
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    say(parameters=stored(model.parameters()), optimizer=adam_moments(model.parameters()))
    for step in range(args.steps):
        with torch.autocast(device, torch.bfloat16):
            if args.model == "autoencoder":
                images = torch.randn(args.batch_size, 3, 128, 128).to(device)
                latent = model.encode(images).latent_dist
                loss = F.mse_loss(model.decode(latent.sample()).sample, images) + 1e-6 * latent.kl().mean()
            elif args.model == "conditional":
                words = torch.randn(args.batch_size, 77, 256).to(device)
                latents = torch.randn(args.batch_size, 4, 32, 32).to(device)
                loss = noisy(model, scheduler, latents, encoder_hidden_states=words)
            else:
                loss = noisy(model, scheduler, torch.randn(args.batch_size, 3, 64, 64).to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if average:
            average.step(model.parameters())
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
