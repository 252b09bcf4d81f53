"""A script finds the files that it saves, and the user's own stay as they were."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from runs import invoke
from tiers import exhaustive

MODEL = """
import glob, io, json, os, pathlib, shutil, subprocess, sys, torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def step():
    model(torch.randn(8, 64, device="cuda")).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""


def completed(folder: Path, code: str, *options: str, model: bool = True) -> dict[str, Any]:
    """The report of a run to the end, in a folder of its own."""
    path = folder / "train.py"
    path.write_text((MODEL if model else "") + textwrap.dedent(code), encoding="utf-8")
    arguments = ["run", "--gpu", "rtx-4090", "--no-prove", "--format", "json", "--steps", "0", *options]
    answer = invoke([*arguments, "--", sys.executable, str(path)], cwd=folder)
    assert answer.status == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
    return answer.report


def notes(report: dict[str, Any]) -> str:
    return "\n".join(report["fidelity"]["notes"])


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != "train.py")


def test_a_checkpoint_is_written_renamed_pruned_and_resumed_from(tmp_path):
    (tmp_path / "last.pt").write_text("trained for a week")
    (tmp_path / "checkpoint-0").mkdir()
    (tmp_path / "checkpoint-0" / "weights.pt").write_text("trained for a day")
    report = completed(
        tmp_path,
        """
        for epoch in range(3):
            step()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, "last.tmp")
            os.replace("last.tmp", "last.pt")
            os.makedirs(f"checkpoint-{epoch}", exist_ok=True)
            torch.save(state, pathlib.Path(f"checkpoint-{epoch}") / "model.pt")
            for old in sorted(glob.glob("checkpoint-*"))[:-1]:
                shutil.rmtree(old)
        assert glob.glob("checkpoint-*") == ["checkpoint-2"]
        back = torch.load("last.pt")
        assert back["epoch"] == 2
        assert [float(each["step"]) for each in back["optimizer"]["state"].values()] == [3, 3]
        for name, value in model.state_dict().items():
            assert (back["model"][name].shape, back["model"][name].dtype) == (value.shape, value.dtype)
        model.load_state_dict(back["model"]); optimizer.load_state_dict(back["optimizer"]); step()
        """,
    )
    assert report["steps"] == 4
    assert "checkpoints" in notes(report)
    assert "are unchanged on your disk" in notes(report)
    assert left_in(tmp_path) == ["checkpoint-0", "checkpoint-0/weights.pt", "last.pt"]
    assert (tmp_path / "last.pt").read_text() == "trained for a week"
    assert (tmp_path / "checkpoint-0" / "weights.pt").read_text() == "trained for a day"


def test_redirected_checkpoints_of_every_kind_take_almost_no_disk_space(tmp_path):
    report = completed(
        tmp_path,
        """
        from safetensors.torch import load_file, save, save_file
        size = 128 << 20
        large = torch.zeros(size, dtype=torch.uint8, device="cuda")
        torch.save(large, "path.pt")
        with open("opened.pt", "wb") as file:
            torch.save(large, file)
        memory = io.BytesIO()
        torch.save(large, memory)
        with open("memory.pt", "wb") as file:
            file.write(memory.getvalue())
        save_file({"large": large}, pathlib.Path("direct.safetensors"))
        pathlib.Path("bytes.safetensors").write_bytes(save({"large": large}))
        torch.save(large, "old.pt", _use_new_zipfile_serialization=False)
        shutil.copyfile("opened.pt", "copied.pt")
        shutil.copy2("direct.safetensors", "copied.safetensors")
        subprocess.run(["cp", "memory.pt", "cp.pt"], check=True)
        subprocess.run(["mv", "cp.pt", "mv.pt"], check=True)
        os.link("mv.pt", "linked.pt")
        os.symlink("mv.pt", "latest.pt")
        files = glob.glob("*.pt") + glob.glob("*.safetensors")
        assert len(files) == 11, files
        for name in files:
            stat = os.stat(name)
            assert stat.st_size > size and stat.st_blocks * 512 < size // 8, (name, stat)
        for name in ("path.pt", "opened.pt", "memory.pt", "old.pt", "copied.pt", "latest.pt"):
            assert torch.load(name).shape == large.shape
        for name in ("direct.safetensors", "bytes.safetensors", "copied.safetensors"):
            assert load_file(name)["large"].shape == large.shape
        """,
    )
    assert "checkpoints" in notes(report)
    assert left_in(tmp_path) == []


def test_all_processes_of_a_run_see_the_same_files(tmp_path):
    code = """
        step()
        torch.save(model.state_dict(), "model.pt")

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                return os.path.getsize("model.pt")

        if __name__ == "__main__":
            size = os.path.getsize("model.pt")
            for context in ("fork", "spawn"):
                loader = torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context=context)
                assert [int(each) for each in loader] == [size] * 4
            code = "import os; print(os.path.getsize('model.pt'))"
            assert int(subprocess.check_output([sys.executable, "-c", code])) == size
    """
    completed(tmp_path, code)
    assert left_in(tmp_path) == []


def test_logs_and_tables_are_written_as_without_memfit(tmp_path):
    (tmp_path / "log.txt").write_text("before\n")
    report = completed(
        tmp_path,
        """
        step()
        open("log.txt", "a").write("after\\n")
        os.makedirs("out")
        for line in ("first", "second"):
            open("out/table.csv", "w").write(line)
        json.dump({"step": 1}, open("out/state.tmp", "w"))
        os.replace("out/state.tmp", "out/state.json")
        """,
    )
    assert "checkpoints" not in notes(report)
    assert (tmp_path / "log.txt").read_text() == "before\nafter\n"
    assert (tmp_path / "out" / "table.csv").read_text() == "second"
    assert json.loads((tmp_path / "out" / "state.json").read_text()) == {"step": 1}


def test_a_distributed_checkpoint(tmp_path):
    completed(
        tmp_path,
        """
        import torch.distributed.checkpoint as checkpoint
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        step()
        weights, state = get_state_dict(model, optimizer)
        checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id="saved")
        weights, state = get_state_dict(model, optimizer)
        checkpoint.load({"model": weights, "optimizer": state}, checkpoint_id="saved")
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
        """,
    )
    assert not list(tmp_path.glob("saved/*.distcp"))


@exhaustive
def test_the_trainer_of_transformers_prunes_and_resumes(tmp_path):
    pytest.importorskip("transformers")
    kept = tmp_path / "out" / "checkpoint-1"
    kept.mkdir(parents=True)
    (kept / "model.safetensors").write_text("trained for a week")
    code = """
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
        def train(steps, **resume):
            model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=64, n_head=2, vocab_size=100, n_positions=32))
            data = [{"input_ids": [1] * 8, "labels": [1] * 8}] * 16
            arguments = TrainingArguments(
                "out", max_steps=steps, save_steps=2, save_total_limit=1, report_to=[],
                per_device_train_batch_size=2, optim="adamw_torch",
            )
            trainer = Trainer(model, arguments, train_dataset=data)
            trainer.train(**resume)
            return trainer
        train(4)
        assert os.listdir("out") == ["checkpoint-4"], os.listdir("out")
        assert train(6, resume_from_checkpoint=True).state.global_step == 6
        assert os.listdir("out") == ["checkpoint-6"]
        assert torch.load("out/checkpoint-6/optimizer.pt")["state"][0]["step"] == 6
    """
    completed(tmp_path, "import os, torch\n" + textwrap.dedent(code), model=False)
    assert (kept / "model.safetensors").read_text() == "trained for a week"
    assert not list(tmp_path.rglob("*.pt"))


@exhaustive
def test_lightnings_checkpoints_keep_the_best(tmp_path):
    pytest.importorskip("lightning")
    completed(
        tmp_path,
        """
        import glob, lightning, torch
        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 8)
            def training_step(self, batch, index):
                loss = self.layer(batch).pow(2).mean()
                self.log("loss", loss)
                return loss
            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters())
        keep = lightning.pytorch.callbacks.ModelCheckpoint("kept", save_top_k=2, monitor="loss", save_last=True)
        data = torch.utils.data.DataLoader(torch.zeros(8, 8), batch_size=4)
        options = {"logger": False, "enable_progress_bar": False, "accelerator": "gpu", "devices": 1}
        lightning.Trainer(max_epochs=3, callbacks=[keep], **options).fit(Module(), data)
        assert len(glob.glob("kept/*.ckpt")) == 3
        again = lightning.Trainer(max_epochs=4, **options)
        again.fit(Module(), data, ckpt_path="kept/last.ckpt")
        assert again.global_step == 8
        """,
        model=False,
    )
    assert left_in(tmp_path) == []
