"""`memfit shrink`: the bytes of each technique are those that arithmetic gives for a small model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from contract import check_document
from memfit._core import format_size
from runs import MIB, memfit

# A transformer whose sizes are multiples of the quantizer's blocks, so that bytes can be counted by hand.
SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(256), nn.LayerNorm(256)
        self.qkv, self.proj = nn.Linear(256, 768), nn.Linear(256, 256)
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(1000, 256)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.norm = nn.LayerNorm(256)
        self.head = nn.Linear(256, 1000)

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
# As for a picture of the graph in TensorBoard: no pass of the training.
for training in (False, True):
    torch.jit.trace(model.train(training), torch.zeros(1, 128, dtype=torch.long, device="cuda"))
for step in range(3):
    x = torch.zeros(4, 128, dtype=torch.long, device="cuda")
    loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BLOCK = 2 * 512 + (256 * 768 + 768) + (256 * 256 + 256) + (256 * 1024 + 1024) + (1024 * 256 + 256)
MATRICES = 4 * (256 * 768 + 256 * 256 + 2 * 256 * 1024)
WORDS, NORM, HEAD = 1000 * 256, 512, 256 * 1000 + 1000
ALL = 4 * BLOCK + WORDS + NORM + HEAD
# A rank of 16 for each side of each matrix; the final norm stays trainable, the vocabulary's head does not.
ADAPTERS = 4 * 16 * ((256 + 768) + (256 + 256) + 2 * (256 + 1024))
# Elements of parameters that are large enough to be packed.
LARGE = MATRICES + WORDS + 256 * 1000


def shrink(folder: Path, *arguments: str, status: int = 0) -> dict[str, Any]:
    """The document of one comparison."""
    done = subprocess.run(
        [memfit(), "shrink", "--quiet", "--gpu", "t4", "--format", "json", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The document of one comparison, and its text."""
    folder = tmp_path_factory.mktemp("shrink")
    (folder / "train.py").write_text(SCRIPT)
    # The libraries of other techniques are not installed here; `make shrink` measures them.
    only = [*(name for name in COUNTED if name != "none"), "bf16-weights", "int8-weights", "smaller-images"]
    done = subprocess.run(
        [
            memfit(),
            "shrink",
            "--quiet",
            "--gpu",
            "t4",
            "--steps",
            "2",
            "--only",
            ",".join(only),
            "--json",
            "out.json",
            "--",
            sys.executable,
            "train.py",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "out.json").read_text()), done.stdout


@pytest.fixture
def document(shown: tuple[dict[str, Any], str]) -> dict[str, Any]:
    return shown[0]


@pytest.fixture
def rows(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["technique"]: row for row in [document["baseline"], *document["rows"]]}


def test_the_document_has_the_contracts_shape(document: dict[str, Any]) -> None:
    check_document(document)
    for row in [document["baseline"], *document["rows"]]:
        for column in ("training", "inference"):
            peak = row[column]
            assert peak is None or 0 < peak["allocated"] <= peak["reserved"] <= peak["device"]
        assert row["label"] == ("exact" if row is document["baseline"] else "changes-training")
        if row["training"] is None and row["inference"] is None:
            assert row["note"]


# Parameters, trained ones, and bytes of weights and of optimizer state: AdamW keeps two numbers for each
# parameter.
COUNTED = {
    "none": (ALL, ALL, 4 * ALL, 8 * ALL),
    "lora": (ALL + ADAPTERS, ADAPTERS + NORM, 4 * (ALL + ADAPTERS), 8 * (ADAPTERS + NORM)),
    # Four bits for each element of a matrix, and a scale for each 256.
    "qlora": (
        ALL + ADAPTERS,
        ADAPTERS + NORM,
        4 * (ALL - MATRICES + ADAPTERS) + MATRICES // 2 + 4 * (MATRICES // 256),
        8 * (ADAPTERS + NORM),
    ),
    "train-head": (ALL, HEAD, 4 * ALL, 8 * HEAD),
    "train-last-blocks": (ALL, 2 * BLOCK + NORM, 4 * ALL, 8 * (2 * BLOCK + NORM)),
    "train-biases": (ALL, 4 * 2816 + NORM + 1000, 4 * ALL, 8 * (4 * 2816 + NORM + 1000)),
    "train-norms": (ALL, 4 * 1024 + NORM, 4 * ALL, 8 * (4 * 1024 + NORM)),
    "8-bit-optimizer": (ALL, ALL, 4 * ALL, 2 * (LARGE + 4 * (LARGE // 256)) + 8 * (ALL - LARGE)),
    "prune-masks": (ALL, ALL, 4 * ALL, 8 * ALL),
    "fewer-blocks": (ALL - 2 * BLOCK, ALL - 2 * BLOCK, 4 * (ALL - 2 * BLOCK), 8 * (ALL - 2 * BLOCK)),
}


@pytest.mark.parametrize("technique", COUNTED)
def test_parameters_and_their_bytes_are_counted(rows: dict[str, dict[str, Any]], technique: str) -> None:
    row = rows[technique]
    parameters, trained, weights, state = COUNTED[technique]
    assert (row["parameters"], row["trained"]) == (parameters, trained)
    assert row["bytes"] == {"weights": weights, "gradients": 4 * trained, "optimizer": state}


def test_weights_in_16_bits_halve_everything(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["bf16-weights"]
    assert row["bytes"]["weights"] == row["bytes"]["gradients"] == 2 * ALL
    # Small state stays in fp32.
    assert row["bytes"]["optimizer"] == pytest.approx(4 * ALL, rel=0.01)


def saved(rows: dict[str, dict[str, Any]], technique: str, column: str) -> int:
    """Bytes of tensors that a technique saves at the peak."""
    return int(rows["none"][column]["allocated"] - rows[technique][column]["allocated"])


def test_peaks_fall_by_what_is_no_longer_held(rows: dict[str, dict[str, Any]]) -> None:
    """The peak is in the update or the backward pass, when weights, gradients and state are all there."""
    for technique in ("lora", "train-head", "train-biases", "train-norms", "fewer-blocks"):
        without = sum(rows["none"]["bytes"].values()) - sum(rows[technique]["bytes"].values())
        # Adapters have activations of their own.
        assert saved(rows, technique, "training") >= 0.75 * without, technique
    assert saved(rows, "8-bit-optimizer", "training") > 0


def test_inference_holds_weights_and_a_forward_pass(rows: dict[str, dict[str, Any]]) -> None:
    plain = rows["none"]["inference"]["allocated"]
    # Weights, logits and a few activations: neither gradients nor optimizer state.
    assert 4 * ALL < plain < 4 * ALL + 24 * MIB
    assert plain < rows["none"]["training"]["allocated"] - 8 * ALL
    for technique in ("train-head", "8-bit-optimizer"):
        assert rows[technique]["inference"] == rows["none"]["inference"]
    assert saved(rows, "fewer-blocks", "inference") == pytest.approx(8 * BLOCK, rel=0.02)
    row = rows["int8-weights"]
    weights = 4 * (ALL - MATRICES) + MATRICES + 4 * (MATRICES // 256)
    assert row["training"] is None
    assert row["trained"] is None
    assert (row["parameters"], row["bytes"]["weights"]) == (ALL, weights)
    # A matrix is dequantized where it is used.
    assert abs(4 * ALL - weights - saved(rows, "int8-weights", "inference")) <= 2 * MIB


def test_pruning_masks_have_a_note_that_they_save_nothing(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["prune-masks"]
    # A mask and a product for each element of a linear layer.
    extra = 2 * 4 * (MATRICES + 256 * 1000)
    for column in ("training", "inference"):
        assert 0.9 * extra <= -saved(rows, "prune-masks", column) <= 1.3 * extra, column
        assert f"saves nothing in {column}: tensors take" in row["note"]
    assert row["saves"]["training"] < 0
    assert row["saves"]["inference"] < 0


def test_a_lever_that_cannot_be_applied_is_refused_with_the_reason(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["smaller-images"]
    assert "DataLoader" in row["note"]
    assert row["training"] is None
    assert row["saves"]["training"] is None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "infer.py").write_text(
        "import torch\nprint(torch.nn.Linear(8, 8).cuda()(torch.ones(2, 8).cuda()))\n"
    )
    return tmp_path


def test_a_script_that_trains_nothing_has_no_table(folder: Path) -> None:
    document = shrink(folder, "--", sys.executable, "infer.py", status=2)
    check_document(document)
    assert document["problem"]["kind"] == "nothing-to-shrink"
    assert document["rows"] == []
    assert document["baseline"] is None


def test_a_model_that_the_script_compiles_whole_is_measured_in_training_and_inference(folder: Path) -> None:
    script = SCRIPT.replace("\nfor step", '\nmodel.compile(fullgraph=True, backend="eager")\nfor step', 1)
    assert "fullgraph" in script
    (folder / "train.py").write_text(script)
    document = shrink(folder, "--only", "8-bit-optimizer", "--", sys.executable, "train.py")
    for row in (document["baseline"], *document["rows"]):
        assert row["training"]["allocated"] > row["inference"]["allocated"] > 0


def test_an_unknown_technique_is_refused(folder: Path) -> None:
    done = subprocess.run(
        [memfit(), "shrink", "--gpu", "t4", "--only", "magic", "--", "true"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "lora" in done.stderr


def test_the_text_is_a_table(shown: tuple[dict[str, Any], str]) -> None:
    lines = shown[1].splitlines()
    rows = len(shown[0]["rows"])
    assert lines[0].startswith(f"MEASURED {rows - 1} of {rows} techniques  on a virtual Tesla T4")
    (row,) = [line for line in lines if "train-head  " in line]
    # On a terminal of 80 columns, what it saves comes before the numbers of parameters.
    found = next(each for each in shown[0]["rows"] if each["technique"] == "train-head")
    assert format_size(found["saves"]["training"]) in row
    assert "3.67 M" not in row
    assert 'memfit.shrink.train_only(model, "head", optimizer)' in shown[1]
    # A technique without figures is not recommended.
    assert "in the transform of the data set" not in shown[1]
