"""Watching changes nothing: the same script has the same peaks, and finds the same PyTorch, unwatched."""

from __future__ import annotations

import sys

from runs import MIB, ROOT, run
from support import on_device
from tiers import exhaustive

SAYS = "says_its_peak.py --steps 3"
UNWATCHED = f"{ROOT}/benches/unwatched.py {sys.executable}"
TO_THE_END = "--steps 0 --show-output"


def printed_peaks(answer):
    """Peaks of allocated and of reserved memory, as PyTorch printed them in the script."""
    line = next(line for line in answer.stderr.splitlines() if "peak by torch" in line)
    allocated, reserved = (int(word) for word in line.split()[-2:])
    return {"allocated": allocated, "reserved": reserved}


def test_the_report_has_pytorchs_own_figures():
    answer = run(SAYS, options=TO_THE_END)
    reported = {name: answer.peak[name] for name in ("allocated", "reserved")}
    assert reported == printed_peaks(answer)
    assert reported["reserved"] > 100 * MIB


def test_the_peaks_are_the_same_unwatched():
    watched = run(SAYS, options=TO_THE_END)
    unwatched = run(f"{UNWATCHED} {SAYS}", options=TO_THE_END)
    assert printed_peaks(unwatched) == printed_peaks(watched)


@exhaustive
def test_a_compiled_model_is_compiled_as_often_as_unwatched():
    compiled = (
        "checkpointed.py --layers 2 --width 64 --heads 2 --sequence 64 --vocabulary 128 --compile --graphs"
    )
    watched = run(compiled, options=TO_THE_END)
    unwatched = run(f"{UNWATCHED} {compiled}", options=TO_THE_END)
    counted = [
        next(line for line in answer.stderr.splitlines() if "graphs:" in line)
        for answer in (watched, unwatched)
    ]
    assert counted[0] == counted[1]


def test_a_model_that_works_in_place_trains():
    answer = run("gan.py --width 32 --critic-steps 2")
    assert answer.report["verdict"] == "fits", answer.stderr


RESET = """
    x = torch.empty(7 << 30, dtype=torch.uint8, device=device)
    del x
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    y = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    answer(own=torch.cuda.max_memory_allocated())
"""


def test_peaks_are_those_of_the_whole_run_whatever_the_script_sets_back(tmp_path):
    answer = on_device(RESET, tmp_path)
    report = answer.report
    assert answer.said["own"] == 1 << 30, answer.output
    assert (report["peak"]["allocated"], report["peak"]["reserved"]) == (7 << 30, 7 << 30)
    assert report["at_peak"]["allocated"] == 7 << 30
    assert report["outside"]["other_processes"] == 0
