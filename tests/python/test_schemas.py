"""Each document of memfit's JSON follows the schema of its name in `docs/schema/`.

Reports that take a run are held to theirs in the tests of their verbs.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import jsonschema
import pytest
from contract import SCHEMAS, check_document
from runs import memfit, run


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.stem)
def test_schemas_are_valid_and_named_after_their_document(path: Path) -> None:
    schema = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == schema["properties"]["schema"]["const"]
    assert path.name == f"{schema['$id'].replace('/', '-')}.json"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("memfit.gpus/1", ["gpus"]),
        ("memfit.gpu/1", ["gpus", "t4"]),
        ("memfit.rules/1", ["rule"]),
        ("memfit.rule/1", ["rule", "alloc-conf-set-late"]),
        ("memfit.doctor/1", ["doctor"]),
        ("memfit.check/1", ["check", "train.py"]),
        ("memfit.explain/1", ["explain", "oom.log"]),
        ("memfit.data/1", ["data", "photos"]),
    ],
)
def test_documents_of_verbs_without_a_run_follow_their_schemas(
    name: str, arguments: list[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("losses = []\nfor x in loader:\n    losses.append(model(x))\n")
    (tmp_path / "oom.log").write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "14.56 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has 13.36 GiB memory "
        "in use. Of the allocated memory 12.10 GiB is allocated by PyTorch, and 1.01 GiB is reserved by PyTorch "
        "but unallocated.\n"
    )
    photos = tmp_path / "photos" / "cats"
    photos.mkdir(parents=True)
    # The smallest BMP: one black pixel.
    header = b"BM" + (58).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
    info = (40).to_bytes(4, "little") + (1).to_bytes(4, "little") * 2 + b"\x01\x00\x18\x00" + bytes(24)
    (photos / "one.bmp").write_bytes(header + info + bytes(4))
    done = subprocess.run(
        [memfit(), *arguments, "--format", "json"],
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == name
    check_document(document)


def test_the_report_of_a_run_follows_its_schema() -> None:
    document = run("feed_forward.py").report
    check_document(document)
    # What breaks the promise is seen.
    for broken in (
        {**document, "verdict": "maybe"},
        {**document, "surprise": 1},
        {**document, "peak": {**document["peak"], "device": "14 GiB"}},
        {key: value for key, value in document.items() if key != "peak"},
        {**document, "at_peak": {**document["at_peak"], "by_category": {}}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            check_document(broken)
