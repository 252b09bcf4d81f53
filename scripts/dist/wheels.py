"""Wheels: written so that the same contents give the same bytes, and read back to be checked.

Owns the archive's form: order, dates, modes, RECORD. It must not know what memfit is made of.
"""

from __future__ import annotations

import base64
import calendar
import hashlib
import io
import time
import zipfile
from pathlib import Path


def read(wheel: Path) -> dict[str, tuple[bytes, int]]:
    """The files of a wheel by name: contents and mode."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            info.filename: (archive.read(info), info.external_attr >> 16)
            for info in archive.infolist()
            if not info.is_dir()
        }


def digest(contents: bytes) -> str:
    """A file's hash as RECORD has it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(contents).digest()).rstrip(b"=").decode()


def record(files: dict[str, tuple[bytes, int]], name: str) -> bytes:
    """The RECORD of these files, whose own name is `name`."""
    lines = [f"{file},{digest(contents)},{len(contents)}" for file, (contents, _) in sorted(files.items())]
    return "\n".join([*lines, f"{name},,", ""]).encode()


def write(wheel: Path, files: dict[str, tuple[bytes, int]], when: int) -> None:
    """Write a wheel: its files in order, the metadata last, with one date, well compressed."""
    (folder,) = {name.split("/")[0] for name in files if name.split("/")[0].endswith(".dist-info")}
    files = {name: file for name, file in files.items() if name != f"{folder}/RECORD"}
    files[f"{folder}/RECORD"] = (record(files, f"{folder}/RECORD"), 0o644)
    date = time.gmtime(max(when, 315532800))[:6]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files, key=lambda name: (name.startswith(folder), name.endswith("RECORD"), name)):
            contents, mode = files[name]
            info = zipfile.ZipInfo(name, date)
            info.create_system = 3
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100000 | (0o755 if mode & 0o111 else 0o644)) << 16
            archive.writestr(info, contents)
    partial = wheel.with_suffix(".partial")
    partial.write_bytes(out.getvalue())
    partial.replace(wheel)


def wrong_records(files: dict[str, tuple[bytes, int]]) -> list[str]:
    """The files that are not as RECORD says, or not in it."""
    (name,) = (name for name in files if name.endswith(".dist-info/RECORD"))
    said = dict(line.rsplit(",", 2)[:2] for line in files[name][0].decode().splitlines() if line)
    actual = {file: digest(contents) for file, (contents, _) in files.items() if file != name}
    return sorted(
        file for file in actual.keys() | (said.keys() - {name}) if actual.get(file) != said.get(file)
    )


def epoch(wheel: Path) -> int:
    """The date that a wheel's files carry."""
    with zipfile.ZipFile(wheel) as archive:
        return calendar.timegm((*archive.infolist()[0].date_time, 0, 0, 0))
