"""The head of a large vocabulary and its loss, by themselves: what they need beyond their inputs."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from measured import report

SOFTCAP = 30.0  # of the model whose head this is; the published benchmark applies it


def head_loss(hidden, weight, targets):
    logits = hidden @ weight.T
    logits = torch.tanh(logits / SOFTCAP) * SOFTCAP
    return F.cross_entropy(logits.float(), targets)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=256000)
    parser.add_argument("--width", type=int, default=2304)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()

    function = torch.compile(head_loss) if args.compile else head_loss
    hidden = torch.randn(args.tokens, args.width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(args.vocabulary, args.width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    targets = torch.randint(0, args.vocabulary, (args.tokens,), device="cuda")

    def more_than_before(operation):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = operation()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before, result

    for _ in range(2):  # the first round warms up; the second is what is measured
        hidden.grad = weight.grad = None
        forward, loss = more_than_before(lambda: function(hidden, weight, targets))
        backward, _ = more_than_before(loss.backward)
        del loss
        hidden.grad = weight.grad = None
        both, _ = more_than_before(lambda: function(hidden, weight, targets).backward())
    report(forward=forward, backward=backward, both=both)


if __name__ == "__main__":
    main()
