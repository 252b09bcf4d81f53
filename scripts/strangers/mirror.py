"""Working trees of public repositories, out of a mirror of them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any


def checked_out(mirror: Path, script: dict[str, Any], work: Path) -> Path | None:
    """A working tree at the script's commit; `None` where the mirror has no such commit."""
    name = script["repository"].replace("/", "+")
    target = work / name
    if target.exists():
        return target
    for git in (mirror / name / "repo", mirror / name / "repo" / ".git", mirror / name / ".git"):
        listing = ["git", f"--git-dir={git}", "ls-tree", "-rz", script["commit"]]
        files = subprocess.run(listing, capture_output=True, text=True, check=False)
        if files.returncode == 0:
            break
    else:
        return None
    with subprocess.Popen(
        ["git", f"--git-dir={git}", "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as contents:
        assert contents.stdin is not None
        assert contents.stdout is not None
        for entry in filter(None, files.stdout.split("\0")):
            about, path = entry.split("\t", 1)
            mode, kind, number = about.split()
            if kind != "blob" or mode == "120000":
                continue
            contents.stdin.write(number.encode() + b"\n")
            contents.stdin.flush()
            head = contents.stdout.readline().split()
            # A mirror may leave large files out.
            if head[1] == b"missing":
                continue
            data = contents.stdout.read(int(head[2]) + 1)[:-1]
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(data)
            (target / path).chmod(0o755 if mode == "100755" else 0o644)
    return target
