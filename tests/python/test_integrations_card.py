"""Each integration on a virtual card that is too small for a whole batch: the trainer runs out of memory
without memfit, and fits with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from runs import memfit

pytestmark = pytest.mark.skipif(
    not os.environ.get("MEMFIT_INTEGRATIONS"), reason="runs of whole trainers: `make integrations` runs these"
)

PRELUDE = """
import sys, warnings
warnings.filterwarnings("ignore")
import torch
from torch import nn
use, half = sys.argv[1] == "memfit", sys.argv[2] == "fp16"

class Net(nn.Module):
    # 8 MiB of activations for each sample and layer, with 64 samples in a batch.
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(4)])
    def forward(self, inputs, **keywords):
        return {"loss": self.layers(inputs).square().mean()}

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 192
    def __getitem__(self, index):
        return {"inputs": torch.randn(8192, 256)}
"""
SCRIPTS = {
    "transformers": """
from transformers import Trainer, TrainingArguments
if use:
    from memfit.integrations.transformers import memfit_trainer
    Trainer = memfit_trainer(Trainer)
args = TrainingArguments("out", per_device_train_batch_size=64, report_to=[], save_strategy="no", disable_tqdm=True,
                         fp16=half)
trainer = Trainer(model=Net(), args=args, train_dataset=Data())
trainer.train()
assert not use or trainer.memfit.micro_batches > 1
""",
    "lightning": """
import lightning.pytorch as pl
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def training_step(self, batch, index):
        return self.net(**batch)["loss"]
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
callbacks = []
if use:
    from memfit.integrations.lightning import Callback
    callbacks = [Callback()]
trainer = pl.Trainer(max_epochs=1, callbacks=callbacks, precision="16-mixed" if half else "32-true", logger=False,
                     enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Module(), torch.utils.data.DataLoader(Data(), 64))
assert not use or callbacks[0].micro_batches > 1
""",
    "accelerate": """
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="fp16" if half else "no")
model = Net()
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(Data(), 64)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
if use:
    from memfit.integrations.accelerate import prepare
    step = prepare(accelerator, model, optimizer, lambda model, batch: model(**batch)["loss"])
for batch in loader:
    if use:
        assert step(batch).micro_batches > 1
        continue
    accelerator.backward(model(**batch)["loss"])
    optimizer.step()
    optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_dividing_makes_a_trainer_fit(name: str, precision: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    script = tmp_path / "train.py"
    script.write_text(PRELUDE + SCRIPTS[name])
    reports = {}
    for way in ("alone", "memfit"):
        done = subprocess.run(
            [
                *(memfit(), "run", "--gpu", "t4", "--memory", "2 GiB", "--steps", "3", "--no-prove"),
                *("--format", "json", "--", sys.executable, str(script), way, precision),
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == (0 if way == "memfit" else 1), done.stderr[-3000:]
        reports[way] = json.loads(done.stdout)
    assert (reports["alone"]["verdict"], reports["memfit"]["verdict"]) == ("oom", "fits")
    assert reports["memfit"]["steps"] == 3
