"""Files that are not there: weights, archives of them, data sets that extend no class of torch's, and the
parts of torchvision's.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import Answer, on_device, through_memfit
from tiers import rarely


def asked(code: str, folder: Path, *options: str) -> Answer:
    return on_device(code, folder, start=lambda *words: through_memfit(*words, options=options))


ARCHIVE = """
    import os, shutil, tarfile, urllib.request, zipfile
    def unreached(request, *args, **kwargs):
        raise urllib.error.URLError(OSError(-2, "Name or service not known"))
    urllib.request.urlopen = unreached
    folder = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(folder, {name!r})
    urllib.request.urlretrieve({url!r}, path)
    {opened}
    os.remove(path)
    net = torch.nn.Linear(4, 4)
    net.load_state_dict(torch.load(os.path.join(folder, "net.pth")))
    answer(loaded=True, written=os.path.exists(path))
"""


@pytest.mark.parametrize(
    ("name", "opened"),
    [
        ("net.zip", "archive = zipfile.ZipFile(path, 'r'); archive.extractall(folder); archive.close()"),
        ("net.tar.gz", "with tarfile.open(path, 'r:gz') as archive: archive.extractall(folder)"),
        rarely("net.tgz", "with tarfile.open(path) as archive: archive.extractall(folder)"),
        rarely("net.zip", "with zipfile.ZipFile(path) as archive: assert archive.namelist() == []"),
    ],
)
def test_an_archive_of_weights_that_is_not_downloaded_has_none(
    name: str, opened: str, tmp_path: Path
) -> None:
    code = ARCHIVE.format(name=name, url=f"https://example.org/models/{name}", opened=opened)
    hint = asked(code, tmp_path).report["problem"]["hint"]
    assert "`--synthetic-weights` replaces trained weights" in hint, hint
    answer = asked(code, tmp_path, "--synthetic-weights")
    assert answer.said == {"loaded": True, "written": False}, answer.output


def test_an_archive_of_data_is_not_replaced(tmp_path: Path) -> None:
    code = ARCHIVE.format(name="coco.zip", url="https://example.org/coco.zip", opened="zipfile.ZipFile(path)")
    problem = asked(code, tmp_path, "--synthetic-weights").report["problem"]
    assert problem["kind"] == "no-network", problem
    assert "does not replace this" in problem["hint"], problem


PLAIN = """
    class Base:
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return open(f"/nowhere/{{index}}.txt").read()

    class Words(Base):
        pass

    words = {made}
    for batch in torch.utils.data.DataLoader(words, batch_size=2, num_workers={workers}):
        answer(shape=list(batch.shape))
"""


@pytest.mark.parametrize(
    ("made", "workers"),
    [
        ("Words()", 0),
        ("Base()", 1),
        ("torch.utils.data.random_split(Words(), [4, 2])[0]", 0),
        rarely("torch.utils.data.ConcatDataset([Words(), Base()])", 1),
        rarely("torch.utils.data.Subset(torch.utils.data.Subset(Words(), range(4)), range(2))", 0),
    ],
)
def test_samples_can_be_described_of_a_class_that_extends_none_of_torchs(
    made: str, workers: int, tmp_path: Path
) -> None:
    code = PLAIN.format(made=made, workers=workers)
    hint = asked(code, tmp_path).report["problem"]["hint"]
    assert "describe a sample" in hint, hint
    answer = asked(code, tmp_path, "--synthetic-data=text:16:float32")
    assert answer.said == {"shape": [2, 16]}, answer.output


def test_a_folder_in_which_nothing_was_found_is_told(tmp_path: Path) -> None:
    code = """
    import glob, os
    rows = [name for _, _, names in os.walk("/nowhere/images") for name in names]
    rows += glob.glob(os.path.dirname(os.path.abspath(__file__)) + "/*.jpg")
    print({"class": rows}["class"][0])
    """
    problem = asked(code, tmp_path).report["problem"]
    assert "looked for files in `/nowhere/images`, which does not exist" in problem["message"], problem
    assert problem["hint"].startswith("if that is the cause: put the files there"), problem


def test_a_class_that_no_loader_takes_is_no_data_set(tmp_path: Path) -> None:
    code = PLAIN.format(made="Words()[0]", workers=0)
    problem = asked(code, tmp_path, "--synthetic-data=text:16:float32").report["problem"]
    assert problem["message"].endswith("No such file or directory: '/nowhere/0.txt'"), problem
    assert "describe a sample" not in problem["hint"], problem


LENGTHS = """
    import torchvision.datasets as sets
    made = {made}
    answer(length=len(made))
"""


@pytest.mark.parametrize(
    ("made", "length"),
    [
        ("sets.MNIST('/nowhere', train=False)", 10_000),
        ("sets.CIFAR10('/nowhere', False)", 10_000),
        ("sets.CIFAR100('/nowhere')", 50_000),
        ("sets.SVHN('/nowhere', split='test')", 26_032),
        ("sets.ImageFolder('/nowhere/imagenet/val')", 50_000),
        ("sets.EMNIST('/nowhere', 'letters', train=False)", 20_800),
        rarely("sets.STL10('/nowhere', 'unlabeled')", 100_000),
        rarely("sets.QMNIST('/nowhere', what='test10k')", 10_000),
        rarely("sets.Food101('/nowhere', 'test')", 25_250),
        rarely("sets.Flowers102('/nowhere', 'val')", 1_020),
        rarely("sets.OxfordIIITPet('/nowhere', 'test')", 3_669),
        rarely("sets.ImageNet('/nowhere', 'val')", 50_000),
        rarely("sets.ImageFolder('/nowhere/imagenet/train')", 1_281_167),
    ],
)
def test_a_part_of_torchvisions_data_sets_has_its_length(made: str, length: int, tmp_path: Path) -> None:
    answer = asked(LENGTHS.format(made=made), tmp_path, "--synthetic-data")
    assert answer.said == {"length": length}, answer.output


def test_the_parts_of_a_data_set_can_be_divided_as_the_real_ones(tmp_path: Path) -> None:
    code = """
    import torchvision.datasets as sets
    whole = torch.utils.data.ConcatDataset([sets.MNIST('/nowhere', train=each) for each in (True, False)])
    parts = torch.utils.data.random_split(whole, [55_000, 5_000, 10_000])
    answer(lengths=[len(part) for part in parts])
    """
    answer = asked(code, tmp_path, "--synthetic-data")
    assert answer.said == {"lengths": [55_000, 5_000, 10_000]}, answer.output


EVALUATED = """
    import os, sys
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages")
    sys.path.insert(0, folder)
    import evaluate
    accuracy = evaluate.load("accuracy")
    accuracy.add_batch(predictions=[1], references=[1])
    found = accuracy.compute(predictions=[1, 0], references=[1, 1])
    answer(accuracy=found["accuracy"], other=found["f1"], names=sorted(found))
"""


def test_a_metric_of_evaluate_that_is_not_here_is_0(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "evaluate"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .loading import load\n")
    (package / "loading.py").write_text(
        'def load(path): raise FileNotFoundError(f"Couldn\'t find a module script at {path}.")\n'
    )
    hint = asked(EVALUATED, tmp_path).report["problem"]["hint"]
    assert "`--synthetic-data`" in hint, hint
    answer = asked(EVALUATED, tmp_path, "--synthetic-data")
    assert answer.said == {"accuracy": 0.0, "other": 0.0, "names": ["accuracy"]}, answer.output


def test_a_text_is_described_by_its_words(tmp_path: Path) -> None:
    code = """
    class Questions(torch.utils.data.Dataset):
        def __init__(self):
            self.lines = open("/nowhere/questions.jsonl").readlines()

        def __len__(self):
            return len(self.lines)

        def __getitem__(self, index):
            return self.lines[index]

    batch = next(iter(torch.utils.data.DataLoader(Questions(), batch_size=2)))
    turns = [turn["role"][0] for turn in batch["turns"]]
    answer(found=[each.split("####")[1].strip() for each in batch["answer"]], turns=turns)
    """
    fields = '{answer:"4, or: #### 7",turns:[{role:"user",text:8:str},{role:"model",text:8:str}]}'
    answer = asked(code, tmp_path, f"--synthetic-data={fields}")
    assert answer.said == {"found": ["7", "7"], "turns": ["user", "model"]}, answer.output


def test_a_host_is_not_blamed_once_what_it_has_was_made_up(tmp_path: Path) -> None:
    code = """
    import os
    import torchvision.datasets as sets
    made = sets.MNIST(os.path.dirname(os.path.abspath(__file__)), download=True)
    raise ValueError("the settings do not fit")
    """
    problem = asked(code, tmp_path, "--synthetic-data").report["problem"]
    assert "could not be reached" not in problem["message"], problem


def test_a_parameter_of_generation_is_told_where_it_is_now(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    if hasattr(transformers.WhisperConfig(), "max_length"):
        pytest.skip("this release has it in the configuration")
    code = """
    import transformers, transformers.modeling_utils
    config = transformers.WhisperConfig()
    answer(length=config.{name})
    """
    problem = asked(code.format(name="max_length"), tmp_path).report["problem"]
    assert "`model.generation_config`" in problem["hint"], problem
    problem = asked(code.format(name="gone"), tmp_path).report["problem"]
    assert "generation_config" not in (problem["hint"] or ""), problem


def test_weights_that_the_script_looks_for_itself_can_be_an_empty_file(tmp_path: Path) -> None:
    code = """
    import os
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "judge.pt")
    if not os.path.exists(path):
        raise FileNotFoundError(f"Judge not found: {path}")
    net = torch.nn.Linear(4, 4)
    net.load_state_dict(torch.load(path)["model"])
    answer(loaded=True)
    """
    hint = asked(code, tmp_path).report["problem"]["hint"]
    path = next(word for word in hint.split("`") if word.startswith("touch ")).removeprefix("touch ")
    Path(path).touch()
    answer = asked(code, tmp_path, "--synthetic-weights")
    assert answer.said == {"loaded": True}, answer.output


HUB = """
    import os
    os.environ["HF_HUB_OFFLINE"] = "1"
    from huggingface_hub import hf_hub_download
    from safetensors.torch import load_file
    path = {call}
    net = torch.nn.Linear(4, 4)
    net.load_state_dict({load}(path))
    answer(loaded=True)
"""


@pytest.mark.parametrize(
    ("call", "load"),
    [
        ("hf_hub_download('me/none-of-these', filename='model.safetensors')", "load_file"),
        rarely("hf_hub_download(repo_id='me/none-of-these', filename='a/net.pt')", "torch.load"),
    ],
)
def test_weights_that_the_hub_is_asked_for_by_name_are_missing(call: str, load: str, tmp_path: Path) -> None:
    code = HUB.format(call=call, load=load)
    problem = asked(code, tmp_path).report["problem"]
    assert problem["kind"] == "no-network", problem
    assert "`--synthetic-weights` replaces trained weights" in problem["hint"], problem
    answer = asked(code, tmp_path, "--synthetic-weights")
    assert answer.said == {"loaded": True}, answer.output


def test_another_file_of_the_hub_is_not_made_up(tmp_path: Path) -> None:
    code = HUB.format(call="hf_hub_download('me/none-of-these', 'vocab.json')", load="torch.load")
    problem = asked(code, tmp_path, "--synthetic-weights").report["problem"]
    assert problem["kind"] == "no-network", problem


def test_an_encoder_of_segmentation_models_keeps_its_own_weights(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "segmentation_models_pytorch"
    (package / "encoders").mkdir(parents=True)
    (package / "__init__.py").write_text("from .encoders import get_encoder\n")
    (package / "encoders" / "__init__.py").write_text(
        "import torch\n"
        "def get_encoder(name, in_channels=3, depth=5, weights=None):\n"
        "    if weights: raise ConnectionError('Failed to resolve huggingface.co')\n"
        "    return torch.nn.Conv2d(in_channels, depth, 3)\n"
    )
    code = f"""
    import sys
    sys.path.insert(0, {str(package.parent)!r})
    import segmentation_models_pytorch as smp
    answer(shape=list(smp.get_encoder("resnet50", in_channels=4, weights="imagenet").weight.shape))
    """
    hint = asked(code, tmp_path).report["problem"]["hint"]
    assert "`--synthetic-weights`" in hint, hint
    answer = asked(code, tmp_path, "--synthetic-weights")
    assert answer.said == {"shape": [5, 4, 3, 3]}, answer.output


TRIED_AGAIN = """
    import socket, time

    def fetched(host):
        begun = time.monotonic()
        for attempt in range(5):
            try:
                return socket.getaddrinfo(host, 443)
            except socket.gaierror:
                answered = time.monotonic()
                time.sleep(1)
                pauses.append(time.monotonic() - answered)

    pauses = []
    fetched("files.invalid")
    fetched("files.invalid")
    begun = time.monotonic()
    time.sleep(0.5)
    answer(first=pauses[0] >= 1, rest=sum(pauses[1:]) < 1, own=time.monotonic() - begun >= 0.5)
"""


def test_a_host_that_is_not_known_is_not_waited_for(tmp_path: Path) -> None:
    """A lookup that failed once may succeed later, so the first pause is kept, as are a script's own."""
    answer = on_device(TRIED_AGAIN, tmp_path, start=through_memfit)
    assert answer.said == {"first": True, "rest": True, "own": True}, answer.output
