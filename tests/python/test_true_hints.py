"""A hint names an option, a package or a host only if the failure went through it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import Answer, on_device, through_memfit
from tiers import rarely

OWN_DATA_SET = """
    class Base(torch.utils.data.Dataset):
        def __len__(self):
            return 8

    class Words(Base):
        def __init__(self, path):
            self.lines = open(path).read().split()

        def __getitem__(self, index):
            return self.lines[index]

    {use}
"""


def asked(code: str, folder: Path, *options: str) -> Answer:
    return on_device(code, folder, start=lambda *words: through_memfit(*words, options=options))


@pytest.mark.parametrize(
    ("use", "options", "described"),
    [
        ("Words('/nowhere/words.txt')", (), True),
        ("open('/nowhere/words.txt')", (), False),
        ("torch.load('/nowhere/words.txt')", (), False),
        ("torch.utils.data.TensorDataset(open('/nowhere/words.txt'))", (), False),
    ],
)
def test_samples_are_to_be_described_where_the_scripts_own_data_set_lacks_files(
    use: str, options: tuple[str, ...], described: bool, tmp_path: Path
) -> None:
    problem = asked(OWN_DATA_SET.format(use=use), tmp_path, *options).report["problem"]
    hint = problem["hint"] or ""
    assert ("describe a sample of `Words`" in hint) == described, problem
    assert ("--synthetic-weights" in hint) == ("torch.load" in use), problem


def test_a_folder_of_the_scripts_own_may_have_a_librarys_name(tmp_path: Path) -> None:
    folder = tmp_path / "datasets"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import torch\n"
        "class Words(torch.utils.data.Dataset):\n    def __init__(self): open('/nowhere/words.txt')\n"
    )
    problem = asked("    import datasets\n    datasets.Words()\n", tmp_path).report["problem"]
    assert "describe a sample of `Words`" in (problem["hint"] or ""), problem


def test_described_samples_replace_the_data_set_that_the_hint_names(tmp_path: Path) -> None:
    code = OWN_DATA_SET.format(use="answer(shape=list(Words('/nowhere/words.txt')[3].shape))")
    answer = asked(code, tmp_path, "--synthetic-data=text:16:float32")
    assert answer.said == {"shape": [16]}, answer.output


DOWNLOAD = """
    import os, urllib.request
    def unreached(request, *args, **kwargs):
        raise urllib.error.URLError(OSError(-2, "Name or service not known"))
    urllib.request.urlopen = unreached
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), {name!r})
    {call}
    net = torch.nn.Linear(4, 4)
    net.load_state_dict(torch.load(path))
    answer(loaded=True)
"""


@pytest.mark.parametrize(
    "call",
    [
        "urllib.request.urlretrieve('https://example.org/net.pth', path)",
        "urllib.request.urlretrieve('https://example.org/net.pth', filename=path)",
        "torch.hub.download_url_to_file('https://example.org/net.pth', path)",
    ],
)
def test_weights_that_the_script_downloads_itself_are_taken_for_whatever_they_are_loaded_into(
    call: str, tmp_path: Path
) -> None:
    code = DOWNLOAD.format(name="net.pth", call=call)
    hint = asked(code, tmp_path).report["problem"]["hint"]
    assert "`--synthetic-weights` replaces trained weights" in hint, hint
    answer = asked(code, tmp_path, "--synthetic-weights")
    assert answer.said == {"loaded": True}, answer.output


def test_no_option_replaces_another_file_that_the_script_downloads_itself(tmp_path: Path) -> None:
    call = "urllib.request.urlretrieve('https://example.org/vocab.json', path)"
    code = DOWNLOAD.format(name="vocab.json", call=call)
    problem = asked(code, tmp_path).report["problem"]
    assert problem["hint"] == "put the files where the script looks first", problem


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tools.Trainer(gpus=1)", "`tools` 2.6 takes no argument `gpus` there"),
        rarely("Trainer(gpus=1)", "`tools` 2.6 takes no argument `gpus` there"),
        rarely("tools.fit(verbose=1)", "`tools` 2.6 takes no argument `verbose` there"),
        ("tools.Trainer().fit(verbose=1)", "`tools` 2.6 takes no argument `verbose` there"),
        rarely("Trainer.add_arguments(3)", "`tools` 2.6 has no `add_arguments`"),
        ("Trainer().gone()", "`tools` 2.6 has no `gone`"),
        rarely("tools.Wrapper().gone()", "`tools` 2.6 has no `gone`"),
        # A configuration has the names that it was given.
        ("Trainer().gone", None),
        rarely("torch.nn.DataParallel(torch.nn.Linear(2, 2)).generate()", None),
        ("tools.gone", "`tools` 2.6 has no `gone`"),
        ("Each([1])", "`tools` 2.6 has no `Sampler.__init__`"),
        ("own(gpus=1)", None),
        rarely("own.gone", None),
    ],
)
def test_the_package_is_named_that_lacks_what_the_script_asks_for(
    line: str, said: str | None, tmp_path: Path
) -> None:
    package = tmp_path / "site-packages" / "tools"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "__version__ = '2.6'\n"
        "class Trainer:\n    def __init__(self): pass\n    def fit(self): pass\n"
        "def fit(): pass\n"
        "class Sampler: pass\n"
        "class Wrapper:\n    def __getattr__(self, name): return getattr(Trainer(), name)\n"
    )
    code = f"""
    import sys
    sys.path.append({str(package.parent)!r})
    import tools
    from tools import Trainer
    class Each(tools.Sampler):
        def __init__(self, values):
            super().__init__(values)
    def own():
        pass
    {line}
    """
    problem = asked(code, tmp_path).report["problem"]
    hint = problem["hint"] or ""
    assert (said in hint) if said else "another release" not in hint, problem


def test_a_host_that_was_not_reached_before_is_told(tmp_path: Path) -> None:
    code = """
    import socket
    try:
        socket.getaddrinfo("models.invalid", 443)
    except OSError:
        weights = None
    weights["layer"]
    """
    problem = asked(code, tmp_path).report["problem"]
    assert "Before it, the host `models.invalid` could not be reached" in problem["message"], problem


def test_another_package_that_imports_what_is_gone_is_named(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "filters"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import json.no_such_part\n")
    code = f"""
    import sys
    sys.path.append({str(package.parent)!r})
    import filters
    """
    problem = asked(code, tmp_path).report["problem"]
    assert problem["kind"] == "module-missing", problem
    assert problem["hint"].startswith(
        "`filters`, which imports it, was written for another release of `json`"
    )


EMPTY = """
    class Pairs(torch.utils.data.Dataset):
        def __init__(self):
            self.paths = []

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, index):
            return self.paths[index]

    images, labels = next(iter(torch.utils.data.DataLoader(Pairs(), batch_size=4, shuffle=True)))
    answer(images=list(images.shape), labels=list(labels.shape))
"""


def test_a_data_set_that_found_no_files_is_told_and_described(tmp_path: Path) -> None:
    hint = asked(EMPTY, tmp_path).report["problem"]["hint"]
    assert "found no files" in hint, hint
    assert "describe a sample of `Pairs`" in hint, hint
    answer = asked(EMPTY, tmp_path, "--synthetic-data=image:3x8x8:float32,label:int64<10")
    assert answer.said == {"images": [4, 3, 8, 8], "labels": [4]}, answer.output


FRAMEWORK = """
import sys, traceback

def run(main):
    try:
        main()
    except Exception as error:
        traceback.print_exception(type(error), error, None)
        print("Set a variable for a complete stack trace.", file=sys.stderr)
        sys.exit(1)
"""


def test_an_error_with_which_a_library_ends_the_script_is_told_with_its_data_set(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "framework.py"
    library.parent.mkdir()
    library.write_text(FRAMEWORK)
    code = OWN_DATA_SET.format(use="sys.path.insert(0, {site!r})\n    import framework\n    {call}")
    call = "framework.run(lambda: Words('/nowhere/words.txt'))"
    problem = asked(code.format(site=str(library.parent), call=call), tmp_path).report["problem"]
    assert "'/nowhere/words.txt'" in problem["message"], problem
    assert "describe a sample of `Words`" in (problem["hint"] or ""), problem


def test_a_data_set_that_is_made_from_a_described_one_is_described_as_well(tmp_path: Path) -> None:
    use = """class Held(Base):
        def __init__(self, words):
            self.held = words.held

        def __getitem__(self, index):
            return self.held[index]

    words = Words('/nowhere/words.txt')
    answer(shape=list(Held(words)[3].shape))
"""
    answer = asked(OWN_DATA_SET.format(use=use), tmp_path, "--synthetic-data=text:16:float32")
    assert answer.said == {"shape": [16]}, answer.output


def test_the_classes_of_a_described_data_set_are_those_of_its_label(tmp_path: Path) -> None:
    use = """words = Words('/nowhere/words.txt')
    same = all(words.labels[index] == words[index][1] for index in range(99))
    answer(classes=words.num_classes, names=len(words.classes), count=len(words.labels), same=same)
"""
    answer = asked(
        OWN_DATA_SET.format(use=use), tmp_path, "--synthetic-data=text:9:float32,label:int64<14@99"
    )
    assert answer.said == {"classes": 14, "names": 14, "count": 99, "same": True}, answer.output
