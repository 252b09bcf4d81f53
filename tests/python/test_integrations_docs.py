"""Executes the examples of docs/integrations.md, each section in a training run of its own."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import memfit
import pytest
import torch
from torch import nn
from torch.nn import functional

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("MEMFIT_INTEGRATIONS"),
        reason="examples of trainers: `make integrations` runs these",
    ),
    pytest.mark.filterwarnings("ignore"),
]
PAGE = Path(__file__).resolve().parents[2] / "docs/integrations.md"
SECTIONS = {
    title: re.findall(r"```python\n(.*?)```", body, flags=re.DOTALL)
    for title, body in re.findall(
        r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE
    )
}


def run(title: str, names: dict[str, Any]) -> dict[str, Any]:
    assert SECTIONS[title]
    for block in SECTIONS[title]:
        exec(compile(block, str(PAGE), "exec"), names)
    return names


def classifier() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(24, 6), torch.randint(0, 3, (24,)))
    return {
        "memfit": memfit,
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "loader": torch.utils.data.DataLoader(data, 8),
        "loss": lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
    }


def test_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from test_integrations import Sentences, arguments, language_model

    monkeypatch.chdir(tmp_path)
    Path("memfit.plan.toml").write_text(
        'micro_batch = 4\n[[lever]]\nname = "foreach-off"\nvalue = true\nlabel = "exact"\n'
    )
    names = {
        "model": language_model(),
        "args": None,
        "arguments": arguments(tmp_path),
        "dataset": Sentences(),
    }
    run("Transformers", names)
    assert names["arguments"].memfit_settings.micro_batch == 4
    assert names["trainer"].memfit.settings.micro_batch == 4


def test_trl(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    from test_integrations_trl import model, rows, tokenizer

    args = trl.SFTConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[])
    processed = model()
    from transformers import AutoTokenizer

    with pytest.MonkeyPatch.context() as patch:
        # The model has no folder with a tokenizer.
        patch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: tokenizer())
        try:
            from transformers import AutoProcessor

            patch.setattr(AutoProcessor, "from_pretrained", lambda *_, **__: tokenizer())
        except ImportError:
            pass
        names = run("TRL", {"model": processed, "arguments": args, "dataset": rows("sft")})
    assert type(names["trainer"]).__mro__[1].__name__ == "Mixin"


def test_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    monkeypatch.chdir(tmp_path)

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(6, 3)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:  # noqa: ARG002
            return functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    names = run("Lightning", {"module": Module(), "loader": classifier()["loader"]})
    assert names["trainer"].global_step == 3


def test_accelerate(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("Accelerate", classifier())
    assert names["step"].steps == 2
    assert "1 batches of 128" in capsys.readouterr().out


def test_timm_and_torchvision() -> None:
    names = classifier()
    run("timm and torchvision", names)
    losses = names["train_one_epoch"](
        names["model"], nn.CrossEntropyLoss(), names["optimizer"], names["loader"], clip=1.0
    )
    assert len(losses) == 3
    timm = pytest.importorskip("timm")
    pytest.importorskip("timm.optim")
    pytest.importorskip("timm.loss")
    model = timm.create_model("test_vit", num_classes=3, img_size=32)
    data = torch.utils.data.TensorDataset(torch.randn(8, 3, 32, 32), torch.randint(0, 3, (8,)))
    loader = torch.utils.data.DataLoader(data, 4)
    optimizer = timm.optim.create_optimizer_v2(model, "adamw", lr=1e-3)
    assert (
        len(names["train_one_epoch"](model, timm.loss.LabelSmoothingCrossEntropy(), optimizer, loader)) == 2
    )
