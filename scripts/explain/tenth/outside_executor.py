"""Workers that only cut pictures touch the GPU once each, and each pays for a context.

cause: outside|other-processes
remedy: cpu-only-workers|end-other-process|loader-workers
false: checkpointing|micro-batch|no-grad|fused-optimizer|activation-offload|expandable-segments
"""

import multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor

import torch
import torch.nn.functional as F
from torch import nn

WORKERS = 8


def prepare(seed):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(seed)
    mean = torch.tensor([0.485, 0.456, 0.406], device=device)
    image = torch.rand(3, 256, 256, generator=generator)
    top, left = torch.randint(0, 32, (2,), generator=generator).tolist()
    return image[:, top : top + 224, left : left + 224] - mean.cpu()[:, None, None]


class Net(nn.Module):
    def __init__(self, c=64, depth=6):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 7, 2, 3)
        self.body = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU())
                for _ in range(depth)
            )
        )
        self.fc = nn.Linear(c, 1000)

    def forward(self, x):
        return self.fc(self.body(self.stem(x)).mean((2, 3)))


def main():
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ProcessPoolExecutor(WORKERS, mp_context=mp.get_context("spawn")) as executor:
        for step in range(4):
            seeds = range(step * 48, (step + 1) * 48)
            images = torch.stack(list(executor.map(prepare, seeds, chunksize=6))).cuda()
            labels = torch.randint(0, 1000, (48,), device="cuda")
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
