"""`memfit.data.Volume`: blocks of NIfTI files and of series of DICOM."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from memfit.data import Volume
from pictures import apart, encoded, of_pillow, picture
from PIL import Image


def nifti(path: Path, values: numpy.ndarray[Any, Any], order: str = "<", **fields: Any) -> None:
    """A NIfTI-1 file of values as [frame, slice, row, column], written without the reader's help."""
    code = {"uint8": 2, "int16": 4, "int32": 8, "float32": 16, "float64": 64, "uint16": 512}[
        values.dtype.name
    ]
    frames, depth, height, width = values.shape
    header = bytearray(352)
    struct.pack_into(f"{order}i", header, 0, 348)
    struct.pack_into(f"{order}8h", header, 40, 4, width, height, depth, frames, 1, 1, 1)
    struct.pack_into(f"{order}2h", header, 70, code, values.dtype.itemsize * 8)
    struct.pack_into(f"{order}8f", header, 76, 1, *fields.get("spacing", (1, 1, 1)), 0, 0, 0, 0)
    struct.pack_into(f"{order}f", header, 108, 352)
    struct.pack_into(f"{order}2f", header, 112, fields.get("slope", 0), fields.get("intercept", 0))
    header[344:348] = b"n+1\0"
    data = bytes(header) + values.astype(values.dtype.newbyteorder(order)).tobytes()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)


@pytest.mark.parametrize("kind", ["uint8", "int16", "uint16", "int32", "float32", "float64"])
@pytest.mark.parametrize(("name", "order"), [("a.nii", "<"), ("a.nii.gz", "<"), ("a.nii", ">")])
def test_blocks_of_nifti_are_what_was_written(kind: str, name: str, order: str, tmp_path: Path) -> None:
    values = (numpy.random.default_rng(3).random((2, 7, 9, 11)) * 200 - 50).astype(kind)
    nifti(tmp_path / name, values, order, slope=2.5, intercept=-10, spacing=(0.5, 0.75, 3))
    for frame in range(2):
        volume = Volume(tmp_path / name, frame=frame)
        assert volume.shape == (7, 9, 11)
        assert volume.dtype == getattr(torch, kind)
        assert volume.spacing == (3, 0.75, 0.5)
        whole = torch.from_numpy(values[frame])
        assert torch.equal(volume.read(), whole)
        assert torch.equal(volume[2:5, :, 3:8], whole[2:5, :, 3:8])
        assert torch.equal(volume[-1, 4], whole[-1, 4])
        scaled = volume.read((1, 3), (0, 9), (2, 4), scaled=True)
        wanted = values[frame, 1:3, :, 2:4].astype(numpy.float64) * 2.5 - 10
        assert torch.equal(scaled, torch.from_numpy(wanted.astype(numpy.float32)))
    with pytest.raises(ValueError, match="number 2 was requested"):
        Volume(tmp_path / name, frame=2)
    with pytest.raises(ValueError, match="not inside"):
        volume.read((0, 8))
    if not name.endswith("gz"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
        with pytest.raises(ValueError, match="truncated"):
            Volume(tmp_path / name)


def dicom(
    path: Path, values: numpy.ndarray[Any, Any], syntax: str = "1.2.840.10008.1.2.1", **fields: Any
) -> None:
    """A DICOM file of values as [frame, row, column], written without the reader's help."""
    explicit = syntax != "1.2.840.10008.1.2"

    def element(tag: tuple[int, int], kind: bytes, value: bytes, named: bool = explicit) -> bytes:
        value += b"\0" * (len(value) % 2)
        begin = struct.pack("<HH", *tag)
        if not named:
            return begin + struct.pack("<I", len(value)) + value
        if kind in (b"OB", b"OW", b"SQ", b"UN"):
            return begin + kind + b"\0\0" + struct.pack("<I", len(value)) + value
        return begin + kind + struct.pack("<H", len(value)) + value

    def text(tag: tuple[int, int], kind: bytes, value: object) -> bytes:
        return element(tag, kind, str(value).encode())

    def short(tag: tuple[int, int], value: int) -> bytes:
        return element(tag, b"US", struct.pack("<H", value))

    frames, height, width = values.shape
    bits = values.dtype.itemsize * 8
    # A sequence of unknown length with one of known length inside, as scanners write them.
    inner = element((0x0008, 0x1155), b"UI", b"1.2.3")
    item = struct.pack("<HHI", 0xFFFE, 0xE000, 0xFFFFFFFF) + inner + struct.pack("<HHI", 0xFFFE, 0xE00D, 0)
    begin = (
        struct.pack("<HH", 0x0008, 0x1140) + (b"SQ\0\0" if explicit else b"") + struct.pack("<I", 0xFFFFFFFF)
    )
    body = begin + item + struct.pack("<HHI", 0xFFFE, 0xE0DD, 0)
    body += text((0x0018, 0x0050), b"DS", fields.get("thickness", 5))
    body += text((0x0020, 0x000E), b"UI", fields.get("series", "1.2.3.4"))
    body += text((0x0020, 0x0013), b"IS", fields.get("number", 1))
    if "place" in fields:
        body += text((0x0020, 0x0032), b"DS", f"-10\\-20\\{fields['place']}")
        body += text((0x0020, 0x0037), b"DS", "1\\0\\0\\0\\1\\0")
    body += short((0x0028, 0x0002), 1) + text((0x0028, 0x0008), b"IS", frames)
    body += short((0x0028, 0x0010), height) + short((0x0028, 0x0011), width)
    body += text((0x0028, 0x0030), b"DS", "0.5\\0.25")
    body += short((0x0028, 0x0100), bits) + short((0x0028, 0x0101), fields.get("stored", bits))
    body += short((0x0028, 0x0103), int(values.dtype.kind == "i"))
    body += text((0x0028, 0x1052), b"DS", -1024) + text((0x0028, 0x1053), b"DS", 2)
    if syntax.startswith(("1.2.840.10008.1.2.4", "1.2.840.10008.1.2.5")):
        body += struct.pack("<HH", 0x7FE0, 0x0010) + b"OB\0\0" + struct.pack("<I", 0xFFFFFFFF)
        for part in fields.get("parts") or [b"", *(runs(frame) for frame in values)]:
            body += struct.pack("<HHI", 0xFFFE, 0xE000, len(part)) + part
        body += struct.pack("<HHI", 0xFFFE, 0xE0DD, 0)
    else:
        body += element((0x7FE0, 0x0010), b"OW", values.astype(values.dtype.newbyteorder("<")).tobytes())
    meta = element((0x0002, 0x0010), b"UI", syntax.encode(), True)
    path.write_bytes(bytes(128) + b"DICM" + meta + body)


def runs(frame: numpy.ndarray[Any, Any]) -> bytes:
    """One frame in run lengths: a segment for each byte, the highest first."""
    planes = frame.reshape(-1).astype(frame.dtype.newbyteorder(">")).view(numpy.uint8)
    planes = planes.reshape(-1, frame.dtype.itemsize).T
    segments = []
    for plane in planes:
        out, at = b"", 0
        data = plane.tobytes()
        while at < len(data):
            run = 1
            while run < 128 and at + run < len(data) and data[at + run] == data[at]:
                run += 1
            out += bytes([257 - run, data[at]]) if run > 1 else bytes([0, data[at]])
            at += run
        segments.append(out + b"\0" * (len(out) % 2))
    offsets, at = [], 64
    for segment in segments:
        offsets.append(at)
        at += len(segment)
    header = struct.pack("<16I", len(segments), *offsets, *([0] * (15 - len(offsets))))
    return header + b"".join(segments)


@pytest.mark.parametrize("syntax", ["1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.5"])
@pytest.mark.parametrize("kind", ["uint8", "int16", "uint16"])
def test_a_series_of_dicom_is_a_volume_in_the_order_of_its_places(
    syntax: str, kind: str, tmp_path: Path
) -> None:
    values = numpy.random.default_rng(5).integers(0, 120, (5, 6, 8)).astype(kind)
    if kind == "int16":
        values -= 60
    for number, at in enumerate([3, 0, 4, 1, 2]):
        # Names and numbers are in another order than the places.
        dicom(tmp_path / f"{number}.dcm", values[at : at + 1], syntax, place=2.5 * at, number=9 - at)
    (tmp_path / "notes.txt").write_text("beside it")
    volume = Volume(tmp_path)
    assert volume.shape == (5, 6, 8)
    assert volume.spacing == (2.5, 0.5, 0.25)
    assert volume.scale == (2, -1024)
    whole = torch.from_numpy(values)
    assert torch.equal(volume.read(), whole)
    assert torch.equal(volume[1:4, 2:5, 3:], whole[1:4, 2:5, 3:])
    assert torch.equal(volume.read((2, 3), scaled=True), whole[2:3].float() * 2 - 1024)


def even(data: bytes) -> bytes:
    return data + b"\0" * (len(data) % 2)


def test_compressed_slices_are_those_that_were_compressed(tmp_path: Path) -> None:
    values = numpy.random.default_rng(6).integers(0, 1 << 16, (3, 40, 56)).astype(numpy.uint16)
    streams = [even(encoded(Image.fromarray(frame), "JPEG2000", no_jp2=True)) for frame in values]
    syntax, path = "1.2.840.10008.1.2.4.90", tmp_path / "one.dcm"
    dicom(path, values, syntax, parts=[b"", *streams])
    assert torch.equal(Volume(path).read().int(), torch.from_numpy(values.astype(numpy.int32)))
    # Two parts per frame, distinguished by the table in front; and without a table, one frame of two parts.
    offsets = [sum(len(stream) + 16 for stream in streams[:frame]) for frame in range(3)]
    halves = [part for stream in streams for part in (stream[:100], stream[100:])]
    dicom(path, values, syntax, parts=[struct.pack("<3I", *offsets), *halves])
    assert torch.equal(Volume(path)[1:3].int(), torch.from_numpy(values[1:3].astype(numpy.int32)))
    dicom(path, values[:1], syntax, parts=[b"", *halves[:2]])
    assert torch.equal(Volume(path).read().int(), torch.from_numpy(values[:1].astype(numpy.int32)))
    for table in (b"", struct.pack("<3I", 0, 90, 30), struct.pack("<2I", 0, 90)):
        dicom(path, values, syntax, parts=[table, *halves])
        with pytest.raises((ValueError, OSError), match="parts of pixels"):
            Volume(path)
    # Values with a sign, which the stream counts from the lowest.
    signed = (values.astype(numpy.int32) - 32768).astype(numpy.int16)
    marked = [stream[:42] + bytes([stream[42] | 0x80]) + stream[43:] for stream in streams]
    dicom(path, signed, syntax, parts=[b"", *marked])
    assert torch.equal(Volume(path).read(), torch.from_numpy(signed))
    # As photographs have it.
    grey = picture(56, 40).convert("L")
    data = encoded(grey, "JPEG", quality=90)
    dicom(path, numpy.array(grey)[None], "1.2.840.10008.1.2.4.50", parts=[b"", even(data)])
    assert apart(Volume(path).read(), of_pillow(data, "L")) <= 1
    # The size differs from the header; the file's name is in the error.
    dicom(path, numpy.array(grey)[None, 1:], "1.2.840.10008.1.2.4.50", parts=[b"", even(data)])
    with pytest.raises((ValueError, OSError), match=r"one\.dcm.*56x40"):
        Volume(path).read()


def test_several_series_frames_and_bits_that_hold_nothing(tmp_path: Path) -> None:
    values = numpy.arange(3 * 4 * 4, dtype=numpy.uint16).reshape(3, 4, 4)
    dicom(tmp_path / "many.dcm", values, thickness=2)
    many = Volume(tmp_path / "many.dcm")
    assert torch.equal(many.read().int(), torch.from_numpy(values.astype(numpy.int32)))
    assert many.spacing[0] == 2
    dicom(tmp_path / "other.dcm", values[:1], series="9.9")
    with pytest.raises(OSError, match=r"2 series.*1\.2\.3\.4, 9\.9"):
        Volume(tmp_path)
    assert Volume(tmp_path, series="9.9").shape == (1, 4, 4)
    # Twelve bits of sixteen, the others in use by something else.
    dicom(tmp_path / "twelve.dcm", (values | 0xF000)[:1], stored=12)
    assert int(Volume(tmp_path / "twelve.dcm").read().int().max()) == 15
    dicom(tmp_path / "jpeg-ls.dcm", values[:1], "1.2.840.10008.1.2.4.80")
    with pytest.raises(ValueError, match="compressed"):
        Volume(tmp_path / "jpeg-ls.dcm")
    whole = (tmp_path / "many.dcm").read_bytes()
    for end in range(132, len(whole), 7):
        (tmp_path / "cut.dcm").write_bytes(whole[:end])
        with pytest.raises((ValueError, OSError)):
            Volume(tmp_path / "cut.dcm")
