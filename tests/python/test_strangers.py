"""Forms of public training scripts that were once answered wrongly, each as the smallest script with it."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from support import on_device, through_memfit

TRAINING = """
    model = torch.nn.Linear(1024, 1024, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(9):
        model(torch.zeros(8, 1024, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_the_probe_loads_even_if_the_command_changes_pythonpath(tmp_path: Path) -> None:
    def start(gpu, command, environment):
        return through_memfit(gpu, ["env", "PYTHONPATH=.", *command], environment)

    answer = on_device(TRAINING, tmp_path, start=start)
    assert (answer.status, answer.report["steps"]) == (0, 9), answer.output


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("torch.nn.Linear(2, 3, biass=True)", "exception"),
        ("torch.optim.NoSuchThing", "exception"),
        ("object.__init__(object(), number)", "exception"),
        ("import no_such_package", "module-missing"),
        ("no_such_name", "exception"),
        ("iter(torch.utils.data.DataLoader([number])).next()", "exception"),
        ("torch.zeros(number).next()", "exception-after-change"),
        ("open('/nowhere/file')", "exception"),
        ("open(f'/nowhere/{number}')", "exception-after-change"),
        ("assert number > 1", "exception-after-change"),
    ],
)
def test_assumed_values_are_not_blamed_for_a_mistake_in_the_script(
    line: str, kind: str, tmp_path: Path
) -> None:
    answer = on_device(f"    number = int(torch.rand(8, device=device).sum() * 3)\n    {line}\n", tmp_path)
    assert answer.report["problem"]["kind"] == kind, answer.report["problem"]


@pytest.mark.parametrize(
    ("missing", "kind"), [("input.txt", "exception"), ("own.txt", "exception-after-change")]
)
def test_a_missing_file_is_the_scripts_own_mistake_unless_memfit_leads_its_path_aside(
    missing: str, kind: str, tmp_path: Path
) -> None:
    (tmp_path / "own.txt").write_text("as it was")
    code = f"""
    import os
    folder = os.path.dirname(os.path.abspath(__file__))
    torch.zeros(9, device=device)
    os.remove(os.path.join(folder, "own.txt"))
    open(os.path.join(folder, "{missing}"))
    """
    answer = on_device(code, tmp_path)
    assert answer.report["problem"]["kind"] == kind, answer.report["problem"]
    assert (tmp_path / "own.txt").read_text() == "as it was"


def test_a_host_that_is_not_reached_is_a_problem_of_its_own(tmp_path: Path) -> None:
    code = "    raise OSError('<urlopen error [Errno -2] Name or service not known>')\n"
    answer = on_device(code, tmp_path)
    assert answer.report["problem"]["kind"] == "no-network"
    assert re.search(r" at \S+\.py:\d+ in <module>, ", answer.report["problem"]["message"])
    assert answer.report["problem"]["hint"] == "put the files where the script looks first"


MIB_OF_MODEL = 64
COPIES = """
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False) for _ in range(4)]).to(device)
    {copy}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.zeros(8, 2048, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("copy", "mib"),
    [
        ("shadow = [each.detach().cpu().to(device) for each in model.parameters()]", MIB_OF_MODEL),
        (
            "model[0].requires_grad_(False)\n"
            "    shadow = [each.detach().clone() for each in model.parameters() if each.requires_grad]",
            MIB_OF_MODEL * 3 // 4,
        ),
        ("state = {name: each.clone() for name, each in model.state_dict().items()}", MIB_OF_MODEL),
    ],
    ids=["by way of the host", "clones of those that are trained", "a state"],
)
def test_copies_of_parameters_are_parameters(copy: str, mib: int, tmp_path: Path) -> None:
    by_category = on_device(COPIES.format(copy=copy), tmp_path).report["at_peak"]["by_category"]
    assert by_category["parameters"] == MIB_OF_MODEL + mib << 20, by_category
    assert by_category["gradients"] <= MIB_OF_MODEL << 20


BEST_SO_FAR = """
    import copy
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False) for _ in range(4)]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best = None
    for _ in range(4):
        model(torch.zeros(8, 2048, device=device)).sum().backward()
        optimizer.step()
        sums = {name: each.grad.clone() for name, each in model.named_parameters()}
        optimizer.zero_grad()
        best = best or copy.deepcopy(model.state_dict())
"""


def test_the_best_weights_so_far_are_parameters(tmp_path: Path) -> None:
    by_category = on_device(BEST_SO_FAR, tmp_path).report["at_peak"]["by_category"]
    assert by_category["parameters"] == 2 * MIB_OF_MODEL << 20, by_category
    # Sums of gradients are not parameters, though they have their names and shapes.
    assert sum(by_category.values()) >= 4 * MIB_OF_MODEL << 20, by_category


REPLICAS = """
    import torch.distributed as dist
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29771", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("nccl")
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False) for _ in range(4)]).to(device)
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.zeros(8, 2048, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_buckets_of_gradients_are_gradients(tmp_path: Path) -> None:
    answer = on_device(REPLICAS, tmp_path)
    by_category = answer.report["at_peak"]["by_category"]
    # Each gradient, and its place in a bucket.
    assert by_category["gradients"] == 2 * MIB_OF_MODEL << 20, (by_category, answer.output)
    assert by_category["unknown"] < 1 << 20


@pytest.mark.parametrize(
    ("use", "verdict"), [("", "fits"), ("torch.zeros(96 // int(at[0]), 1 << 20, device=device)", "unknown")]
)
def test_positions_of_unknown_elements_are_in_range_and_differ(
    use: str, verdict: str, tmp_path: Path
) -> None:
    code = f"""
    spectrum = torch.fft.rfft(torch.rand(4, 96, device=device)).abs().mean(0)
    at = torch.topk(spectrum, 5)[1].cpu().numpy()
    order = torch.rand(6, device=device).sort()[1].tolist()
    {use}
    answer(at=at.tolist(), order=sorted(order))
    """
    answer = on_device(code, tmp_path)
    assert answer.report["verdict"] == verdict, answer.output
    found = answer.said
    assert len(set(found["at"])) == 5
    assert 0 < min(found["at"]) <= max(found["at"]) < 49, found
    assert found["order"] == list(range(6))


def test_a_missing_configuration_is_an_error_of_memfits_own(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    # Without a network, the hub's library retries for half a minute unless this is disabled.
    code = """
    import os
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers
    transformers.AutoModel.from_pretrained('nobody/has-this')
    """
    answer = on_device(
        code, tmp_path, start=lambda *asked: through_memfit(*asked, options=("--synthetic-weights",))
    )
    problem = answer.report["problem"]
    assert problem["kind"] == "exception-after-change"
    assert problem["message"].startswith("The script needs something that memfit does not provide: ")
    assert "by itself" not in problem["message"]


WEIGHTS_IN_A_TRANSFORM = """
    class Blurred(torch.utils.data.Dataset):
        blur = torch.nn.Conv2d(3, 3, 3)

        def __len__(self):
            return 64

        def __getitem__(self, index):
            with torch.no_grad():
                return self.blur(torch.zeros(3, 16, 16)).flatten()

    mean = torch.zeros(588, device=device)
    {before}
    loader = torch.utils.data.DataLoader(Blurred(), batch_size=16, num_workers=1)
    model = torch.nn.Linear(next(iter(loader)).shape[1], 1024, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        model(batch.to(device) - mean).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "before",
    ["", "data = Blurred(); sizes = [len(data[index]) for index in range(9)]"],
    ids=["workers", "main"],
)
def test_forward_passes_of_a_transform_with_weights_are_not_steps(before: str, tmp_path: Path) -> None:
    def start(gpu, command, environment):
        return through_memfit(gpu, command, environment, options=("--steps", "3"))

    answer = on_device(WEIGHTS_IN_A_TRANSFORM.format(before=before), tmp_path, start=start)
    covered = answer.report["coverage"]
    assert (answer.report["verdict"], covered["steps"], covered["forward_only"]) == ("fits", 3, False), (
        answer.output
    )


def before_torch(folder: Path, lines: str) -> dict[str, Any]:
    """The problem of a script that has these lines before it imports torch."""
    script = folder / "train.py"
    script.write_text(textwrap.dedent(lines) + "import torch\n", encoding="utf-8")
    return through_memfit("rtx-4090", [sys.executable, str(script)], {})[2]["problem"]


def test_an_error_before_torch_is_imported_is_reported(tmp_path: Path) -> None:
    missing = before_torch(tmp_path, "import no_such_package\n")
    assert missing["kind"] == "module-missing", missing
    assert missing["message"] == f"{sys.executable} has no module `no_such_package`."
    part = before_torch(tmp_path, "import json.no_such_part\n")
    assert part["message"] == f"The `json` that {sys.executable} found has no module `json.no_such_part`."
    assert "another release of `json`" in part["hint"]
    failed = before_torch(tmp_path, "raise KeyError('image')\n")
    assert (failed["kind"], "KeyError: 'image'" in failed["message"]) == ("exception", True), failed


def test_an_error_of_a_helper_process_before_torch_is_not_blamed(tmp_path: Path) -> None:
    helper = """
        import subprocess, sys
        subprocess.run([sys.executable, "-c", "import no_such_package"], check=False)
        raise KeyError("image")
    """
    failed = before_torch(tmp_path, helper)
    assert "KeyError" in failed["message"], failed
    passed_on = before_torch(
        tmp_path, helper.replace("check=False", "check=True").replace('        raise KeyError("image")\n', "")
    )
    assert passed_on["kind"] == "module-missing", passed_on


TRANSFORMS = """
    from torchvision import transforms
    flip = transforms.Compose([transforms.ToTensor(), transforms.RandomHorizontalFlip()])
    for _ in range(9):
        flip(numpy.zeros((8, 8, 3), dtype="uint8"))
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(64)]).to(device)
    model(torch.zeros(1 << 16, 4096, device=device)).sum().backward()
"""


def test_data_transforms_do_not_count_as_evaluation_passes(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    report = on_device("    import numpy\n" + TRANSFORMS, tmp_path).report
    assert report["verdict"] == "oom", report["verdict"]
    assert report["cause"] != "evaluation-with-gradients", report["cause"]


def test_an_assertion_without_a_message_is_reported_with_its_source(tmp_path: Path) -> None:
    answer = on_device("    assert len(sys.argv) > 9\n", tmp_path)
    message = answer.report["problem"]["message"]
    assert re.search(
        r"AssertionError at `assert len\(sys.argv\) > 9` \(\S+\.py:\d+ in <module>\)", message
    ), message


IN_A_WORKER = """
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            import no_such_package

    for batch in torch.utils.data.DataLoader(Broken(), num_workers=1):
        pass
"""


def test_an_error_in_a_loader_worker_is_reported_with_its_own_traceback(tmp_path: Path) -> None:
    answer = on_device(IN_A_WORKER, tmp_path)
    assert answer.report["problem"]["kind"] == "module-missing", answer.report["problem"]
    answer = on_device(
        IN_A_WORKER.replace("import no_such_package", "raise ValueError('too short')"), tmp_path
    )
    message = answer.report["problem"]["message"]
    assert message.startswith("The script itself failed at "), message
    assert message.endswith(": ValueError: too short (in DataLoader worker process 0)"), message


CHECKED = """
    values = torch.rand(8, device=device)
    assert values.max() > 0.1, "positive"
    assert not values.max() > 2
    assert values.sum() > 0 and values[0] < 1
    assert all(torch.isclose(each, values).sum() == 1 for each in values), "each once"
    assert not any(each > 2 for each in values)
    answer(smaller=bool(values.min() > 0.1), checked=True)
"""


def test_assertions_about_computed_values_hold(tmp_path: Path) -> None:
    answer = on_device(CHECKED, tmp_path)
    assert answer.said == {"smaller": False, "checked": True}, answer.output


LISTS = """
    values = torch.arange(4, device=device)
    lengths = torch.tensor([torch.tensor(5), torch.tensor(7)])
    try:
        torch.tensor([torch.tensor([1, 2])])
        taken = True
    except (TypeError, ValueError):
        taken = False
    class Own(torch.Tensor):
        pass
    later = torch.tensor([torch.tensor(5).as_subclass(Own), torch.tensor(7).as_subclass(Own)])
    answer(lengths=lengths.tolist(), later=later.tolist(), taken=taken,
           chosen=values[torch.tensor([3], device=device)].tolist())
"""


def test_a_list_of_tensors_is_read_as_without_memfit(tmp_path: Path) -> None:
    answer = on_device(LISTS, tmp_path)
    said = {"lengths": [5, 7], "later": [5, 7], "taken": False, "chosen": [3]}
    assert answer.said == said, answer.output


def test_a_module_of_the_scripts_own_may_have_a_librarys_name(tmp_path: Path) -> None:
    (tmp_path / "datasets.py").write_text("SIZES = [8, 16]\n", encoding="utf-8")
    options = ("--synthetic-data",)
    answer = on_device(
        "    import datasets\n    answer(sizes=datasets.SIZES)\n",
        tmp_path,
        start=lambda *asked: through_memfit(*asked, options=options),
    )
    assert answer.said == {"sizes": [8, 16]}, answer.output


def test_a_module_elsewhere_in_the_project_is_found(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "detection" / "misc_of_ours").mkdir(parents=True)
    (tmp_path / "detection" / "misc_of_ours" / "__init__.py").touch()
    problem = on_device("    import misc_of_ours\n", tmp_path).report["problem"]
    assert problem["kind"] == "module-missing", problem
    assert f"PYTHONPATH={tmp_path / 'detection'}" in problem["hint"]


HELPER = """
    import os, subprocess, sys
    # As the processes that compile kernels do, it imports torch and knows of no step.
    helper = subprocess.Popen([sys.executable, "-c", "import torch; input()"], stdin=subprocess.PIPE)
""" + textwrap.indent(textwrap.dedent(TRAINING), "    ")


def test_processes_started_by_a_rank_are_not_counted_as_ranks(tmp_path: Path) -> None:
    def start(gpu, command, environment):
        ranked = {**environment, "RANK": "0", "WORLD_SIZE": "1"}
        return through_memfit(gpu, command, ranked, options=("--steps", "3"))

    answer = on_device(HELPER, tmp_path, start=start)
    report = answer.report
    assert (report["verdict"], report["steps"], len(report["ranks"])) == ("fits", 3, 1), answer.output


def test_a_script_that_exits_with_a_status_is_reported_with_its_last_line(tmp_path: Path) -> None:
    usage = """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--bf16", required=True)
        parser.parse_args()
    """
    problem = before_torch(tmp_path, usage)
    assert problem["kind"] == "exit", problem
    assert problem["message"].endswith("error: the following arguments are required: --bf16"), problem


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_l_bfgs_keeps_the_history_of_a_training_that_makes_progress(
    search: str | None, tmp_path: Path
) -> None:
    code = f"""
    at = torch.nn.Parameter(torch.ones(1 << 20, device=device))
    optimizer = torch.optim.LBFGS([at], history_size=8, max_iter=20, line_search_fn={search!r})

    def closure():
        optimizer.zero_grad()
        loss = (at * at).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    """
    # Without further runs with other values.
    answer = on_device(code, tmp_path, start=lambda *asked: through_memfit(*asked, options=("--sizes", "1")))
    # Eight steps and eight changes of the gradient, most of them made in this step.
    found = answer.report["at_peak"]["by_category"]
    assert 16 << 22 <= found["optimizer"] + found["temporary"] <= 26 << 22, found
