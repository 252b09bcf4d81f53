"""Large random tensors on the host in the tries of a plan and of a table of cards: they behave like any
tensor, and take next to no memory.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import on_device

pytest.importorskip("torch")

SIZE = 200_000_003

LARGE = f"""
    import os
    from memfit_probe import random_numbers
    random_numbers.arm(torch)

    def resident():
        pages = int(open("/proc/self/statm").read().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")

    torch.zeros(1, device=device)
    before = resident()
    x = torch.randn({SIZE})
    taken = resident() - before
    drawn = x[: 1 << 16].clone()
    repeated = [bool((x[begin : begin + len(drawn)] == drawn[: len(x[begin:])]).all())
                for begin in range(1 << 16, len(x), 997 << 16)]
    tail = bool((x[len(x) >> 16 << 16 :] == drawn[: len(x) & 0xFFFF]).all())
    copies = [x[:: 1 << 16].clone() for _ in range(2)]
    x[5 << 16] += 1
    changed = (x[:: 1 << 16] != copies[0]).nonzero().tolist()
    x.resize_(10)
    y = torch.rand({SIZE}, dtype=torch.float64)
    answer(taken=taken, repeated=all(repeated), tail=tail, changed=changed, mean=y[::1009].mean().item(),
           spread=drawn.std().item(), kept=bool((x == drawn[:10]).all()))
"""


def test_a_very_large_random_tensor_takes_little_memory(tmp_path: Path) -> None:
    answer = on_device(LARGE, tmp_path)
    assert answer.status == 0, answer.output
    said = answer.said
    assert said["taken"] < 50 << 20, f"{SIZE * 4} bytes of values"
    assert said["repeated"]
    assert said["tail"]
    assert said["changed"] == [[5]], "a change is private to its place"
    assert said["mean"] == pytest.approx(0.5, abs=0.02)
    assert said["spread"] == pytest.approx(1, abs=0.02)
    assert said["kept"]


CLEARED = f"""
    from memfit_probe import random_numbers
    random_numbers.arm(torch)
    zeros = torch.zeros({SIZE // 8}, device=device)
    pinned = torch.rand({SIZE // 8}, pin_memory=True)
    drawn = pinned[::1009].mean().item()
    pinned.copy_(zeros)
    answer(drawn=drawn, left=pinned.abs().max().item())
"""


def test_a_page_locked_tensor_is_overwritten_like_any_other(tmp_path: Path) -> None:
    answer = on_device(CLEARED, tmp_path)
    assert answer.status == 0, answer.output
    assert answer.said["drawn"] == pytest.approx(0.5, abs=0.02)
    assert answer.said["left"] == 0


FORKED = f"""
    import os
    from memfit_probe import random_numbers
    random_numbers.arm(torch)
    x = torch.randn({SIZE // 8})
    child = os.fork()
    if child == 0:
        try:
            torch.zeros(1, device=device)
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    torch.zeros(1, device=device)
    answer(child=status, mean=x[::1009].mean().item())
"""


def test_a_process_that_is_forked_afterwards_can_use_the_gpu(tmp_path: Path) -> None:
    answer = on_device(FORKED, tmp_path)
    assert answer.status == 0, answer.output
    assert answer.said["child"] == 0
    assert answer.said["mean"] == pytest.approx(0, abs=0.05)


CONSTRUCTORS = """
    arguments = {"arange": (3,), "as_tensor": ([1],), "asarray": ([1],), "empty": (3,), "eye": (3,), "full": ((2,), 1.0),
                 "hann_window": (4,), "linspace": (0, 1, 3), "logspace": (0, 1, 3), "ones": (3,), "rand": (3,),
                 "randint": (5, (2,)), "randn": (3,), "randperm": (4,), "scalar_tensor": (1.0,), "tensor": ([1],),
                 "tril_indices": (2, 2), "zeros": (3,)}
    def elsewhere(place):
        return [name for name, given in arguments.items() if getattr(torch, name)(*given).device.type != place]
    with torch.device("cuda"):
        within = elsewhere("cuda")
    after = elsewhere("cpu")
    torch.set_default_device("cuda")
    answer(within=within, after=after, default=elsewhere("cuda"))
"""


def test_the_default_device_applies_to_every_function_that_makes_a_tensor(tmp_path: Path) -> None:
    said = on_device(CONSTRUCTORS, tmp_path).said
    assert said == {"within": [], "after": [], "default": []}
