"""A dry run imports PyTorch's compiler when a script uses it; then all is as if it had been there before."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import on_device
from tiers import rarely

torch = pytest.importorskip("torch")

TRAIN = """
    def trained(compiled=lambda function: function, optimizer_step=lambda function: function):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        forward, step = compiled(model), optimizer_step(optimizer.step)
        for _ in range(2):
            forward(torch.randn(8, 64, device=device)).pow(2).mean().backward()
            step()
            optimizer.zero_grad()
        return optimizer

    def is_imported():
        return "torch._dynamo.eval_frame" in sys.modules

    def graphs():
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    def breaks():
        return sum(torch._dynamo.utils.counters["graph_break"].values())
"""


def said(code: str, folder: Path) -> dict[str, object]:
    found = on_device(f"{TRAIN}{code}", folder)
    assert found.status == 0, found.output
    assert "probe-failed" not in [each["id"] for each in found.report["fidelity"]["effects"]]
    return found.said


def test_an_ordinary_training_does_not_import_it(tmp_path: Path) -> None:
    """With checkpoints of the reentrant kind, states and hooks, which ask PyTorch's compiler the same."""
    code = """
    from torch.utils.checkpoint import checkpoint

    optimizer = trained()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({"params": torch.nn.Parameter(torch.zeros(4, device=device))})
    layer = torch.nn.Linear(4, 4).to(device)
    checkpoint(layer, torch.randn(2, 4, device=device, requires_grad=True), use_reentrant=True).sum().backward()
    answer(imported=is_imported())
    """
    assert said(code, tmp_path) == {"imported": False}


def test_code_that_looks_for_a_name_in_all_modules_does_not_import_it(tmp_path: Path) -> None:
    """mmcv does so while it iterates over the loaded modules, which must not become more."""
    code = """
    torch.zeros(1, device=device)
    found = [name for name in sys.modules if hasattr(sys.modules[name], "_check_balance")]
    absent = [name for name in ("__wrapped__", "__warningregistry__", "nothing") if hasattr(torch._dynamo, name)]
    before = is_imported()
    # Names of the module, of its folder, and of a module that another one imports.
    there = [hasattr(torch._dynamo, name) for name in ("config", "optimize", "symbolic_convert")]
    found = [name for name in found if name.startswith(("torch.nn", "torch._dynamo"))]
    answer(found=found, absent=absent, before=before, there=there, after=is_imported())
    """
    assert said(code, tmp_path) == {
        "found": ["torch.nn.parallel.data_parallel"],
        "absent": [],
        "before": False,
        "there": [True, True, True],
        "after": True,
    }


def test_torchvision_does_not_import_it(tmp_path: Path) -> None:
    """Once it is imported, torchvision has its real function."""
    code = """
    from torchvision import models, transforms
    from torchvision.ops import roi_align as boxes
    module = sys.modules["torchvision.ops.roi_align"]

    stood_in = module.is_compile_supported
    trained()
    models.resnet18().to(device)(torch.randn(2, 3, 32, 32, device=device)).sum().backward()
    pooled = boxes(torch.randn(1, 2, 8, 8, device=device), [torch.tensor([[0.0, 0, 4, 4]], device=device)], 2)
    waited = not is_imported()
    answers = [stood_in("cpu"), stood_in("meta")]
    from torch._dynamo.utils import is_compile_supported as real
    answer(
        waited=waited, shape=list(pooled.shape), same=answers == [real("cpu"), real("meta")], imported=is_imported(),
        replaced=module.is_compile_supported is real, utils=torch._dynamo.utils is sys.modules["torch._dynamo.utils"],
    )
    """
    pytest.importorskip("torchvision")
    expected = {
        "waited": True,
        "shape": [1, 2, 2, 2],
        "same": True,
        "imported": True,
        "replaced": True,
        "utils": True,
    }
    assert said(code, tmp_path) == expected


@pytest.mark.parametrize(
    "use",
    [
        "from torch._dynamo.utils import counters",
        rarely("torch._dynamo.config.suppress_errors = True"),
        "import torch._dynamo.config",
        rarely("import torch._dynamo.utils; torch._dynamo.utils.counters"),
        "torch._dynamo.utils.is_compile_supported('cpu')",
        "from torch._dynamo import utils; utils.anything = 1",
        rarely("from torch._dynamo import reset"),
        "torch._dynamo.list_backends()",
        "torch._dynamo.disable(print)",
        rarely("torch._dynamo.anything = 1"),
        rarely("torch.compiler.reset()"),
        "dir(torch._dynamo)",
    ],
)
def test_any_use_imports_all_of_it(use: str, tmp_path: Path) -> None:
    code = f"""
    import types

    trained()
    import torch._dynamo as before
    waited = not is_imported()
    {use}
    answer(
        waited=waited, imported=is_imported(), same=before is sys.modules["torch._dynamo"] is torch._dynamo,
        plain=type(before) is types.ModuleType, path=len(before.__path__),
        left=[name for name in vars(before) if name in ("_run",)], kept=getattr(before, "anything", None),
    )
    """
    kept = 1 if "_dynamo.anything" in use else None
    expected = {"waited": True, "imported": True, "same": True, "plain": True, "path": 1, "left": []}
    assert said(code, tmp_path) == {**expected, "kept": kept}


def test_it_compiles_as_it_does_where_it_was_imported_at_once(tmp_path: Path) -> None:
    """Also an optimizer's step, whose functions had been asked for before."""
    code = """
    import inspect
    if {at_once}:
        import torch._dynamo.eval_frame
    trained()
    waited = not is_imported()
    trained(lambda model: torch.compile(model, backend="eager"))
    models = graphs()
    trained(optimizer_step=lambda step: torch.compile(step, backend="eager"))
    plain = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    disabled = getattr(plain, "__dynamo_disable")
    answer(
        waited=waited, models=models, graphs=graphs(), breaks=breaks(), disabled=disabled.__qualname__,
        inner=disabled._torchdynamo_orig_callable is plain,
    )
    """
    late, early = tmp_path / "late", tmp_path / "early"
    late.mkdir()
    early.mkdir()
    found = said(code.replace("{at_once}", "False"), late)
    expected = said(code.replace("{at_once}", "True"), early)
    assert (found.pop("waited"), expected.pop("waited")) == (True, False)
    assert found == expected
    assert found["models"] == 1
    assert found["inner"]


def test_functions_disabled_by_the_script_stay_so(tmp_path: Path) -> None:
    code = """
    trained()

    @torch._dynamo.disable
    def own(x):
        return x + 1

    def calls(x):
        return own(x * 2)

    try:
        torch.compile(calls, backend="eager", fullgraph=True)(torch.ones(2, device=device))
    except torch._dynamo.exc.Unsupported as error:
        answer(error=type(error).__name__)
    """
    assert said(code, tmp_path) == {"error": "Unsupported"}


def test_threads_that_use_it_at_once_see_all_of_it(tmp_path: Path) -> None:
    code = """
    import concurrent.futures, threading

    trained()
    all_here = threading.Barrier(8)

    def use(_):
        all_here.wait()
        return callable(torch._dynamo.optimize) and torch._dynamo.utils.counters is not None

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answer(right=sum(pool.map(use, range(8))))
    """
    assert said(code, tmp_path) == {"right": 8}


def test_a_compiler_that_cannot_be_imported_says_so_each_time(tmp_path: Path) -> None:
    code = """
    import torch
    trained()
    sys.modules["torch._dynamo.convert_frame"] = None
    errors = []
    for _ in range(2):
        try:
            torch.compile(torch.nn.Linear(2, 2), backend="eager")
        except ImportError as error:
            errors.append(str(error))
    trained()
    answer(errors=len(errors))
    """
    assert said(code, tmp_path) == {"errors": 2}
