"""The same network under optimizers that save memory: of bitsandbytes, torchao, transformers and of PyTorch's hooks."""

import argparse
import math

import torch
from arithmetic import adam_moments, say, stored
from torch import nn

WIDTH = 2048


def elements(parameters):
    return sum(each.numel() for each in parameters)


def blocks(parameters, size):
    return sum(math.ceil(each.numel() / size) for each in parameters)


def bitsandbytes_adamw8bit(parameters):
    import bitsandbytes as bnb

    # A byte for each value of two moments, a scale for each block of 256, and two maps of 256 values; a tensor of
    # fewer than 4096 values keeps its moments in fp32.
    large = [each for each in parameters if each.numel() >= 4096]
    small = [each for each in parameters if each.numel() < 4096]
    state = 2 * elements(large) + 2 * 4 * blocks(large, 256) + adam_moments(small, 4) + 2 * 256 * 4
    return bnb.optim.AdamW8bit(parameters, lr=1e-3), state


def bitsandbytes_paged_adamw32(parameters):
    import bitsandbytes as bnb

    # Managed memory, which the driver migrates on demand and which is not PyTorch's.
    small = [each for each in parameters if each.numel() < 1e5]
    return bnb.optim.PagedAdamW32bit(parameters, lr=1e-3), adam_moments(small, 4)


def bitsandbytes_lion8bit(parameters):
    import bitsandbytes as bnb

    large = [each for each in parameters if each.numel() >= 4096]
    small = [each for each in parameters if each.numel() < 4096]
    return bnb.optim.Lion8bit(parameters, lr=1e-4), elements(large) + 4 * blocks(large, 256) + 4 * elements(
        small
    ) + 256 * 4


def torchao_low_bit(name, bits, block):
    def make(parameters):
        import torchao.optim as low

        # Tensors of fewer than 4096 values, or not a multiple of the block, stay as they are.
        large = [each for each in parameters if each.numel() >= 4096 and each.numel() % block == 0]
        small = [each for each in parameters if not (each.numel() >= 4096 and each.numel() % block == 0)]
        state = 2 * (elements(large) * bits // 8 + 4 * blocks(large, block)) + adam_moments(small)
        return getattr(low, name)(parameters, lr=1e-3), state

    return make


def torchao_offload(parameters):
    from torchao.optim import CPUOffloadOptimizer

    # Parameters of fewer than 4096 values are not worth the copies, and keep their state on the device.
    small = [each for each in parameters if each.numel() < 4096]
    make = CPUOffloadOptimizer(parameters, torch.optim.AdamW, offload_gradients=True, lr=1e-3)
    return make, adam_moments(small)


def adafactor(parameters):
    return torch.optim.Adafactor(parameters, lr=1e-3), sum(
        4 * (sum(each.shape) if each.dim() > 1 else each.numel()) for each in parameters
    )


def transformers_adafactor(parameters):
    from transformers.optimization import Adafactor

    return Adafactor(parameters, scale_parameter=False, relative_step=False, lr=1e-3), sum(
        4 * (sum(each.shape) if each.dim() > 1 else each.numel()) for each in parameters
    )


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3), adam_moments(parameters)


class InBackward:
    """Steps each parameter as soon as its gradient is there, and drops the gradient."""

    def __init__(self, parameters):
        self.optimizers = {each: torch.optim.AdamW([each], lr=1e-3) for each in parameters}
        for each in parameters:
            each.register_post_accumulate_grad_hook(self._hook)

    def _hook(self, parameter):
        self.optimizers[parameter].step()
        self.optimizers[parameter].zero_grad()

    def step(self):
        pass

    def zero_grad(self):
        pass


def in_backward(parameters):
    return InBackward(parameters), adam_moments(parameters)


OPTIMIZERS = {
    "adamw": adamw,
    "bnb-adamw8bit": bitsandbytes_adamw8bit,
    "bnb-paged-adamw32bit": bitsandbytes_paged_adamw32,
    "bnb-lion8bit": bitsandbytes_lion8bit,
    "torchao-adamw8bit": torchao_low_bit("AdamW8bit", 8, 256),
    "torchao-adamw4bit": torchao_low_bit("AdamW4bit", 4, 128),
    "torchao-adamwfp8": torchao_low_bit("AdamWFp8", 8, 256),
    "torchao-cpu-offload": torchao_offload,
    "adafactor": adafactor,
    "transformers-adafactor": transformers_adafactor,
    "in-backward": in_backward,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()

    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(args.layers)]
    model = nn.Sequential(*layers).to("cuda")
    parameters = list(model.parameters())
    optimizer, state = OPTIMIZERS[args.optimizer](parameters)
    say(parameters=stored(parameters), optimizer=state)
    for step in range(args.steps):
        images = torch.randn(args.batch_size, WIDTH).to("cuda")
        loss = model(images).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
