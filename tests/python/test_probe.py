"""The probe by itself: what it counts, what it says, and how it gets into a process."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from runs import ROOT
from support import on_device

PROBE = ROOT / "python" / "memfit" / "_probe"

# Counting


def count(counter: Any, steps: str) -> int:
    """`a` steps, `+a` appears, `-a` vanishes."""
    complete = 0
    for step in steps.split():
        if step[0] == "+":
            counter.appeared(step[1:])
        elif step[0] == "-":
            counter.vanished(step[1:])
        else:
            complete = counter.stepped(step)
    return complete


@pytest.mark.parametrize(
    ("steps", "complete"),
    [
        ("a a a", 3),
        ("+a +b a", 0),
        ("+a +b a b", 1),
        ("+d +g d d d g", 1),
        ("+d +g d d d g d d d g", 2),
        ("a a -a +b", 2),
        ("a a +b -a b", 3),
        ("+a +b a -b", 1),
        ("+a " + "+b " + "a " * 10, 0),
        ("+a +b " + "a " * 11, 11),
        ("+a a a +b " + "b " * 20, 20),
    ],
)
def test_a_step_is_complete_when_the_slowest_optimizer_has_stepped(probe, steps, complete):
    counter = probe("counting").StepCounter(3)
    count(counter, steps)
    assert counter.complete == complete


def test_at_the_end_optimizers_that_never_stepped_are_not_waited_for(probe):
    counter = probe("counting").StepCounter(0)
    count(counter, "+a +b a a")
    assert (counter.complete, counter.at_the_end()) == (0, 2)


def test_imports_before_a_trial_do_not_initialise_cuda(probe):
    wanted = probe("ahead").wanted
    own = ["torch._dynamo", "json", "sympy.core"]
    assert wanted([*own, "transformers.trainer"]) == [*own, "transformers.trainer"]
    # Libraries may import anything else.
    strange = ["torch._dynamo", "transformers.trainer", "somebodys.kernels", "json"]
    assert wanted(strange) == ["torch._dynamo", "json"]


def test_with_steps_0_the_step_count_never_ends_the_run(probe):
    counter = probe("counting").StepCounter(0)
    count(counter, "a " * 100)
    assert not counter.enough


@pytest.mark.parametrize(
    ("after_step", "growth"),
    [
        ([], None),
        ([5], None),
        ([5, 9], None),
        ([5, 9, 9], 0),
        ([5, 9, 11, 13], 2),
        ([1, 8, 4, 4, 4], 0),
        ([1, 9, 4, 12], None),
        ([1, 9, 8, 28], 20),
    ],
)
def test_growth_leaves_the_first_step_out(probe, after_step, growth):
    # The peak of each step grows as the memory after it.
    assert probe("last_words").growth([(each, 100 + each) for each in after_step]) == growth


MIB = 1 << 20


@pytest.mark.parametrize(
    ("steps", "growth"),
    [
        # Batches of 1, 2, 3 and 4 MiB that stay until the next one, and activations a hundred times as large.
        ([(1, 100), (2, 200), (3, 300), (4, 400)], None),
        # The same, of which nothing stays; and of different lengths in no order.
        ([(1, 100), (1, 200), (1, 300), (1, 400)], None),
        ([(1, 100), (1, 900), (1, 300), (1, 800)], None),
        # A leak of 8 MiB, and workspaces that differ.
        ([(1, 100), (9, 110), (17, 130), (25, 126)], 8 * MIB),
        # Steady memory after a larger first step.
        ([(1, 500), (1, 100), (1, 101), (1, 100)], 0),
    ],
)
def test_steps_that_are_not_alike_show_no_growth(probe, steps, growth):
    assert probe("last_words").growth([(after * MIB, peak * MIB) for after, peak in steps]) == growth


# Messages


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -7, 2**63, "", 'a "quoted" line\n\x00\u20ac', [], {"a": [1, {"b": None}]}, {3: False}],
)
def test_lines_are_json(probe, value):
    said = json.loads(probe("channel").encode(value))
    assert said == ({"3": False} if value == {3: False} else value)


def test_a_name_that_is_not_unicode_is_json_too(probe):
    assert json.loads(probe("channel").encode(os.fsdecode(b"/data/caf\xe9"))) == "/data/caf?"


def test_codes_are_those_of_the_event_log(probe):
    watch = probe("watch")
    levers = (ROOT / "crates/memfit-vocabulary/src/lib.rs").read_text(encoding="utf-8")
    codes = {name: int(code) for name, code in re.findall(r"^\s+(\w+) = (\d+), \"", levers, re.MULTILINE)}
    assert {"Parameters", "Gradients", "Activations", "Inputs", "Buffers", "Workspace"} <= codes.keys()
    for name in (
        "Other",
        "Forward",
        "Backward",
        "Parameters",
        "Gradients",
        "Activations",
        "Inputs",
        "Buffers",
    ):
        assert getattr(watch, name.upper()) == codes[name], name
    vocabularies = dict(re.findall(r"^    (Phase|Category) \{(.*?)^    \}", levers, re.MULTILINE | re.DOTALL))
    optimizer = {kind: int(re.search(r"Optimizer = (\d+)", text)[1]) for kind, text in vocabularies.items()}
    assert optimizer == {"Phase": watch.OPTIMIZER, "Category": watch.OPTIMIZER_STATE}


def test_messages_have_the_fields_of_the_channel():
    """Each `send` of the probe names a message of the channel, and its fields."""
    channel = (ROOT / "crates/memfit-channel/src/message.rs").read_text(encoding="utf-8")
    structs = {
        name: set(re.findall(r"^\s+pub (\w+):", body, re.MULTILINE))
        for name, body in re.findall(r"^pub struct (\w+) \{(.*?)^\}", channel, re.MULTILINE | re.DOTALL)
    }
    enum = re.search(r"^pub enum Message \{(.*?)^\}", channel, re.MULTILINE | re.DOTALL)[1]
    fields = {}
    for name, own, inner in re.findall(
        r"^    (\w+)(?: \{(.*?)^    \}|\((?:Box<)?(\w+)>?\)),", enum, re.MULTILINE | re.DOTALL
    ):
        kind = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        # A flattened structure's fields stand beside the others.
        found = set()
        for flat, field, of in re.findall(
            r"(#\[serde\(flatten\)\]\s+)?^\s+([\w#]+): (\w+)", own, re.MULTILINE
        ):
            found |= structs[of] if flat else {field.removeprefix("r#")}
        fields[kind] = structs[inner] if inner else found
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (PROBE / "memfit_probe").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    # Fields that a method hands on, as a dictionary that it spells out.
    returned = {
        node.name: {key.value for key in node.body[-1].value.keys}
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and isinstance(node.body[-1], ast.Return)
        and isinstance(node.body[-1].value, ast.Dict)
        and all(isinstance(key, ast.Constant) for key in node.body[-1].value.keys)
    }
    said = {}
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("channel.send", "send"):
            keywords = {keyword.arg for keyword in node.keywords if keyword.arg}
            for keyword in node.keywords:
                if keywords and keyword.arg is None:
                    keywords |= returned[keyword.value.func.attr]
            said[node.args[0].value] = keywords or None
    assert said.keys() == fields.keys()
    for kind, keywords in said.items():
        assert keywords is None or keywords == fields[kind], kind


# Installation


def python(*arguments: str, **env: str) -> str:
    """Run a Python process with the probe installed, and return its output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(PROBE), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_process_without_torch_says_hello_and_loads_nothing_else(tmp_path):
    loaded = python(
        "-c",
        "import sys; print(sorted(n for n in sys.modules if n in ('torch', 'json', 'ctypes') or 'memfit' in n))",
        MEMFIT_RUN_DIR=str(tmp_path),
    )
    names = ["channel", "garbage", "imports", "math_calls", "unknown_floats"]
    assert ast.literal_eval(loaded) == ["memfit_probe", *(f"memfit_probe.{name}" for name in names)]
    (messages,) = tmp_path.glob("messages-*.jsonl")
    (line,) = messages.read_text().splitlines()
    hello = json.loads(line)
    assert hello["kind"] == "hello"
    assert messages.name == f"messages-{hello['pid']}.jsonl"
    assert hello["executable"] == sys.executable


def test_outside_a_run_nothing_happens():
    assert python("-c", "import sys; print('memfit_probe' in sys.modules)", MEMFIT_RUN_DIR="") == "False"


def test_the_customization_that_it_stands_in_front_of_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.customized = __file__", encoding="utf-8")
    said = python(
        "-c",
        "import sys, sitecustomize; print(sys.customized == sitecustomize.__file__)",
        MEMFIT_RUN_DIR=str(tmp_path),
        PYTHONPATH=f"{PROBE}{os.pathsep}{tmp_path}",
    )
    assert said == "True"


def test_a_module_is_acted_on_right_after_its_import(probe, monkeypatch, tmp_path):
    (tmp_path / "imported_late.py").write_text("value = 1", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    imports, seen = probe("imports"), []
    imports.after("imported_late", lambda module: seen.append(module.value))
    assert seen == []
    module = importlib.import_module("imported_late")
    assert seen == [1]
    assert "exec_module" not in vars(module.__spec__.loader), "the loader is as it was"
    imports.after("imported_late", lambda module: seen.append(module.__name__))
    assert seen == [1, "imported_late"]
    sys.meta_path.remove(imports._finder)
    del sys.modules["imported_late"]


# Values attached to objects


class Thing:
    """Can be referred to weakly."""


def test_a_value_ends_with_the_object_that_it_belongs_to(probe):
    values = probe("identity").ByIdentity()
    thing, other = Thing(), Thing()
    values.store(thing, 3)
    assert (values.get(thing), values.get(other), values.get(other, 0)) == (3, None, 0)
    # An object made later may lie where an earlier one lay.
    for _ in range(100):
        later = Thing()
        assert values.get(later) is None
        values.store(later, 1)
        del later
    assert (values.get(thing), len(values._entries)) == (3, 1)
    items = [1, 2]
    values.store(items, 4)
    assert values.get(items) == 4


def test_models_made_and_dropped_in_a_loop_are_not_one_model_called_often(tmp_path):
    pytest.importorskip("torch")
    answer = on_device(
        """
        for _ in range(12):
            torch.nn.Linear(8, 8).to(device)(torch.randn(4, 8, device=device)).sum().backward()
        """,
        tmp_path,
    )
    assert (answer.report["verdict"], answer.report["steps"]) == ("fits", 1)


class Lazy(type(sys)):
    """A module that is imported with its first attribute, as `importlib.util.LazyLoader` makes them."""

    def __getattribute__(self, name: str) -> Any:
        raise ImportError(f"`{name}` is asked of a lazy module")


def test_no_lazy_module_is_imported_by_a_look_at_the_loaded_ones(probe: Any, monkeypatch: Any) -> None:
    lazy = Lazy("lazy")
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    monkeypatch.setitem(sys.modules, "stand_in", object())
    found = {id(module): namespace for module, namespace in probe("imports").loaded()}
    assert found[id(lazy)]["__name__"] == "lazy"
    assert probe("flows").sources({__file__})[__file__]


@pytest.mark.parametrize(
    ("calls", "reduced"),
    [
        # A number is a batch of the model, None an out-of-memory error.
        ([8, None, 4, 4], [8, 4]),
        ([8, 8, None, 4, None, 2, 2], [8, 2]),
        # The failed batch is left out, and the last one is short.
        ([8, None, 8, 3], None),
        ([8, 8, 3], None),
        ([8, None], None),
        ([None, 8], None),
    ],
)
def test_a_batch_is_reduced_if_all_later_ones_are_smaller(
    probe: Any, calls: list[int | None], reduced: list[int] | None
) -> None:
    torch = pytest.importorskip("torch")
    passes = probe("passes").Passes(SimpleNamespace(torch=torch))
    model, other = torch.nn.Identity(), torch.nn.Identity()
    for samples in calls:
        if samples is None:
            passes.ran_out()
        else:
            passes.called(other, ((torch.zeros(1, 2),), {}))
            passes.called(model, ((torch.zeros(samples, 2),), {}))
    assert passes.reduced() == reduced


def test_shortened_random_tensors_are_made_on_the_default_device() -> None:
    code = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from memfit_probe import random_numbers, wrapping
wrapping.list_constructors()
random_numbers.arm(torch)
with torch.device("meta"):
    assert torch.randn(2, 3).is_meta and torch.rand(2 << 20).is_meta
assert torch.randn(2 << 20).device.type == "cpu"
"""
    subprocess.run([sys.executable, "-c", code, str(PROBE)], check=True)


@pytest.mark.parametrize(
    ("device", "capability"),
    [
        ("None", (8, 0)),
        ("1", (9, 0)),
        ("'cuda'", (8, 0)),
        ("'cuda:1'", (9, 0)),
        ("torch.device('cuda')", (8, 0)),
        ("torch.device('cuda', 1)", (9, 0)),
        # bitsandbytes asks with one of these.
        ("torch.cuda.device(1)", (9, 0)),
        ("2", None),
        ("'cpu'", None),
        ("torch.device('cpu')", None),
        ("'nonsense'", None),
    ],
)
def test_kinds_of_gpus_are_told_before_the_first_use_as_pytorch_is_asked(
    probe: Any, device: str, capability: tuple[int, int] | None
) -> None:
    torch = pytest.importorskip("torch")
    cards = [
        {"device": {"compute_capability": kind, "name": kind, "memory": 1 << 30}} for kind in ("8.0", "9.0")
    ]
    cuda = torch.cuda
    with probe("kinds").answered_from_catalogue(torch, cards):
        asked = eval(device, {"torch": torch})
        if capability is None:
            # PyTorch itself says what is wrong.
            with pytest.raises((RuntimeError, AssertionError, ValueError)):
                cuda.get_device_capability(asked)
            return
        assert cuda.get_device_capability(asked) == capability
        assert cuda.get_device_name(asked) == ".".join(map(str, capability))
        assert cuda.get_device_properties(asked).major == capability[0]
