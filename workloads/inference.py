"""Classification of images by a network that is not trained."""

import argparse

import torch
from torchvision import models


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="resnet50")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--half", action="store_true")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.float16 if args.half else torch.float32
    model = models.get_model(args.arch).to(device, dtype).eval()
    for batch in range(args.batches):
        images = torch.rand(args.batch_size, 3, args.image_size, args.image_size).to(device, dtype)
        predicted = model(images).argmax(1)
        print(f"batch {batch}: {predicted[:4].tolist()}")


if __name__ == "__main__":
    main()
