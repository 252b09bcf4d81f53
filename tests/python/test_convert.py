"""`memfit convert`: what it writes is what the programs that it writes for read."""

from __future__ import annotations

import importlib
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from runs import memfit

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOT = ROOT / "crates/memfit-recording/tests/data/small-4.pickle"


def convert(*args: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([memfit(), "convert", *map(str, args)], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done


def test_a_snapshot_goes_through_every_format(tmp_path):
    original = pickle.loads(SNAPSHOT.read_bytes())
    again = tmp_path / "again.pickle"
    convert(SNAPSHOT, again)
    written = pickle.loads(again.read_bytes())
    trace, expected = written["device_traces"][0], original["device_traces"][0]
    for key in ("action", "size", "stream"):
        assert [entry[key] for entry in trace] == [entry[key] for entry in expected]
    assert [entry.get("frames", []) for entry in trace] == [entry.get("frames") or [] for entry in expected]
    assert [segment["blocks"][0]["state"] for segment in written["segments"]] == ["active_allocated"]

    convert(SNAPSHOT, tmp_path / "own.memfit")
    convert(tmp_path / "own.memfit", tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    allocs = [event for event in events if event["name"] == "[memory]" and event["args"]["Bytes"] > 0]
    assert {event["args"]["Device Type"] for event in allocs} == {1}
    rows = convert(tmp_path / "own.memfit", "-", "--to", "jsonl").stdout.splitlines()
    assert len(rows) == len(allocs)
    convert(tmp_path / "own.memfit", tmp_path / "trace.perfetto-trace")
    assert (tmp_path / "trace.perfetto-trace").stat().st_size > 100


def test_a_recorded_run_becomes_a_snapshot_with_stacks(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "def build():\n"
        "    return torch.nn.Linear(1024, 1024).cuda()\n"
        "model = build()\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "for _ in range(2):\n"
        "    model(torch.zeros(64, 1024, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    recording, snapshot = tmp_path / "run.memfit", tmp_path / "run.pickle"
    command = [memfit(), "run", "--gpu", "t4", "--steps", "2", "-o", recording, "--", sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    convert(recording, snapshot)
    written = pickle.loads(snapshot.read_bytes())
    trace = written["device_traces"][0]
    # The weight: 4 MiB, in a segment of 20 MiB, asked for where `build` moves the model.
    weight = next(entry for entry in trace if entry["action"] == "alloc" and entry["size"] == 4 << 20)
    places = [(frame["filename"], frame["line"], frame["name"]) for frame in weight["frames"]]
    assert (str(script), 3, "build") in places
    assert (str(script), 4, "<module>") in places
    assert not any("memfit_probe" in file for file, _, _ in places)
    assert any(entry["action"] == "segment_alloc" and entry["size"] == 20 << 20 for entry in trace)
    blocks = [block for segment in written["segments"] for block in segment["blocks"]]
    assert any(block["requested_size"] == 4 << 20 for block in blocks)
    assert sum(segment["total_size"] for segment in written["segments"]) == sum(b["size"] for b in blocks)
    # PyTorch's own page of it, which has the snapshot inside, is read again.
    page = tmp_path / "page.html"
    page.write_text(importlib.import_module("torch.cuda._memory_viz").trace_plot(written))
    convert(page, tmp_path / "again.pickle")
    again = pickle.loads((tmp_path / "again.pickle").read_bytes())
    assert [entry["addr"] for entry in again["device_traces"][0]] == [entry["addr"] for entry in trace]


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """A protocol buffer's fields, as the wire format has them: numbers, and bytes of a length."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        number, kind = key >> 3, key & 7
        if kind == 0:
            yield number, varint()
        else:
            assert kind == 2, f"field {number} is of wire type {kind}"
            length = varint()
            assert at + length <= len(message), "a field is longer than its message"
            yield number, message[at : at + length]
            at += length


def test_a_trace_for_perfetto_is_decoded_to_what_was_recorded(tmp_path):
    own, trace = tmp_path / "own.memfit", tmp_path / "trace.perfetto-trace"
    convert(SNAPSHOT, own)
    convert(own, trace)
    # trace.proto: Trace.packet = 1; TracePacket.timestamp = 8, track_event = 11, track_descriptor = 60.
    packets = [dict(fields(packet)) for number, packet in fields(trace.read_bytes()) if number == 1]
    described = {}
    for packet in packets:
        if 60 in packet:
            descriptor = dict(fields(packet[60]))
            assert descriptor[1] not in described, "each track is described once"
            described[descriptor[1]] = descriptor
    for descriptor in described.values():
        # TrackDescriptor.parent_uuid = 5: a process, which is a track of its own.
        assert 5 not in descriptor or 3 in described[descriptor[5]]
    events = [(packet[8], dict(fields(packet[11]))) for packet in packets if 11 in packet]
    assert [time for time, _ in events] == sorted(time for time, _ in events)
    # TrackEvent.type = 9 (1 begins, 2 ends, 3 an instant, 4 a counter), track_uuid = 11, counter_value = 30.
    open_slices: dict[int, int] = {}
    counters: dict[str, list[int]] = {}
    for _, event in events:
        uuid = event[11]
        assert uuid in described
        if event[9] == 4:
            counters.setdefault(described[uuid][2].decode(), []).append(event[30])
        elif event[9] in (1, 2):
            open_slices[uuid] = open_slices.get(uuid, 0) + (1 if event[9] == 1 else -1)
            assert open_slices[uuid] >= 0, "what ends has begun"
    rows = [
        json.loads(row) for row in convert(own, "-", "--to", "jsonl", "--rows", "events").stdout.splitlines()
    ]
    for name in ("allocated", "reserved"):
        known = {row[name] for row in rows if row.get(name) is not None}
        [told] = [values for track, values in counters.items() if name in track]
        assert set(told) <= known | {0}
        assert max(told) == max(known)


def test_converting_there_and_back_keeps_what_both_formats_have(tmp_path):
    """Snapshot, recording, snapshot, recording: from the first recording on, nothing changes any more."""
    first, snapshot, second = (tmp_path / name for name in ("one.memfit", "one.pickle", "two.memfit"))
    convert(SNAPSHOT, first)
    convert(first, snapshot)
    convert(snapshot, second)
    for rows in ("blocks", "events"):
        one, two = (convert(file, "-", "--to", "csv", "--rows", rows).stdout for file in (first, second))
        assert one == two


def test_impossible_conversions_give_the_reason(tmp_path):
    assert "`--to`" in convert(SNAPSHOT, tmp_path / "out.xyz", status=2).stderr
    there = tmp_path / "there.csv"
    there.write_text("mine")
    assert "--force" in convert(SNAPSHOT, there, status=2).stderr
    assert there.read_text() == "mine"
    convert(SNAPSHOT, there, "--force")
    log = tmp_path / "log.txt"
    log.write_text("RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.")
    assert "memfit explain" in convert(log, tmp_path / "log.csv", status=2).stderr
