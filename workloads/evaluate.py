"""Training with an evaluation on larger batches after each epoch."""

import argparse
from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision import models


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--eval-batch-size", type=int, default=128)
    parser.add_argument("--train-images", type=int, default=128)
    parser.add_argument("--test-images", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--no-grad", action="store_true", help="evaluate under torch.no_grad()")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def loader(length, batch_size, shuffle):
        images = torch.rand(length, 3, args.image_size, args.image_size)
        labels = torch.randint(10, (length,))
        return DataLoader(TensorDataset(images, labels), batch_size=batch_size, shuffle=shuffle)

    train_loader = loader(args.train_images, args.batch_size, shuffle=True)
    test_loader = loader(args.test_images, args.eval_batch_size, shuffle=False)

    model = models.get_model(args.arch, num_classes=10).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        model.train()
        for images, labels in train_loader:
            loss = loss_fn(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        model.eval()
        correct = 0
        with torch.no_grad() if args.no_grad else nullcontext():
            for images, labels in test_loader:
                outputs = model(images.to(device))
                correct += (outputs.argmax(1).cpu() == labels).sum().item()
        print(f"epoch {epoch} loss {loss.item():.4f} accuracy {correct / args.test_images:.3f}")


if __name__ == "__main__":
    main()
