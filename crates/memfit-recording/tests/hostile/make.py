"""Writes the hostile files next to this one, packed where they would be large: `python make.py`.

Each is a file that somebody might be sent. What memfit must say of each stands in `expected.txt`, which the
test reads.
"""

from __future__ import annotations

import base64
import gzip
import json
import lzma
import sqlite3
import struct
import tempfile
import zlib
from pathlib import Path

FOLDER = Path(__file__).parent
DATA = FOLDER.parent / "data"
MIB = 1 << 20
BASE = 0x7F00_0000_0000


# Pickles, operation by operation.
def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    raw = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def mapping(**fields: bytes) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in fields.items()) + b"u"


def listing(*elements: bytes) -> bytes:
    return b"](" + b"".join(elements) + b"e"


def pickled(operations: bytes) -> bytes:
    return b"\x80\x04" + operations


def event(**fields: bytes) -> bytes:
    usual = {"action": text("alloc"), "addr": number(BASE), "size": number(512), "stream": number(0)}
    return mapping(**{**usual, **fields})


def segment(**fields: bytes) -> bytes:
    block = mapping(address=number(BASE), size=number(2 * MIB), state=text("inactive"))
    usual = {
        "device": number(0),
        "address": number(BASE),
        "total_size": number(2 * MIB),
        "stream": number(0),
        "segment_type": text("small"),
        "blocks": listing(block),
    }
    return mapping(**{**usual, **fields})


def whole(events: bytes, segments: bytes = b"]") -> bytes:
    return pickled(mapping(segments=segments, device_traces=listing(events)) + b".")


def pickles() -> dict[str, bytes]:
    good = event()
    # Each list holds the one before ten times over: a thousand million elements in a few hundred bytes.
    laughs = b"]\x94" + b"".join(
        b"](" + b"h" + bytes([level]) + b"h" + bytes([level]) + b"e\x94" for level in range(200)
    )
    frame = mapping(name=text("f"), filename=text("f.py"), line=number(1))
    growing = frame + b"\x940](h\x00e" + b"h\x00a" * (1 << 17)
    frames_of_itself = b"]\x94(" + frame + b"h\x00e"
    return {
        "pickle-memo-doubling": pickled(laughs + b"."),
        "pickle-duplicates.gz": gzip.compress(pickled(b"N" + b"2" * (16 * MIB) + b"."), mtime=0),
        "pickle-growing-stack.gz": gzip.compress(pickled(growing), mtime=0),
        "pickle-empty-lists.gz": gzip.compress(pickled(b"]" * (8 * MIB)), mtime=0),
        "pickle-deep.gz": gzip.compress(pickled(b"](" * 100_000), mtime=0),
        "pickle-many-streams.gz": gzip.compress(
            whole(listing(*[event(stream=number(index)) for index in range(6000)])), mtime=0
        ),
        "pickle-many-texts.gz": gzip.compress(
            whole(listing(*[event(user_metadata=text("x" * 4000 + str(index))) for index in range(20_000)])),
            mtime=0,
        ),
        "pickle-list-of-itself": pickled(b"]\x94h\x00a."),
        "pickle-segments-of-themselves": pickled(b"}\x94" + text("segments") + b"h\x00s."),
        "pickle-frames-of-themselves": whole(listing(event(frames=frames_of_itself))),
        "pickle-global": pickled(b"cos\nsystem\n" + text("id") + b"\x85R."),
        "pickle-stack-global": pickled(b"\x8c\x08builtins\x94\x8c\x04exec\x94\x93" + text("1") + b"\x85R."),
        "pickle-instance": pickled(b"(ios\nsystem\n."),
        "pickle-object": pickled(b"}}\x81."),
        "pickle-state": pickled(b"}}b."),
        "pickle-extension": pickled(b"\x82\x01."),
        "pickle-persistent": pickled(b"Pid\n."),
        "pickle-global-behind-events": pickled(
            mapping(device_traces=listing(listing(good, good), b"cos\nsystem\n")) + b"."
        ),
        "pickle-text-too-long": pickled(b"\x8d" + struct.pack("<Q", 1 << 62)),
        "pickle-text-cut-off": pickled(b"X" + struct.pack("<I", 1 << 20) + b"short"),
        "pickle-text-not-utf8": pickled(b"\x8c\x02\xc3\x28."),
        "pickle-number-too-long": pickled(b"\x8b\xff\xff\xff\xff"),
        "pickle-frame-lies": b"\x80\x04\x95" + struct.pack("<Q", 1 << 63) + b"].",
        "pickle-memo-skips": pickled(b"]r" + struct.pack("<I", 1 << 31) + b"."),
        "pickle-memo-missing": pickled(b"h\x07."),
        "pickle-stack-empty": pickled(b"(e."),
        "pickle-unknown-operation": pickled(b"\xfe."),
        "pickle-protocol-0": b"(dp0\nS'segments'\np1\n(lp2\ns.",
        "pickle-protocol-9": b"\x80\x09}.",
        "pickle-of-a-number": pickled(b"K\x2a."),
        "pickle-of-other-data": pickled(mapping(weights=listing(number(1), number(2))) + b"."),
        "pickle-segments-a-number": pickled(mapping(segments=number(3), device_traces=number(4)) + b"."),
        "pickle-traces-a-mapping": pickled(mapping(segments=b"]", device_traces=mapping(a=b"]")) + b"."),
        "pickle-trace-of-numbers": whole(listing(number(1), number(2))),
        "pickle-events-of-wrong-types": whole(
            listing(
                good,
                event(size=text("large")),
                event(addr=b"G" + struct.pack(">d", 1.5)),
                event(stream=b"N"),
                event(size=number(-1)),
                event(size=number(1 << 70)),
                event(frames=number(7)),
                event(action=text("teleport")),
                good,
            )
        ),
        "pickle-events-out-of-this-world": whole(
            listing(event(addr=number((1 << 64) - 1), size=number((1 << 64) - 1)), good)
        ),
        "pickle-device-of-millions": pickled(listing(segment(device=number(1 << 30)), segment()) + b"."),
        "pickle-segments-uneven": pickled(
            listing(segment(total_size=number(4 * MIB)), segment(total_size=number((1 << 64) - 1)), segment())
            + b"."
        ),
        "pickle-blocks-of-numbers": pickled(listing(segment(blocks=listing(number(1)))) + b"."),
    }


def packed() -> dict[str, bytes]:
    snapshot = (DATA / "small-4.pickle").read_bytes()
    zeros = bytes(64 * MIB)
    one = gzip.compress(snapshot, mtime=0)
    nested = snapshot
    for _ in range(5):
        nested = gzip.compress(nested, mtime=0)
    damaged = bytearray(one)
    damaged[-6] ^= 0xFF
    header = b"\x28\xb5\x2f\xfd"
    xz = lzma.compress(snapshot, check=lzma.CHECK_CRC32)
    # A dictionary of 4 GiB less one byte, in a header whose checksum is right.
    block = bytes([0x02, 0x00, 0x21, 0x01, 40, 0, 0, 0])
    block += struct.pack("<I", zlib.crc32(block))
    return {
        "gzip-of-zeros-twice.gz": gzip.compress(gzip.compress(zeros, mtime=0), mtime=0),
        "gzip-within-gzip.gz": nested,
        "gzip-wrong-sum.gz": bytes(damaged),
        "gzip-cut-off.gz": one[: len(one) // 2],
        "gzip-rest-of-garbage.gz": one + b"garbage",
        "gzip-header-alone.gz": one[:10],
        "zstd-window-of-two-gigabytes.zst": header + bytes([0x00, 0xA8, 0x01, 0x00, 0x00]),
        "zstd-garbage.zst": header + b"\xff" * 40,
        "zstd-of-zeros.zst": header + bytes([0x00, 0x58]) + rle_blocks(2000),
        "xz-dictionary-of-four-gigabytes.xz": xz[:12] + block + b"\x00" * 32,
        "xz-cut-off.xz": xz[: len(xz) // 2],
        "zip.zip": b"PK\x03\x04" + bytes(26),
        "bzip2.bz2": b"BZh91AY&SY" + bytes(20),
    }


def rle_blocks(count: int) -> bytes:
    """Blocks of zstd that say one byte 128 Ki times over."""
    blocks = []
    for index in range(count):
        last = index == count - 1
        blocks.append(struct.pack("<I", int(last) | 1 << 1 | (128 << 10) << 3)[:3] + b"\x00")
    return b"".join(blocks)


def pages() -> dict[str, bytes]:
    snapshot = base64.b64encode((DATA / "small-4.pickle").read_bytes())
    start = b'<!DOCTYPE html><script>add_local_files([{"name": "a", "base64": "'
    return {
        "page-without-snapshot.html": b"<!DOCTYPE html><html><body>nothing</body></html>",
        "page-cut-off.html": start + snapshot[: len(snapshot) // 2],
        "page-not-base64.html": start + snapshot[:100] + b"!" + snapshot[100:] + b'"}])</script>',
        "page-of-other-data.html": start + base64.b64encode(b"\x80\x04}.") + b'"}])</script>',
        "page-of-nothing.html": start + b'"}])</script>',
        "page-of-code.html": start + base64.b64encode(b"\x80\x04cos\nsystem\n)R.") + b'"}])</script>',
        "page-snapshot-far-behind.gz": gzip.compress(
            b"<html>" + b" " * (17 * MIB) + start + snapshot, mtime=0
        ),
    }


def memory_event(**fields: object) -> dict:
    arguments = {
        "Addr": BASE,
        "Bytes": 512,
        "Device Type": 1,
        "Device Id": 0,
        "Total Allocated": 512,
        "Total Reserved": 2 * MIB,
    }
    outer = {"ph": "i", "name": "[memory]", "ts": 1.5, "pid": 1, "tid": 1}
    outer.update({key: value for key, value in fields.items() if key in outer})
    arguments.update({key.replace("_", " "): value for key, value in fields.items() if key not in outer})
    return {**outer, "args": arguments}


def traces() -> dict[str, bytes]:
    good = memory_event()

    def trace(*events: object) -> bytes:
        return json.dumps({"traceEvents": list(events)}).encode()

    return {
        "trace-empty.json": b'{"traceEvents": []}',
        "trace-a-number.json": b'{"traceEvents": 5}',
        "trace-deep.gz": gzip.compress(b'{"traceEvents": ' + b"[" * MIB, mtime=0),
        "trace-deep-within.gz": gzip.compress(b'{"traceEvents": [' + b'{"args":' * MIB, mtime=0),
        "trace-long-text.gz": gzip.compress(b'{"traceEvents": [{"name": "' + b"x" * (12 * MIB), mtime=0),
        "trace-cut-off.json": trace(good, good)[:-30],
        "trace-wrong-types.json": trace(
            good,
            memory_event(Bytes="many"),
            memory_event(Addr=None),
            memory_event(Device_Id=-3),
            memory_event(Device_Id=5000),
            memory_event(Bytes=0),
            7,
            [good],
            None,
        ),
        "trace-out-of-this-world.json": trace(
            memory_event(ts=1e300),
            memory_event(ts=-1e300, Addr=(1 << 64) - 1),
            memory_event(Bytes=-(1 << 63)),
            memory_event(Bytes=(1 << 63) - 1, Total_Allocated=-5),
        ),
        "trace-no-number.json": b'{"traceEvents": [{"name": "[memory]", "ts": NaN}]}',
        "trace-number-too-large.json": trace(good)[:-2] + b', {"name": "[memory]", "ts": 1e999}]}',
        "trace-broken-escape.json": trace(good)[:-2] + b', {"name": "\\ud800"}]}',
        "notebook-of-numbers.notebook": b'{"cells": [1]}',
        "notebook-without-errors.notebook": b'{"cells": [{"outputs": [{"text": ["all is well"]}]}]}',
        "notebook-deep.gz": gzip.compress(b'{"cells": ' + b"[" * MIB, mtime=0),
        "notebook-cut-off.notebook": b'{"cells": [{"outputs": [{"text": "CUDA out of mem',
    }


def databases() -> dict[str, bytes]:
    export = (DATA / "nsight.sqlite").read_bytes()

    def changed(at: int, value: bytes) -> bytes:
        return export[:at] + value + export[at + len(value) :]

    return {
        "sqlite-header-alone.sqlite": export[:16],
        "sqlite-page-size-0.sqlite": changed(16, b"\x00\x00"),
        "sqlite-page-size-odd.sqlite": changed(16, b"\x02\x01"),
        "sqlite-page-of-itself.sqlite": changed(100, b"\x05")[:103]
        + b"\x00\x00"
        + changed(100, b"\x05")[105:108]
        + b"\x00\x00\x00\x01"
        + export[112:],
        "sqlite-cells-outside.sqlite": changed(108, b"\xff\xff"),
        "sqlite-too-many-cells.sqlite": changed(103, b"\xff\xff"),
        "sqlite-cut-off.sqlite": export[: len(export) // 2],
        "sqlite-no-export.sqlite": database("CREATE TABLE t (a)"),
        "sqlite-wrong-types.sqlite": database(
            "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start, globalPid, deviceId, address, bytes, memKind, memoryOperationType)",
            f"INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES ('soon', 1, 0, {BASE}, 512, 2, 0)",
            "INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (1, x'00ff', 900, -1, -9223372036854775808, 2, 0)",
            "INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (-9223372036854775808, NULL, NULL, 5, 9223372036854775807, NULL, 0)",
            "INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (2, 1, 0, 1e300, 512, 2, 0)",
        ),
        "sqlite-columns-elsewhere.sqlite": database(
            "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (bytes, start)",
            "INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (1, 2)",
        ),
        "sqlite-view-in-its-place.sqlite": database(
            "CREATE VIEW CUDA_GPU_MEMORY_USAGE_EVENTS AS SELECT 1 AS start"
        ),
        "sqlite-utf16.sqlite": database(
            "PRAGMA encoding = 'UTF-16le'", "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start, bytes)"
        ),
    }


def database(*statements: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "made.sqlite"
        connection = sqlite3.connect(file)
        connection.execute("PRAGMA page_size = 512")
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()
        return file.read_bytes()


# Recordings: the magic, a version, and what is packed with zstd. Stored blocks need no compressor.
def stored(content: bytes) -> bytes:
    frame = b"\x28\xb5\x2f\xfd" + bytes([0x00, 0x58])
    blocks = [content[at : at + (64 << 10)] for at in range(0, len(content), 64 << 10)] or [b""]
    for index, block in enumerate(blocks):
        last = index == len(blocks) - 1
        frame += struct.pack("<I", int(last) | len(block) << 3)[:3] + block
    return frame


def varint(value: int) -> bytes:
    raw = b""
    while value >= 0x80:
        raw, value = raw + bytes([value & 0x7F | 0x80]), value >> 7
    return raw + bytes([value])


def recording(*sections: bytes, version: int = 2) -> bytes:
    origin = b'{"kind": "virtual-run"}'
    content = varint(len(origin)) + origin + b"".join(sections)
    return b"MEMFIT\x1a\n" + struct.pack("<I", version) + stored(content)


def recordings() -> dict[str, bytes]:
    begin = varint(1) + varint(0) + varint(77) + varint(0)
    end = varint(0)
    return {
        "recording-magic-alone.memfit": b"MEMFIT\x1a\n",
        "recording-version-99.memfit": recording(end, version=99),
        "recording-not-packed.memfit": b"MEMFIT\x1a\n" + struct.pack("<I", 2) + b"plain",
        "recording-origin-not-json.memfit": b"MEMFIT\x1a\n"
        + struct.pack("<I", 2)
        + stored(varint(3) + b"{x}"),
        "recording-without-end.memfit": recording(begin),
        "recording-of-nothing.memfit": recording(end),
        "recording-unknown-section.memfit": recording(begin, varint(99), end),
        "recording-section-of-no-track.memfit": recording(varint(2) + varint(0), end),
        "recording-track-missing.memfit": recording(varint(1) + varint(7) + varint(1) + varint(0), end),
        "recording-count-lies.memfit": recording(begin, varint(2) + varint(1 << 29), end),
        "recording-number-too-long.memfit": recording(begin, b"\xff" * 11, end),
        "recording-text-twice.memfit": recording(
            begin, varint(2) + varint(2) + varint(1) + b"a" + varint(1) + b"a", end
        ),
        "recording-text-not-utf8.memfit": recording(
            begin, varint(2) + varint(1) + varint(2) + b"\xc3\x28", end
        ),
        "recording-frame-of-no-text.memfit": recording(begin, varint(3) + varint(1) + varint(9) * 3, end),
        "recording-of-zeros.memfit": b"MEMFIT\x1a\n"
        + struct.pack("<I", 2)
        + b"\x28\xb5\x2f\xfd\x00\x58"
        + rle_blocks(4000),
    }


def texts() -> dict[str, bytes]:
    oom = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
    return {
        "empty.log": b"",
        "text-without-error.log": b"epoch 1\nepoch 2\n",
        "text-cut-off.log": b"step 1\n" + oom,
        "text-amount-too-large.log": oom
        + b"99999999999999999999999999.00 GiB. GPU 0 has a total capacity of 1e9 GiB\n",
        "text-amount-negative.log": oom + b"-2.00 GiB. GPU 0 has a total capacity of 23.49 GiB\n",
        "text-no-end-of-line.gz": gzip.compress(b"x" * (8 * MIB) + oom + b"2.00 MiB." + b"y" * MIB, mtime=0),
        "text-binary.log": bytes(range(256)) * 4,
        "text-control-characters.log": b"\x1b[31m" * 200
        + oom
        + b"\x1b[0m2.00\x1b[1m MiB\x07. GPU 0 has a total capacity of 23.49 GiB of which 1.00 MiB is free.\n",
        "text-not-utf8.log": b"\xff\xfe\xfd "
        + oom
        + b"2.00 MiB. GPU 0 has a total capacity of 23.49 GiB of which 1.00 MiB is free.\n",
    }


def main() -> None:
    for make in (pickles, packed, pages, traces, databases, recordings, texts):
        for name, content in make().items():
            (FOLDER / name).write_bytes(content)


if __name__ == "__main__":
    main()
