"""`memfit.data` inside what people train with: data sets, loaders and trainers of others, a card, a disk that
is full.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from memfit.data import ImageBatches, ImageLoader, Normalize
from pictures import folder, picture
from runs import memfit
from torch.utils.data import DataLoader

OPTIONS: dict[str, Any] = {"size": 32, "batch_size": 5, "memory": "64 MiB", "threads": 2}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("photographs"))


def images_of(batches: Any) -> torch.Tensor:
    return torch.cat([batch[0].clone() for batch in batches])


def wanted(photographs: Path, **options: Any) -> torch.Tensor:
    files = [str(path) for path in sorted(photographs.rglob("*.jpg"))]
    return images_of(ImageLoader(files, **{**OPTIONS, **options}))


def net() -> torch.nn.Module:
    return torch.nn.Sequential(
        Normalize(), torch.nn.Conv2d(3, 4, 5, 4), torch.nn.Flatten(), torch.nn.LazyLinear(3)
    )


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("stored", ["bytes", "path"])
def test_image_columns_of_parquet_and_arrow_are_read(
    kind: str, stored: str, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    files = sorted(photographs.rglob("*.jpg"))
    if stored == "bytes":
        column = [{"bytes": path.read_bytes(), "path": None} for path in files]
    else:
        column = [{"bytes": None, "path": str(path)} for path in files]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = {"image": column, "label": list(range(len(files)))}
    table = datasets.Dataset.from_dict(rows, features=features)
    if kind == "parquet":
        table.to_parquet(tmp_path / "rows.parquet")
        source: Any = str(tmp_path / "*.parquet")
    else:
        table.save_to_disk(tmp_path / "rows")
        source = str(tmp_path / "rows" / "*.arrow")
    loader = ImageLoader(source, **OPTIONS)
    batches = [(images.clone(), labels) for images, labels in loader]
    assert torch.equal(images_of(batches), wanted(photographs))
    assert torch.cat([labels for _, labels in batches]).tolist() == list(range(len(files)))
    # The table itself, which would decode its images when asked.
    assert torch.equal(images_of(ImageLoader(table, **OPTIONS)), wanted(photographs))


def test_tables_of_paths_and_labels_are_read(photographs: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    files = sorted(photographs.rglob("*.jpg"))
    names = ["cat" if number % 3 else "ant" for number in range(len(files))]
    numbers = [int(name == "cat") for name in names]
    # Beside the table, by a name of its own.
    (tmp_path / "photos").symlink_to(photographs)
    paths = [f"photos/{path.relative_to(photographs)}" for path in files]

    def seen(source: Any) -> tuple[torch.Tensor, list[int], list[str]]:
        loader = ImageLoader(source, **OPTIONS)
        batches = [(images.clone(), labels) for images, labels in loader]
        labels = torch.cat([labels for _, labels in batches]).tolist()
        return images_of(batches), labels, loader.classes

    def written(name: str, rows: list[str]) -> Path:
        path = tmp_path / name
        path.write_text("\n".join(rows) + "\n")
        return path

    headed = written(
        "named.csv",
        [
            "id,Label,file_name",
            *(f'{n},{c},"{p}"' for n, (p, c) in enumerate(zip(paths, names, strict=True))),
        ],
    )
    plain = written("plain.tsv", [f"{p}\t{n}" for p, n in zip(paths, numbers, strict=True)])
    frame = pandas.DataFrame({"path": [str(path) for path in files], "label": names})
    for source, classes in ((headed, ["ant", "cat"]), (plain, []), (frame, ["ant", "cat"])):
        pictures, labels, called = seen(source)
        assert torch.equal(pictures, wanted(photographs))
        assert labels == numbers
        assert called == classes
    assert seen(written("alone.csv", ["path", *paths]))[1] == [0] * len(files)
    with pytest.raises(ValueError, match="row 3 has 1 of 2"):
        ImageLoader(written("short.csv", ["path,label", f"{paths[0]},1", paths[1]]), **OPTIONS)
    with pytest.raises(ValueError, match="no rows"):
        ImageLoader(written("empty.csv", []), **OPTIONS)
    with pytest.raises(ValueError, match="its columns are a, b"):
        ImageLoader(pandas.DataFrame({"a": [1], "b": [2]}), **OPTIONS)


def test_torchdatas_stateful_loader_resumes(photographs: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader() -> Any:
        return stateful.StatefulDataLoader(
            ImageBatches(ImageLoader(photographs, shuffle=True, **OPTIONS)), batch_size=None
        )

    whole = images_of(loader())
    for after in range(6):
        first = loader()
        running = iter(first)
        begun = [next(running)[0].clone() for _ in range(after)]
        state = json.loads(json.dumps(first.state_dict()))
        second = loader()
        second.load_state_dict(state)
        rest = [images.clone() for images, _ in second]
        assert torch.equal(torch.cat([*begun, *rest]), whole), after


def test_accelerate_takes_it_and_trains(photographs: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    batches = ImageBatches(ImageLoader(photographs, shuffle=True, **OPTIONS))
    model = net()
    model(next(iter(batches))[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    plain = DataLoader(batches, batch_size=None)
    model, optimizer, loader = accelerator.prepare(model, optimizer, plain)
    seen = 0
    for _epoch in range(2):
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            seen += len(images)
    assert seen == 48


def test_lightning_takes_it_and_trains(photographs: Path, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    seen: list[int] = []

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.net(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))

        def training_step(self, batch: Any, _number: int) -> torch.Tensor:
            images, labels = batch
            seen.extend(labels.tolist())
            return torch.nn.functional.cross_entropy(self.net(images), labels)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    loader = ImageLoader(photographs, shuffle=True, **OPTIONS)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=tmp_path
    )
    trainer.fit(Module(), loader)
    # The first batch is not looked at beforehand, and both passes are whole and in orders of their own.
    assert len(seen) == 48
    assert sorted(seen[:24]) == sorted(seen[24:])
    assert seen[:24] != seen[24:]


def test_transformers_trainer_takes_batches_by_name(photographs: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.net(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))

        def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.net(pixel_values)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    batches = ImageBatches(
        ImageLoader(photographs, shuffle=True, **OPTIONS), names=("pixel_values", "labels")
    )

    class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(DataLoader(batches, batch_size=None))

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=2, use_cpu=True, report_to=[], save_strategy="no"
    )
    done = Trainer(Model(), arguments, train_dataset=batches).train()
    assert done.global_step == 10


def test_transforms_of_torchvision_take_its_batches(photographs: Path) -> None:
    from torchvision.transforms import v2

    mix = v2.CutMix(num_classes=3)
    flip = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.ToDtype(torch.float32, scale=True)])
    for images, labels in ImageLoader(photographs, **OPTIONS):
        mixed, shares = mix(images, labels)
        assert mixed.shape == images.shape
        assert torch.allclose(shares.sum(1), torch.ones(len(images)))
        assert torch.allclose(flip(images), images.flip(-1).float() / 255)


@pytest.mark.skipif(importlib.util.find_spec("memfit") is None, reason="the script imports memfit")
def test_pinned_memory_comes_back_after_the_copy_on_a_card(photographs: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import torch, memfit
            from memfit.data import ImageLoader, Normalize

            loader = ImageLoader({str(photographs)!r}, size=64, batch_size=4, memory="64 MiB", threads=2)
            model = torch.nn.Sequential(Normalize(), torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(),
                                        torch.nn.LazyLinear(3)).cuda()
            model(torch.zeros(1, 3, 64, 64, dtype=torch.uint8, device="cuda"))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            places, count = set(), 0
            for epoch in range(3):
                for images, labels in loader:
                    assert images.is_pinned() and images.dtype == torch.uint8
                    places.add(images.data_ptr())
                    count += 1
                    loss = torch.nn.functional.cross_entropy(model(images.cuda(non_blocking=True)), labels.cuda())
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
            # Eighteen batches in a few places: memory that was copied from is used again.
            assert count == 18 and len(places) <= 9, (count, len(places))
            print("places", len(places))
            """
        )
    )
    command = [
        memfit(),
        "run",
        "--gpu",
        "t4",
        "--steps",
        "0",
        "--format",
        "json",
        "--",
        sys.executable,
        str(script),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["verdict"] == "fits"
    assert report["steps"] == 18
    assert report["host"]["pinned"] > 0


def test_a_full_disk_only_disables_the_cache(tmp_path: Path) -> None:
    picture(900, 700).save(tmp_path / "large.jpg", quality=90)
    code = f"""
        import resource, signal, sys
        from memfit.data import ImageLoader
        if sys.argv[1] == "full":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        loader = ImageLoader([{str(tmp_path / "large.jpg")!r}], size=64, memory="64 MiB", cache=sys.argv[2])
        print([int(images.long().sum()) for _ in range(2) for images, _ in loader])
    """
    told = []
    for how in ("full", "free"):
        command = [sys.executable, "-c", textwrap.dedent(code), how, str(tmp_path / how)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
        left = [path.name for path in (tmp_path / how).rglob("*") if path.is_file()]
        assert len(left) == (1 if how == "full" else 2)
    assert told[0] == told[1]


def test_a_directory_that_changes_while_it_is_read_is_named_or_passed_over(
    photographs: Path, tmp_path: Path
) -> None:
    files = []
    for number, path in enumerate(sorted(photographs.rglob("*.jpg"))):
        files.append(tmp_path / f"{number}.jpg")
        files[-1].write_bytes(path.read_bytes())
    loader = ImageLoader(files, **{**OPTIONS, "batch_size": 1, "threads": 1}, on_error="skip")
    running = iter(loader)
    next(running)
    # One goes, one becomes something else, one is cut, one grows larger.
    files[10].unlink()
    files[12].write_text("not an image any more")
    files[14].write_bytes(files[14].read_bytes()[:200])
    picture(400, 300).save(files[16])
    assert sum(len(images) for images, _ in running) == 20
    assert [Path(name).name for name, _ in loader.skipped] == ["10.jpg", "12.jpg", "14.jpg"]
