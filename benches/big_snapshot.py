"""Writes a memory snapshot of any size, as PyTorch would: `python benches/big_snapshot.py FILE [GIB]
[--protocol N]`.

The contents are synthetic, the structure is realistic: stacks of about thirty frames from a few thousand
lines, and about 230 bytes per event, nearly all of them references to frames that were written before. Every
list and dict is memoized, as in CPython's pickler. Blocks are allocated and freed in stack order within one
segment, as PyTorch's allocator would do, so the file can be replayed. `recordings.py` measures with it.
"""

from __future__ import annotations

import argparse
import random
import struct
from itertools import count
from typing import BinaryIO

FRAMES = 3000
STACKS = 2000
BATCH = 1000
BASE = 0x7F0000000000
SEGMENT = 2 << 20
BLOCK = 512
# The rest of the segment is never used up.
DEEPEST = SEGMENT // BLOCK - 96


class Writer:
    """Writes values like CPython's pickler: in batches of a thousand, with each new string and container
    memoized.
    """

    def __init__(self, to: BinaryIO, protocol: int) -> None:
        self.to, self.memo, self.known = to, count(), {}
        self.part: list[bytes] = []
        self.protocol = protocol
        self.add(b"\x80" + bytes([protocol]))

    def add(self, operations: bytes) -> None:
        self.part.append(operations)

    def flush(self) -> None:
        self.to.write(b"".join(self.part))
        self.part.clear()

    def put(self, operations: bytes) -> int:
        """Write a new value and memoize it."""
        number = next(self.memo)
        if self.protocol >= 4:
            into = b"\x94"
        else:
            into = b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)
        self.add(operations + into)
        return number

    def get(self, number: int) -> bytes:
        return b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)

    def text(self, value: str) -> None:
        if value in self.known:
            self.add(self.get(self.known[value]))
            return
        raw = value.encode()
        short = self.protocol >= 4 and len(raw) < 256
        self.known[value] = self.put(
            (b"\x8c" + bytes([len(raw)]) if short else b"X" + struct.pack("<I", len(raw))) + raw
        )

    def number(self, value: int) -> None:
        if 0 <= value < 1 << 8:
            self.add(b"K" + bytes([value]))
        elif 0 <= value < 1 << 16:
            self.add(b"M" + struct.pack("<H", value))
        elif -(1 << 31) <= value < 1 << 31:
            self.add(b"J" + struct.pack("<i", value))
        else:
            raw = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
            self.add(b"\x8a" + bytes([len(raw)]) + raw)

    def mapping(self, fields: dict[str, int | str]) -> int:
        """Begin a dict; items may be added until `u`."""
        number = self.put(b"}")
        self.add(b"(")
        for key, value in fields.items():
            self.text(key)
            self.text(value) if isinstance(value, str) else self.number(value)
        return number


def write(to: BinaryIO, size: int, protocol: int = 4) -> int:
    """Write events until the file has about this many bytes; return their number."""
    generator, writer = random.Random(1), Writer(to, protocol)
    writer.mapping({})
    writer.text("device_traces")
    writer.put(b"]")
    writer.add(b"(")
    writer.put(b"]")
    writer.add(b"(")
    now, events, depth = 1_757_253_255_000_000, 0, 0
    frames: list[int] = []
    stacks: list[bytes] = []

    def event(action: str, address: int, size: int) -> None:
        nonlocal now, events
        now, events = now + generator.randrange(40), events + 1
        writer.mapping({"action": action, "addr": address, "size": size, "stream": 0, "time_us": now})
        writer.text("frames")
        writer.put(b"]")
        writer.add(b"(")
        if not frames:
            # Frames come with the first event, and are only referred to from then on.
            for index in range(FRAMES):
                file = f"/home/someone/project/module_{index % 97}.py"
                frames.append(writer.mapping({"name": f"function_{index}", "filename": file, "line": index}))
                writer.add(b"u")
            for _ in range(STACKS):
                stack = generator.sample(frames, generator.randrange(15, 45))
                stacks.append(b"".join(writer.get(frame) for frame in stack))
        else:
            writer.add(generator.choice(stacks))
        writer.add(b"eu")

    event("segment_alloc", BASE, SEGMENT)
    rising = True
    while to.tell() < size:
        for _ in range(BATCH // 2):
            # Up and down like the steps of a training run, with some noise.
            up = depth == 0 or (depth < DEEPEST and rising == (generator.random() < 0.8))
            if up:
                event("alloc", BASE + depth * BLOCK, BLOCK)
                depth += 1
            else:
                depth -= 1
                event("free_requested", BASE + depth * BLOCK, BLOCK)
                event("free_completed", BASE + depth * BLOCK, BLOCK)
            if depth in (0, DEEPEST):
                rising = depth == 0
        writer.add(b"e(")
        writer.flush()
    writer.add(b"ee")
    segments(writer, depth)
    writer.add(b"u.")
    writer.flush()
    return events


def segments(writer: Writer, depth: int) -> None:
    """Write the final segment."""
    writer.text("segments")
    writer.put(b"]")
    writer.add(b"(")
    fields = {"device": 0, "address": BASE, "total_size": SEGMENT, "stream": 0, "segment_type": "small"}
    writer.mapping(fields)
    writer.text("blocks")
    writer.put(b"]")
    writer.add(b"(")
    for index in range(depth):
        block = {
            "address": BASE + index * BLOCK,
            "size": BLOCK,
            "requested_size": BLOCK,
            "state": "active_allocated",
        }
        writer.mapping(block)
        writer.add(b"u")
    rest = BASE + depth * BLOCK
    writer.mapping({"address": rest, "size": BASE + SEGMENT - rest, "requested_size": 0, "state": "inactive"})
    writer.add(b"ueue")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("gib", type=float, nargs="?", default=2)
    parser.add_argument("--protocol", type=int, default=4, choices=range(2, 6))
    arguments = parser.parse_args()
    with open(arguments.file, "wb") as file:
        events = write(file, int(arguments.gib * (1 << 30)), arguments.protocol)
    print(f"{events} events")


if __name__ == "__main__":
    main()
