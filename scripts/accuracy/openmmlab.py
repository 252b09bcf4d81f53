"""A model of OpenMMLab's in its own training step: `python openmmlab.py mmseg|mmaction CONFIG [STEPS]`.

CONFIG is a file of the package's own configs; batch, input size, model and optimizer are the ones it
states. The inputs are made up, as large as the pipeline crops them. The step runs under
DistributedDataParallel, as published, with one process: synchronised batch normalisation is the plain one
then. mmcv is the one without compiled operators; a model that calls one of those cannot run here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

sys.modules["mmcv._ext"] = MagicMock(name="mmcv._ext")

import torch  # noqa: E402
from measured import report  # noqa: E402
from mmcv import Config  # noqa: E402
from mmcv.runner import build_optimizer  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

Data = dict[str, Any]


class Step(nn.Module):
    """A training step's loss, as the package computes it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, data: Data) -> torch.Tensor:
        return self.model.train_step(data, None)["loss"]


def config_of(package: str, name: str) -> Config:
    module = sys.modules[package]
    path = next((Path(str(module.__file__)).parent / ".mim/configs").rglob(f"{name}.py"))
    return Config.fromfile(str(path))


def plain(node: Any) -> None:
    """Leave checkpoints out: their values do not matter."""
    if isinstance(node, dict):
        for name in ("pretrained", "init_cfg"):
            if name in node:
                node[name] = None
        for value in node.values():
            plain(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            plain(value)


def segmentation(config: Config) -> tuple[nn.Module, Data]:
    from mmseg.models import build_segmentor

    model = build_segmentor(config.model, config.get("train_cfg"), config.get("test_cfg"))
    batch = config.data.samples_per_gpu
    crop = config.crop_size
    height, width = crop if isinstance(crop, (list, tuple)) else (crop, crop)
    heads = model.decode_head
    classes = (heads[-1] if isinstance(heads, nn.ModuleList) else heads).num_classes
    meta = {"img_shape": (height, width, 3), "ori_shape": (height, width, 3), "filename": "", "flip": False}
    return model, {
        "img": torch.randn(batch, 3, height, width).cuda(),
        "img_metas": [meta] * batch,
        "gt_semantic_seg": torch.randint(0, classes, (batch, 1, height, width)).cuda(),
    }


def shape_of(pipeline: list[Data]) -> tuple[int, int, int, int]:
    """Return the clips, frames, height and width that a training pipeline makes."""
    sampled = next(each for each in pipeline if "SampleFrames" in each["type"])
    sizes = [
        each for each in pipeline if each["type"] in ("Resize", "RandomCrop") and each.get("keep_ratio", True)
    ]
    fixed = [each for each in pipeline if each["type"] == "Resize" and each.get("keep_ratio") is False]
    if fixed:
        width, height = fixed[-1]["scale"]
    else:
        width = height = next(each["size"] for each in reversed(sizes) if each["type"] == "RandomCrop")
    return sampled["num_clips"], sampled["clip_len"], height, width


def video(config: Config) -> tuple[nn.Module, Data]:
    from mmaction.models import build_model

    model = build_model(config.model, config.get("train_cfg"), config.get("test_cfg"))
    clips, frames, height, width = shape_of(config.train_pipeline)
    batch = config.data.videos_per_gpu
    if config.model.type == "Recognizer3D":
        images = torch.randn(batch, clips, 3, frames, height, width)
    else:
        images = torch.randn(batch, clips * frames, 3, height, width)
    labels = torch.randint(0, model.cls_head.num_classes, (batch, 1))
    return model, {"imgs": images.cuda(), "label": labels.cuda()}


def main() -> None:
    package, name = sys.argv[1:3]
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    __import__(f"{package}.models")
    config = config_of(package, name)
    plain(config.model)
    torch.backends.cudnn.benchmark = bool(config.get("cudnn_benchmark", False))
    model, data = (segmentation if package == "mmseg" else video)(config)
    model = model.cuda().train()
    optimizer = build_optimizer(model, config.optimizer)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    step = DistributedDataParallel(Step(model), device_ids=[0], broadcast_buffers=False)
    clip = config.get("optimizer_config") or {}
    for _ in range(steps):
        optimizer.zero_grad()
        step(data).backward()
        if clip.get("grad_clip"):
            nn.utils.clip_grad_norm_(model.parameters(), **clip["grad_clip"])
        optimizer.step()
    torch.cuda.synchronize()
    report(allocated=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved())


if __name__ == "__main__":
    main()
