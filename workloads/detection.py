"""Object detection with Faster R-CNN on generated boxes."""

import argparse

import torch
from torchvision.models.detection import fasterrcnn_resnet50_fpn


def sample(size, objects):
    corner = torch.rand(objects, 2) * size * 0.6
    extent = torch.rand(objects, 2) * size * 0.3 + 8
    boxes = torch.cat([corner, corner + extent], dim=1)
    return torch.rand(3, size, size), {"boxes": boxes, "labels": torch.randint(1, 21, (objects,))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--image-size", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--objects", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = fasterrcnn_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=21,
        min_size=args.image_size,
        max_size=args.image_size,
    ).to(device)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=0.005, momentum=0.9, weight_decay=5e-4)

    model.train()
    for step in range(args.steps):
        batch = [sample(args.image_size, args.objects) for _ in range(args.batch_size)]
        images = [image.to(device) for image, _ in batch]
        targets = [{name: value.to(device) for name, value in target.items()} for _, target in batch]
        losses = model(images, targets)
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
