"""The steady training step of a ResNet-50, three ways, in one run.

    memfit run --gpu a100-80gb --steps 0 --show-output -- python benches/steady.py

`plain` is the virtual GPU alone, `watched` the virtual GPU as `memfit run` uses it, `tracker` PyTorch's own
FakeTensorMode with MemTracker on the same GPU. Each runs in a process of its own, one after another, and
prints the median time of a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack

from unwatched import environment


def steps(ways: str, batch_size: int, count: int) -> dict[str, float]:
    import torch
    from torch import nn
    from torchvision.models import resnet50

    with ExitStack() as stack:
        tracker = None
        if ways == "tracker":
            from torch._subclasses.fake_tensor import FakeTensorMode
            from torch.distributed._tools.mem_tracker import MemTracker

            stack.enter_context(FakeTensorMode())
            tracker = MemTracker()
        with torch.device("cuda"):  # a fake model cannot be moved
            model = resnet50()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loss_fn = nn.CrossEntropyLoss()
        images = torch.empty(batch_size, 3, 224, 224, device="cuda")
        labels = torch.zeros(batch_size, dtype=torch.long, device="cuda")
        if tracker is not None:
            tracker.track_external(model, optimizer, images, labels)

        def step() -> None:
            loss = loss_fn(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        times = []
        for _ in range(count):
            start = time.perf_counter()
            if tracker is not None:
                with tracker:
                    step()
                tracker.reset_mod_stats()
            else:
                step()
            times.append((time.perf_counter() - start) * 1000)
        if tracker is not None:
            device = next(device for device in tracker.get_tracker_snapshot("peak") if device.type == "cuda")
            peak = tracker.get_tracker_snapshot("peak")[device]["Total"]
        else:
            peak = torch.cuda.max_memory_allocated()
    steady = times[min(5, count // 2) :]
    return {
        "first_ms": times[0],
        "median_ms": statistics.median(steady),
        "best_ms": min(steady),
        "steps": count,
        "peak_allocated": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tracker-steps", type=int, default=6)
    parser.add_argument("--as", dest="ways", choices=["plain", "watched", "tracker"])
    args = parser.parse_args()
    if args.ways:
        count = args.tracker_steps if args.ways == "tracker" else args.steps
        print(json.dumps(steps(args.ways, args.batch_size, count)), flush=True)
        return
    results = {}
    for ways in ("plain", "watched", "tracker"):
        command = [sys.executable, __file__, "--as", ways]
        command += ["--batch-size", str(args.batch_size), "--steps", str(args.steps)]
        command += ["--tracker-steps", str(args.tracker_steps)]
        env = None if ways == "watched" else environment()
        printed = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
        results[ways] = json.loads(printed.splitlines()[-1])
        print(f"{ways}: {results[ways]}", flush=True)
    print("steady: " + json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
