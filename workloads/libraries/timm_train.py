"""Image classification the way timm's own training script does it: its optimizer, mixup, loss, scaler and average."""

import argparse

import timm
import torch
from arithmetic import adam_moments, say, stored
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3, NativeScaler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--precision", choices=["bf16", "fp16"], default="bf16")
    parser.add_argument("--grad-checkpointing", action="store_true")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()

    device = torch.device("cuda")
    model = timm.create_model(args.model, pretrained=False, num_classes=100, drop_path_rate=0.1).to(device)
    if args.grad_checkpointing:
        model.set_grad_checkpointing()
    average = ModelEmaV3(model, decay=0.999)
    optimizer = create_optimizer_v2(model, opt=args.optimizer, lr=1e-3, weight_decay=0.05)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=100)
    loss_fn = SoftTargetCrossEntropy()
    scaler = NativeScaler() if args.precision == "fp16" else None
    kind = torch.float16 if scaler else torch.bfloat16
    # The average is a second model.
    expected = {"parameters": 2 * stored(model.parameters())}
    if args.optimizer == "adamw":
        expected["optimizer"] = adam_moments(model.parameters())
    say(**expected)

    model.train()
    size = model.default_cfg["input_size"][-1]
    for step in range(args.steps):
        images = torch.randn(args.batch_size, 3, size, size).to(device, non_blocking=True)
        labels = torch.randint(100, (args.batch_size,)).to(device, non_blocking=True)
        images, labels = mixup(images, labels)
        with torch.autocast("cuda", kind):
            loss = loss_fn(model(images), labels)
        optimizer.zero_grad()
        if scaler:
            scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        average.update(model, step=step)
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
