"""Detection, instance masks and segmentation with torchvision's models, as its reference scripts train them."""

import argparse

import torch
import torchvision
from arithmetic import say, stored, trainable
from torch import nn

DETECTION = {
    "fasterrcnn": torchvision.models.detection.fasterrcnn_resnet50_fpn,
    "maskrcnn": torchvision.models.detection.maskrcnn_resnet50_fpn,
    "retinanet": torchvision.models.detection.retinanet_resnet50_fpn,
    "fcos": torchvision.models.detection.fcos_resnet50_fpn,
    "ssdlite": torchvision.models.detection.ssdlite320_mobilenet_v3_large,
}
SEGMENTATION = {
    "deeplabv3": torchvision.models.segmentation.deeplabv3_resnet50,
    "fcn": torchvision.models.segmentation.fcn_resnet50,
    "lraspp": torchvision.models.segmentation.lraspp_mobilenet_v3_large,
}


def annotated(size, objects=6):
    corner = torch.rand(objects, 2) * size * 0.6
    boxes = torch.cat([corner, corner + torch.rand(objects, 2) * size * 0.3 + 8], dim=1)
    masks = torch.zeros(objects, size, size, dtype=torch.uint8)
    for mask, (x0, y0, x1, y1) in zip(masks, boxes.int().tolist()):
        mask[y0:y1, x0:x1] = 1
    labels = torch.randint(1, 21, (objects,))
    return torch.rand(3, size, size), {"boxes": boxes, "labels": labels, "masks": masks}


def detection_loss(model, size, batch):
    samples = [annotated(size) for _ in range(batch)]
    images = [image.cuda() for image, _ in samples]
    targets = [{name: value.cuda() for name, value in target.items()} for _, target in samples]
    return sum(model(images, targets).values())


def segmentation_loss(model, size, batch):
    images = torch.randn(batch, 3, size, size).cuda()
    labels = torch.randint(21, (batch, size, size)).cuda()
    outputs = model(images)
    losses = {
        name: nn.functional.cross_entropy(out, labels, ignore_index=255) for name, out in outputs.items()
    }
    return losses["out"] + 0.5 * losses["aux"] if "aux" in losses else losses["out"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=[*DETECTION, *SEGMENTATION], default="fasterrcnn")
    parser.add_argument("--image-size", type=int, default=320)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()

    if args.model in DETECTION:
        options = (
            {} if args.model == "ssdlite" else {"min_size": args.image_size, "max_size": args.image_size}
        )
        model = DETECTION[args.model](weights=None, weights_backbone=None, num_classes=21, **options)
        loss_of = detection_loss
    else:
        options = {} if args.model == "lraspp" else {"aux_loss": True}
        model = SEGMENTATION[args.model](weights=None, weights_backbone=None, num_classes=21, **options)
        loss_of = segmentation_loss
    model = model.cuda().train()
    learned = trainable(model)
    optimizer = torch.optim.SGD(learned, lr=0.01, momentum=0.9, weight_decay=1e-4)
    say(parameters=stored(model.parameters()), optimizer=stored(learned))
    for step in range(args.steps):
        loss = loss_of(model, args.image_size, args.batch_size)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
