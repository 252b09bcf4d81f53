"""Trains with parallel plans on gloo, and compares with one process that trains on the whole batches.

  python scripts/distributed/numerics.py [--world 2 4 8] [--faults 2] [--models NAME…] [--out FILE.md]

Each case trains for three optimizer steps of two batches each with `memfit.Step(plan=…)`, gradient clipping
and an incomplete last batch. With a fault, one rank gets an out-of-memory error at a random point of a
forward or backward pass. The gradients of each step before clipping, all parameters at the end, and the
losses are compared. The command fails if a difference is above the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from ranks import environments

HERE = Path(__file__).parent
ACCUMULATE, STEPS, CLIP = 2, 3, 0.1
# Larger than the usual one, with which AdamW makes whole steps of the rounding of gradients that are zero,
# such as those of key biases in attention.
EPSILON = 1e-3
# The largest difference of parameters, of gradients beside their norm, and of losses.
LIMITS = {"float64": 1e-12, "float32": 5e-5}


def degrees(world: int) -> dict[str, dict[str, Any]]:
    """Return the plans for a number of ranks, by the name of the engine."""
    found = {"DDP": {"replicate": world}, "FSDP2": {"shard": world}, "tensor": {"tensor": world}}
    if world >= 4:
        found["HSDP"] = {"replicate": 2, "shard": world // 2}
        found["tensor, FSDP2"] = {"shard": world // 2, "tensor": 2}
        found["tensor, replicas"] = {"replicate": world // 2, "tensor": 2}
    if world >= 8:
        found["tensor, HSDP"] = {"replicate": 2, "shard": world // 4, "tensor": 2}
    found["1F1B"] = {"pipeline": world, "schedule": "1f1b"}
    if world <= 4:
        found["interleaved 1F1B"] = {"pipeline": world, "schedule": "interleaved-1f1b"}
    if world >= 4:
        found["1F1B, replicas"] = {"pipeline": world // 2, "replicate": 2}
    return found


def blocks_needed(plan: dict[str, Any]) -> int:
    """Return the number of blocks that a pipeline needs: one for each stage."""
    return plan.get("pipeline", 1) * (2 if plan.get("schedule") == "interleaved-1f1b" else 1)


# ------------------------------------------------------------------------------------------------- a rank


class Fault:
    """An out-of-memory error in one of a model's calls, on one rank."""

    def __init__(self, model: Any, at: int | None, backward: bool) -> None:
        self.at, self.backward = at, backward
        # In an object of a library, since attributes of the user's own are put back when a step is repeated.
        self.count = threading.local()
        self.count.seen, self.count.raised = 0, False
        # Set in the forward passes of training, but not in those that measure the effect of dividing a batch.
        self.armed = False
        for module in model.modules():
            module.register_forward_hook(self._called)

    def _called(self, _module: Any, _inputs: Any, output: Any) -> None:
        import torch

        self.count.seen += self.armed
        if not self.armed or self.count.seen != self.at:
            return
        tensor = output if isinstance(output, torch.Tensor) else None
        if self.backward and tensor is not None and tensor.requires_grad:
            tensor.register_hook(self._fail)
        else:
            self._fail()

    def arm(self, forward: Any) -> Any:
        """Wrap a forward pass of training."""

        def armed(*arguments: Any) -> Any:
            self.armed = True
            try:
                return forward(*arguments)
            finally:
                self.armed = False

        return armed

    def _fail(self, _gradient: Any = None) -> None:
        import torch

        if not self.count.raised:
            self.count.raised = True
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def whole(value: Any) -> Any:
    """Return all of a tensor that may be divided."""
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    return value.detach().double().clone()


def build(kind: Any, dtype: Any, seed: int = 0) -> Any:
    import torch

    torch.manual_seed(seed)
    return kind.build().to(dtype).train()


def one_process(kind: Any, dtype: Any) -> dict[str, Any]:
    """Train as a script of one process does, without memfit."""
    import torch

    model = build(kind, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=EPSILON)
    batches = kind.batches(dtype)
    found: dict[str, Any] = {"losses": [], "gradients": []}
    for start in range(0, len(batches), ACCUMULATE):
        sums = []
        for batch in batches[start : start + ACCUMULATE]:
            returned = kind.loss(model, batch)
            total, count = (
                returned if isinstance(returned, tuple) else (returned * len(batch[0]), len(batch[0]))
            )
            sums.append((total, float(count)))
            found["losses"].append(float(total) / float(count))
        optimizer.zero_grad()
        (sum(total for total, _ in sums) / sum(count for _, count in sums)).backward()
        found["gradients"].append(
            {n: whole(p.grad) for n, p in model.named_parameters() if p.grad is not None}
        )
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    found["parameters"] = {name: whole(each) for name, each in model.state_dict().items()}
    return found


def under_plan(
    kind: Any, dtype: Any, plan: dict[str, Any], rank: int, at: int | None, backward: bool
) -> dict[str, Any]:
    """Train the same under a plan. Ranks other than the first start with other weights, as without a seed."""
    import memfit
    import torch

    model = build(kind, dtype, seed=rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=EPSILON)
    found: dict[str, Any] = {"losses": [], "gradients": []}
    step = memfit.Step(
        model, optimizer, kind.loss, plan={"parallel": plan}, accumulate=ACCUMULATE, clip_grad_norm=CLIP,
        timeout=60,
    )  # fmt: skip
    fault = Fault(model, at, backward)
    step._runner._forward = fault.arm(step._runner._forward)
    clip = step._ranks.clip

    def noting(parameters: Any, most: float) -> Any:
        found["gradients"].append(
            {n: whole(p.grad) for n, p in model.named_parameters() if p.grad is not None}
        )
        return clip(parameters, most)

    step._ranks.clip = noting
    with step:
        results = [step(batch) for batch in kind.batches(dtype)]
    found["losses"] = [float(result.loss) for result in results]
    found["parameters"] = {name: whole(each) for name, each in model.state_dict().items()}
    found["calls"], found["raised"], found["retries"] = fault.count.seen, fault.count.raised, step.retries
    return found


def of_all_stages(found: dict[str, Any]) -> dict[str, Any]:
    """Return results with the tensors that other ranks' stages have in addition."""
    import torch.distributed as dist

    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (found["gradients"], found["parameters"]))
    for gradients, parameters in told:
        for mine, others in zip(found["gradients"], gradients, strict=True):
            mine.update({name: each for name, each in others.items() if name not in mine})
        found["parameters"].update(
            {name: each for name, each in parameters.items() if name not in found["parameters"]}
        )
    return found


def furthest(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference of two sets of tensors, which have to have the same names."""
    if one.keys() != other.keys():
        return float("inf")
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def differences(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """Return the largest differences of gradients (beside their norm), parameters and losses."""
    steps = zip(found["gradients"], expected["gradients"], strict=True)
    pairs = zip(found["losses"], expected["losses"], strict=True)
    return {
        "gradients": max(furthest(one, other) / norm(other) for one, other in steps),
        "parameters": furthest(found["parameters"], expected["parameters"]),
        "losses": max(abs(one - other) for one, other in pairs),
    }


def norm(tensors: dict[str, Any]) -> float:
    """Return the norm of all tensors together."""
    return float(sum(each.square().sum() for each in tensors.values()) ** 0.5)


def run_rank(arguments: argparse.Namespace) -> None:
    """Run all cases as one rank; rank 0 prints a line of JSON for each."""
    import torch
    import torch.distributed as dist

    sys.path.insert(0, str(HERE))
    from numerics_models import KINDS

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    chance = random.Random(arguments.seed)
    for name in arguments.models:
        kind = KINDS[name]
        for dtype in arguments.types:
            expected = one_process(kind, getattr(torch, dtype))
            for engine, plan in degrees(world).items():
                if ("tensor" in plan and not kind.tensor) or (
                    arguments.engines and engine not in arguments.engines
                ):
                    continue
                if blocks_needed(plan) > kind.blocks:
                    continue
                calls = 0
                for run in range(1 + arguments.faults):
                    victim, backward = chance.randrange(world), chance.random() < 0.5
                    part = chance.random()
                    at = 1 + int(part * calls) if run and rank == victim else None
                    found = under_plan(kind, getattr(torch, dtype), plan, rank, at, backward)
                    found = of_all_stages(found) if "pipeline" in plan else found
                    calls = calls or found["calls"]
                    told = torch.tensor([float(found["raised"]), float(found["retries"])])
                    dist.all_reduce(told)
                    mine = differences(found, expected)
                    worst = torch.tensor(list(mine.values()), dtype=torch.float64)
                    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
                    if rank == 0:
                        line = {
                            "model": name, "type": dtype, "engine": engine, "world": world, "fault": bool(run),
                            "raised": int(told[0]), "retried": int(told[1] > 0),
                            **dict(zip(mine, worst.tolist(), strict=True)),
                        }  # fmt: skip
                        print(json.dumps(line), flush=True)
    dist.destroy_process_group()


# -------------------------------------------------------------------------------------------- the command


def launch(world: int) -> list[dict[str, Any]]:
    """Run all cases on a number of ranks."""
    command = [sys.executable, __file__, "--rank", *sys.argv[1:]]
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as output:
        ranks = [
            subprocess.Popen(
                command,
                env={**environment, "TORCH_LOGS": "-all"},
                stdout=output if rank == 0 else subprocess.DEVNULL,
                stderr=errors,
                text=True,
            )
            for rank, environment in enumerate(environments(world))
        ]
        try:
            # The others would wait for a rank that ended.
            while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
                time.sleep(0.2)
        finally:
            for rank in ranks:
                rank.kill()
        if any(rank.wait() for rank in ranks):
            errors.seek(0)
            raise SystemExit(errors.read()[-8000:])
        output.seek(0)
        return [json.loads(line) for line in output]


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table: a row for each engine and number of ranks, over all models."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["engine"], row["world"]), []).append(row)
    lines = [
        "| engine | ranks | models | runs | with a fault, repeated | float64: gradients | parameters | losses "
        "| float32: gradients | parameters | losses |",
        "|---" * 11 + "|",
    ]
    for (engine, world), some in groups.items():
        numbers = [
            f"{max((row[what] for row in some if row['type'] == kind), default=0.0):.1e}"
            for kind in LIMITS
            for what in ("gradients", "parameters", "losses")
        ]
        faults = [row for row in some if row["raised"]]
        lines.append(
            f"| {engine} | {world} | {len({row['model'] for row in some})} | {len(some)} "
            f"| {len(faults)}, {sum(row['retried'] for row in faults)} | {' | '.join(numbers)} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument(
        "--models", nargs="+", default=["decoder", "untied", "deep", "llama", "gpt2", "encoder", "patches"]
    )
    parser.add_argument("--types", nargs="+", default=list(LIMITS))
    parser.add_argument("--engines", nargs="+")
    parser.add_argument("--faults", type=int, default=2, help="runs with a fault for each case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        run_rank(arguments)
        return
    began = time.monotonic()
    rows = [row for world in arguments.world for row in launch(world)]
    if arguments.json:
        arguments.json.write_text(json.dumps(rows))
    if arguments.out:
        arguments.out.write_text("\n".join([*heading(rows, time.monotonic() - began), *table(rows), ""]))
    bad = [
        row for row in rows if max(row["gradients"], row["parameters"], row["losses"]) > LIMITS[row["type"]]
    ]
    print(
        json.dumps(
            {"runs": len(rows), "above the limit": bad, "retried": sum(row["retried"] for row in rows)}
        )
    )
    raise SystemExit(1 if bad else 0)


def heading(rows: list[dict[str, Any]], seconds: float) -> list[str]:
    """Return the first lines of the page."""
    import torch

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
    ).stdout.strip()
    return [
        "# Numerics of parallel plans compared with one process",
        "",
        f"Written by `make parallel` ({time.strftime('%Y-%m-%d')}, commit {commit}) with PyTorch {torch.__version__}, "
        f"gloo, on the CPU, in {seconds / 60:.0f} minutes: {len(rows)} runs.",
        "",
        "A run trains for three optimizer steps with `memfit.Step(plan=…)` and gradient clipping. Each step has two batches "
        "of up to eight samples; the last batches have three and two samples, so with eight ranks most ranks have none. The "
        "loss of token models is the sum over labels that are not ignored, whose number differs between samples. In a run "
        "with a fault, one rank gets an out-of-memory error at a random point of a forward or backward pass, and all ranks "
        "repeat the window (all micro-batches of the step). The models are in `scripts/distributed/numerics_models.py`.",
        "",
        "The reference is one process that trains on the whole batches without memfit. The numbers are the largest "
        "differences from it, over all ranks: of a gradient before clipping, relative to the norm of all gradients; of a "
        "parameter after three steps of AdamW (eps 1e-3); and of a loss.",
        "",
    ]


if __name__ == "__main__":
    main()
