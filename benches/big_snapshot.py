"""Writes a memory snapshot of any size, as PyTorch would: `python benches/big_snapshot.py FILE [GIB]`.

What is in it is made up, its shape is not: stacks of some thirty frames from a few thousand places in a program, and
some 230 bytes an event, nearly all of them references to frames that were written before. `cargo bench -p memfit-recording
--bench pickle -- FILE` reads it, and says how much memory that took.
"""

import pickle
import random
import struct
import sys
from collections.abc import Callable
from itertools import count
from typing import BinaryIO

FRAMES = 3000
STACKS = 2000
BATCH = 1000


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def get(number: int) -> bytes:
    return b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)


def write(to: BinaryIO, size: int) -> int:
    """Writes until the file has about this many bytes; returns how many events it has."""
    generator, memo = random.Random(1), count()
    to.write(b"\x80\x04}(" + text("segments") + b"]" + text("device_traces") + b"](](")
    # Keys and frames come with the first event, and are only referred to from then on.
    known: dict[str, int] = {}

    def word(value: str) -> bytes:
        if value in known:
            return get(known[value])
        known[value] = next(memo)
        return text(value) + b"\x94"

    def number(value: int) -> bytes:
        return pickle.dumps(value, protocol=2)[2:-1]

    frames: list[int] = []

    def new_frame(index: int) -> bytes:
        begin = b"}\x94"
        frames.append(next(memo))
        return (
            begin
            + b"("
            + b"".join(
                (
                    word("name"),
                    word(f"function_{index}"),
                    word("filename"),
                    word(f"/home/someone/project/module_{index % 97}.py"),
                    word("line"),
                    number(index),
                )
            )
            + b"u"
        )

    def event(action: str, address: int, time: int, stack: Callable[[], bytes]) -> bytes:
        return (
            b"}("
            + b"".join(
                (
                    word("action"),
                    word(action),
                    word("addr"),
                    number(address),
                    word("size"),
                    number(512),
                    word("stream"),
                    number(0),
                    word("time_us"),
                    number(time),
                    word("frames"),
                    b"](",
                    stack(),
                    b"e",
                )
            )
            + b"u"
        )

    base, now, events = 0x7F0000000000, 1_757_253_255_000_000, 0
    to.write(event("alloc", base, now, lambda: b"".join(map(new_frame, range(FRAMES)))))
    stacks = [
        b"".join(get(frame) for frame in generator.sample(frames, generator.randrange(15, 45)))
        for _ in range(STACKS)
    ]
    actions = ("alloc", "free_requested", "free_completed")
    while to.tell() < size:
        part = []
        for _ in range(BATCH):
            events += 1
            address = base + events // 3 % 5000 * 512
            stack = generator.choice(stacks)
            part.append(event(actions[events % 3], address, now + events, lambda stack=stack: stack))
        to.write(b"e(" + b"".join(part))
    to.write(b"eeu.")
    return events + 1


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        total = write(file, int(float(sys.argv[2] if len(sys.argv) > 2 else "2") * (1 << 30)))
    print(f"{total} events")
