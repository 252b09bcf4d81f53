"""Scripts that do not end by themselves: what a report at the time limit says."""

from __future__ import annotations

import re
from pathlib import Path

from support import on_device, through_memfit

WAITING = """
    step = torch.zeros((), device=device)
    model = torch.nn.Linear(8, 8).to(device)
    for _ in range(9):
        model(torch.zeros(8, 8, device=device))
    while not step > 1:
        step = step + torch.rand((), device=device).abs()
"""


def test_a_loop_that_waits_for_an_assumed_value_is_named(tmp_path: Path) -> None:
    def start(gpu, command, environment):
        return through_memfit(gpu, command, environment, options=("--timeout", "15s"))

    answer = on_device(WAITING, tmp_path, start=start)
    problem = answer.report["problem"]
    assert problem["kind"] == "timeout", answer.output
    assert re.search(r"script\.py:\d+.* read values that only a GPU can compute", problem["message"]), problem
    # It may also be an evaluation that goes before the training.
    assert "It had run 9 forward passes without a backward pass" in problem["message"], problem
    assert all(words in problem["hint"] for words in ("shorten that evaluation", "a fixed number")), problem


FAILS_AND_STAYS = """
    import threading
    threading.Thread(target=threading.Event().wait).start()
    raise KeyError("image")
"""


def test_a_hanging_script_that_had_failed_is_ended_and_reported_with_its_error(tmp_path: Path) -> None:
    problem = on_device(FAILS_AND_STAYS, tmp_path).report["problem"]
    assert problem["kind"] == "exception", problem
    assert "KeyError: 'image'" in problem["message"], problem
