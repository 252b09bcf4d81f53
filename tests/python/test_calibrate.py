"""`memfit calibrate`, rehearsed on a virtual card: it has to find the figures of the card that it was put
on.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from runs import MIB, Run, invoke, memfit
from tiers import rarely


@functools.cache
def rehearsed(gpu: str) -> dict[str, Any]:
    """The calibration of a virtual card."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "calibration.json"
        calibrate = [memfit(), "calibrate", "--python", sys.executable, "--output", str(target)]
        answer = invoke(["run", "--gpu", gpu, "--steps", "0", "--format", "json", "--", *calibrate])
        assert target.exists(), answer.stdout + answer.stderr
        assert answer.status == 0, answer.stdout + answer.stderr
        return json.loads(target.read_text())


def catalogue(gpu: str, *options: str) -> dict[str, Any]:
    return json.loads(invoke(["gpus", gpu, "--format", "json", *options]).stdout)


def near(found: float, wanted: float, tolerance: float) -> bool:
    return abs(found / wanted - 1) <= tolerance


@pytest.mark.parametrize("gpu", ["t4", rarely("a100-80gb:2")])
def test_a_virtual_card_is_found_as_it_is_in_the_catalogue(gpu: str) -> None:
    calibration = rehearsed(gpu)
    name, _, count = gpu.partition(":")
    known = catalogue(name, "--isolated")
    card, outside = known["gpu"], known["outside"][f"cuda_{calibration['with']['cuda'].split('.')[0]}"]
    achieved = card["achieved"]
    assert calibration["schema"] == "memfit.calibrate/1"
    assert calibration["card"]["id"] == name
    assert calibration["card"]["is_virtual"]
    assert calibration["card"]["memory"] == card["memory"]

    # A card shows what lies outside the allocator at its upper bound; libraries get a margin beyond that.
    measured = calibration["outside"]
    assert abs(measured["context"]["typical"] - outside["context"]["high"]) <= 2 * MIB
    assert abs(measured["libraries"]["typical"] - outside["libraries"]["high"]) <= 2 * MIB
    assert measured["libraries"]["high"] >= outside["libraries"]["high"]
    assert measured["other_processes"] == 0
    # Nobody else comes or goes on a virtual card: nothing widens what was measured.
    assert measured["context"]["high"] - measured["context"]["low"] <= 4 * MIB

    ordinary, tensor = achieved["ordinary"][1] / 1000, achieved["tensor"][1] / 1000
    for kind, share in {
        "fp64": ordinary,
        "fp32": ordinary,
        "fp16": tensor,
        "bf16": tensor,
        "tf32": tensor,
    }.items():
        if card["rates"][kind]:
            assert near(calibration["rates"][kind]["typical"], card["rates"][kind] * share, 0.06), kind
        else:
            assert kind not in calibration["rates"], "without a path of its own there is nothing to measure"
    assert near(
        calibration["memory_bandwidth"]["typical"],
        card["memory_bandwidth"] * achieved["memory"][1] / 1000,
        0.02,
    )
    pinned = card["host_link"]["bandwidth"] * achieved["host_link"][1] / 1000
    pageable = 1 / (1 / pinned + 1 / achieved["staging"])
    link = calibration["host_link"]
    for way in ("to_card", "to_host"):
        assert near(link[f"{way}_pinned"]["typical"], pinned, 0.02)
        assert near(link[f"{way}_pageable"]["typical"], pageable, 0.02)
    assert near(calibration["launch_ns"]["typical"], achieved["launch_ns"], 0.1)

    gaps = [gap["what"] for gap in calibration["not_measured"]]
    if not count:
        assert gaps == ["communicators, links between GPUs"]
        assert calibration["peer_link"] is None
        return
    assert gaps == []
    communicator = measured["per_communicator"]
    # The low end is the first collective alone; more of them bring buffers of their own.
    assert communicator["low"] <= outside["per_communicator"]["high"] + 2 * MIB
    assert communicator["typical"] >= outside["per_communicator"]["high"] - 2 * MIB
    peers = card["peer_link"]["bandwidth"] * achieved["peer_link"][1] / 1000
    assert near(calibration["peer_link"]["typical"], peers, 0.05)


def kept(folder: Path, calibration: dict[str, Any]) -> dict[str, str]:
    """Keeps a calibration as if it were this machine's own card's; gives the environment in which it is."""
    machine = Path("/proc/sys/kernel/hostname").read_text().strip()
    calibration = json.loads(json.dumps(calibration))
    calibration["card"]["is_virtual"] = False
    calibration["outside"]["other_processes"] = 300 * MIB
    target = folder / "memfit" / "calibration" / machine / f"{calibration['card']['id']}.json"
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps(calibration))
    return {"XDG_CONFIG_HOME": str(folder)}


def test_stored_calibrations_are_used_and_named(tmp_path: Path) -> None:
    environment = kept(tmp_path, rehearsed("t4"))

    def ask(*arguments: str) -> Run:
        return invoke(list(arguments), env=environment)

    shown = json.loads(ask("calibrate", "--show", "--format", "json").stdout)
    assert shown["schema"] == "memfit.calibrations/1"
    assert [each["card"]["id"] for each in shown["calibrations"]] == ["t4"]
    assert "calibrated on" in ask("gpus", "t4").stdout
    assert "t4: calibrated on" in " ".join(ask("doctor").stdout.split())

    workload = ["--", sys.executable, "vit.py", "--layers", "1"]
    report = json.loads(ask("run", "--gpu", "t4", "--format", "json", *workload).stdout)
    assert report["outside"]["other_processes"] == 300 * MIB
    origins = {part["name"]: part["origin"] for part in report["outside_parts"]}
    assert origins == dict.fromkeys(("context", "libraries", "other_processes"), "calibrated")
    assert any("calibrated on" in note for note in report["fidelity"]["notes"])
    high = sum(part["high"] for part in report["outside_parts"])
    assert report["peak"]["device_upper"] == report["peak"]["reserved"] + high

    plain = json.loads(ask("--isolated", "run", "--gpu", "t4", "--format", "json", *workload).stdout)
    assert plain["outside"]["other_processes"] == 0
    assert {part["origin"] for part in plain["outside_parts"]} <= {"published", "modelled"}

    assert "forgot" in ask("calibrate", "--forget", "t4").stdout
    gone = ask("calibrate", "--show")
    assert gone.status == 2
    assert "no calibration is stored" in gone.stderr


def test_a_calibration_from_elsewhere_is_taken_where_it_is_named(tmp_path: Path) -> None:
    target = tmp_path / "t4.json"
    target.write_text(json.dumps(rehearsed("t4")))
    assert "calibrated on a virtual GPU" in invoke(["gpus", "t4", "--calibration", str(target)]).stdout
    target.write_text('{"schema": "memfit.calibrate/2"}')
    broken = invoke(["gpus", "t4", "--calibration", str(target)])
    assert broken.status == 2
    assert "is not a calibration" in broken.stderr


def test_without_a_card_it_says_so() -> None:
    answer = invoke(["calibrate"])
    if answer.status == 0:
        pytest.skip("there is a card")
    assert answer.status == 2
    assert answer.stdout == ""
    assert "no NVIDIA GPU" in answer.stderr
    assert "--output FILE" in answer.stderr
