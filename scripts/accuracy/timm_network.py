"""A network of timm's in the loop of its `benchmark.py --amp`: trained by SGD, or only run forward.

python timm_network.py MODEL train|infer BATCH SIZE nchw|nhwc
"""

import sys

import timm
import torch


def network(name: str, size: int) -> torch.nn.Module:
    """The network for images of a size, where it takes one."""
    try:
        return timm.create_model(name, img_size=size)
    except TypeError:
        return timm.create_model(name)


def main() -> None:
    name, mode, batch, size, layout = (
        sys.argv[1],
        sys.argv[2],
        int(sys.argv[3]),
        int(sys.argv[4]),
        sys.argv[5],
    )
    form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    model = network(name, size).cuda().to(memory_format=form)
    images = torch.randn(batch, 3, size, size, device="cuda").contiguous(memory_format=form)
    if mode == "infer":
        model.eval()
        with torch.no_grad():
            for _ in range(4):
                with torch.autocast("cuda", torch.float16):
                    model(images)
                torch.cuda.synchronize()
        return
    labels = torch.zeros(batch, dtype=torch.long, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()


main()
