"""A vision transformer under AdamW in its three implementations."""

import argparse

import torch
from torch import nn
from torchvision.models import VisionTransformer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--patch-size", type=int, default=16)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--optimizer", choices=["loop", "foreach", "fused"], default="foreach")
    parser.add_argument("--keep-gradients", action="store_true", help="zero them instead of dropping them")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = VisionTransformer(
        image_size=args.image_size,
        patch_size=args.patch_size,
        num_layers=args.layers,
        num_heads=args.heads,
        hidden_dim=args.width,
        mlp_dim=4 * args.width,
    ).to(device)
    implementation = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **implementation[args.optimizer])
    loss_fn = nn.CrossEntropyLoss()

    model.train()
    for step in range(args.steps):
        images = torch.randn(args.batch_size, 3, args.image_size, args.image_size).to(device)
        labels = torch.randint(1000, (args.batch_size,)).to(device)
        loss = loss_fn(model(images), labels)
        optimizer.zero_grad(set_to_none=not args.keep_gradients)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
