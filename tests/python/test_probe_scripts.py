"""The probe in scripts under `memfit run`: what it names, and that the script runs as if it were not
there.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runs import MIB, ROOT, Run, hold_to_contract, invoke

PROBE = ROOT / "python" / "memfit" / "_probe"

# A small model on the card, in whose backward something is left to see.
MODEL = """
import sys
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256)
        self.act = torch.nn.ReLU(inplace=True)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

model = Model().cuda()
x = torch.randn(4096, 256, device="cuda")
"""


def script(folder: Path, code: str, model: bool = True) -> Path:
    path = folder / "train.py"
    path.write_text((MODEL if model else "") + textwrap.dedent(code), encoding="utf-8")
    return path


def watched(path: Path, *options: str, python: tuple[str, ...] = (), gpu: str = "rtx-4090") -> Run:
    arguments = [
        "run",
        "--gpu",
        gpu,
        "--no-prove",
        "--format",
        "json",
        *options,
        "--",
        sys.executable,
        *python,
        str(path),
    ]
    return invoke(arguments, cwd=path.parent)


def fits(path: Path, *options: str) -> dict[str, Any]:
    answer = watched(path, *options)
    assert answer.status == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
    hold_to_contract(answer.report)
    complaints = [
        note for note in answer.report["fidelity"]["notes"] if "probe" in note or "messages" in note
    ]
    assert complaints == [], "the probe has nothing to complain of, and its lines are understood"
    return answer.report


# Kinds of scripts


@pytest.mark.parametrize(
    "loop",
    [
        pytest.param(
            """
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(20):
                for _ in range(2):
                    model(x).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            """,
            id="accumulation",
        ),
        pytest.param(
            """
            optimizers = {each: torch.optim.AdamW([each]) for each in model.parameters()}
            def step(parameter):
                optimizers[parameter].step()
                optimizers[parameter].zero_grad()
            for each in model.parameters():
                each.register_post_accumulate_grad_hook(step)
            for _ in range(20):
                model(x).mean().backward()
            """,
            id="optimizer-in-backward",
        ),
        pytest.param(
            """
            critic = torch.nn.Linear(256, 1).cuda()
            one, other = torch.optim.Adam(model.parameters()), torch.optim.Adam(critic.parameters())
            for _ in range(20):
                for _ in range(2):
                    other.zero_grad(); critic(model(x).detach()).mean().backward(); other.step()
                one.zero_grad(); critic(model(x)).mean().backward(); one.step()
            """,
            id="two-optimizers",
        ),
        pytest.param(
            """
            optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler()
            for _ in range(20):
                with torch.autocast("cuda", torch.float16):
                    loss = model(x).float().mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
            """,
            id="grad-scaler",
        ),
        pytest.param(
            """
            from torch.utils.checkpoint import checkpoint
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(20):
                out = x.requires_grad_()
                for index, block in enumerate(model.blocks):
                    out = checkpoint(block, out, use_reentrant=index % 2 == 0)
                out.mean().backward(); optimizer.step(); optimizer.zero_grad()
            """,
            id="checkpointing",
        ),
    ],
)
def test_three_steps_are_three_steps(tmp_path, loop):
    report = fits(script(tmp_path, loop))
    assert report["steps"] == 3
    assert report["coverage"]["growth_per_step"] == 0
    assert report["at_peak"]["by_category"]["unknown"] == 0


def test_memory_that_grows_from_step_to_step_is_seen_to_the_byte(tmp_path):
    report = fits(
        script(
            tmp_path,
            """
            optimizer, kept = torch.optim.SGD(model.parameters(), lr=0.1), []
            for _ in range(20):
                model(x).mean().backward(); optimizer.step(); optimizer.zero_grad()
                kept.append(torch.zeros(1 << 26, device="cuda"))
            """,
        )
    )
    assert report["coverage"]["growth_per_step"] == 256 * MIB
    outside = report["at_peak"]["outside_modules"]
    assert outside["bytes"] > 2 * 256 * MIB
    written = (tmp_path / "train.py").read_text().splitlines()
    assert "kept.append" in written[outside["line"]["line"] - 1]


def test_inference_is_counted_by_passes_of_the_outermost_module(tmp_path):
    code = """
    with torch.inference_mode():
        for _ in range(5):
            model.eval()(x)
    """
    report = fits(script(tmp_path, code))
    assert (report["steps"], report["coverage"]["evaluation"]) == (5, True)
    assert report["at_peak"]["by_category"]["gradients"] == 0
    assert fits(script(tmp_path, code), "--steps", "2")["steps"] == 2


def test_an_evaluation_before_the_training_does_not_count(tmp_path):
    report = fits(
        script(
            tmp_path,
            """
            with torch.no_grad():
                for _ in range(9):
                    model.eval()(x)
            optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
            for _ in range(20):
                model(x).mean().backward(); optimizer.step(); optimizer.zero_grad()
            """,
        )
    )
    assert report["steps"] == 3
    assert report["at_peak"]["by_category"]["gradients"] > 0


# Names


def test_memory_has_its_module_and_its_category(tmp_path):
    report = fits(
        script(
            tmp_path,
            """
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(3):
                optimizer.zero_grad(set_to_none=False)
                model(x).mean().backward()
                optimizer.step()
            """,
        )
    )
    categories, weights = report["at_peak"]["by_category"], 4 * (2 * 256 * 1024 + 1024 + 256) * 4
    assert categories["parameters"] == categories["gradients"] == weights
    assert categories["optimizer"] == pytest.approx(2 * weights, rel=0.001)
    assert categories["inputs"] == 4096 * 256 * 4
    assert categories["unknown"] == 0
    names = {module["name"]: module["bytes"] for module in report["at_peak"]["modules"]}
    # The hidden layer's output, which the in-place activation shares, with its weights and what belongs to
    # them.
    hidden = 4096 * 1024 * 4
    assert names["blocks.0.up"] >= hidden + 4 * 256 * 1024 * 4
    assert {f"blocks.{block}.{part}" for block in range(4) for part in ("up", "down")} <= names.keys()


def test_models_of_one_class_have_the_scripts_names(tmp_path):
    report = fits(
        script(
            tmp_path,
            """
            class Game:
                def __init__(self):
                    self.critic = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 1)).cuda()
            game = Game()
            judge = torch.nn.Sequential(torch.nn.Linear(1, 512), torch.nn.Linear(512, 1)).cuda()
            parts = [*model.parameters(), *game.critic.parameters(), *judge.parameters()]
            optimizer = torch.optim.AdamW(parts)
            for _ in range(3):
                judge(game.critic(model(x))).mean().backward()
                optimizer.step()
            """,
        )
    )
    names = {module["name"] for module in report["at_peak"]["modules"]}
    assert {"critic.0", "judge.0"} <= names, names


def test_out_of_memory_is_told_where_it_struck(tmp_path):
    path = script(
        tmp_path,
        """
        def train(optimizer):
            for _ in range(3):
                model(x.repeat(64, 1)).mean().backward()
                optimizer.step()

        train(torch.optim.AdamW(model.parameters()))
        """,
    )
    answer = watched(path, "--memory", "2GiB")
    report = answer.report
    assert (answer.status, report["verdict"]) == (1, "oom")
    oom = report["oom"]
    assert oom["caught"] is False
    assert oom["message"].startswith("CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total")
    assert (oom["step"], oom["phase"]) == (1, "forward")
    assert re.fullmatch(r"blocks\.\d\.(up|act|down)", oom["module"])
    own = [frame for frame in oom["stack"] if frame.startswith(f"{path}:")]
    assert oom["stack"][: len(own)] == own, "the user's own frames come first"
    assert re.search(r"in (Block\.)?forward$", own[0]), "innermost first"
    assert [frame.split(" in ")[1] for frame in own[-2:]] == ["train", "<module>"]
    assert sum(report["at_peak"]["by_category"].values()) == report["at_peak"]["reserved"]


def test_a_model_that_does_not_fit_while_it_is_moved_is_parameters(tmp_path):
    path = script(
        tmp_path,
        """
        import torch
        torch.nn.Sequential(*[torch.nn.Linear(4096, 8192, bias=False) for _ in range(32)]).cuda()
        """,
        model=False,
    )
    report = watched(path, "--memory", "2GiB").report
    categories = report["at_peak"]["by_category"]
    assert report["oom"]["phase"] == "other"
    assert categories["parameters"] == report["at_peak"]["allocated"] > 1024 * MIB


def test_a_refused_optional_allocation_is_no_out_of_memory_error(probe, tmp_path):
    """A convolution whose workspace does not fit takes another algorithm: the script never hears of it."""
    passes = SimpleNamespace(ran_out=lambda: None)
    steps = SimpleNamespace(complete=4)
    session = SimpleNamespace(watch=None, steps=steps, note=pytest.fail, passes=passes, evaluating=False)
    memory = probe("oom").OutOfMemory(session)
    memory._observe(0, 512, 0, 0)
    assert list(tmp_path.iterdir()) == []
    memory._observe(1, 1024, 0, 0)
    memory._raised("CUDA out of memory.")
    memory._raised("made by the script itself")
    (messages,) = tmp_path.iterdir()
    told = [json.loads(line) for line in messages.read_text().splitlines()]
    assert [line["kind"] for line in told] == ["oom", "oom_text"]
    assert (told[0]["requested"], told[0]["device"], told[0]["step"]) == (1024, 1, 5)
    assert told[0]["stack"][0].startswith(f"{__file__}:")
    assert told[1]["text"] == "CUDA out of memory."


def test_a_traceback_is_told_without_the_probe(probe):
    uncaught = probe("uncaught")
    between: dict[str, Any] = {}
    exec(compile("def call(function):\n    function()", f"{uncaught.HERE}/session.py", "exec"), between)

    def fail():
        raise ValueError("the script's own")

    with pytest.raises(ValueError, match="own") as caught:
        between["call"](fail)
    told = traceback.TracebackException.from_exception(caught.value)
    assert any(frame.filename.startswith(uncaught.HERE) for frame in told.stack)
    uncaught.leave_out(told)
    assert [frame.name for frame in told.stack] == ["test_a_traceback_is_told_without_the_probe", "fail"]


# Invisibility


def read_answer(answer: Run, path: Path) -> dict[str, Any]:
    assert path.is_file(), answer.stdout[-2000:] + answer.stderr[-2000:]
    return json.loads(path.read_text())


PEAKS = """
import json
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    optimizer.zero_grad(); model(x).pow(2).mean().backward(); optimizer.step()
stats = torch.cuda.memory_stats()
kinds = ("allocated_bytes.all", "reserved_bytes.all", "allocation.all", "segment.all")
keys = [key for key in stats if key.startswith(kinds)]
json.dump({key: stats[key] for key in keys}, open("said.json", "w"))
"""


def test_it_changes_no_peak_and_no_allocation(tmp_path):
    path, answer = script(tmp_path, PEAKS), tmp_path / "said.json"
    seen = read_answer(watched(path, "--steps", "0"), answer)
    answer.unlink()
    # An isolated interpreter takes no notice of PYTHONPATH: the device is there, the probe is not.
    alone = read_answer(watched(path, "--steps", "0", python=("-I",)), answer)
    assert seen == alone
    assert seen["allocated_bytes.all.peak"] > 64 * MIB


GRAPHS = """
import json
import torch._dynamo

graphs = []
def backend(module, inputs):
    graphs.append(len(list(module.graph.nodes)))
    return module.forward

compiled = torch.compile(model, backend=backend, fullgraph=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    compiled(x).mean().backward(); optimizer.step(); optimizer.zero_grad()
torch.compile(lambda x: model(x).sum(), backend=backend)(x)
exported = torch.export.export(Block(), (torch.randn(2, 256),))
breaks = dict(torch._dynamo.utils.counters["graph_break"])
json.dump([graphs, breaks, len(list(exported.graph.nodes))], open("said.json", "w"))
"""


def test_compiled_models_have_the_graphs_that_they_have_without_it(tmp_path):
    path, answer = script(tmp_path, GRAPHS), tmp_path / "said.json"
    seen = read_answer(watched(path, "--steps", "0"), answer)
    answer.unlink()
    alone = read_answer(watched(path, "--steps", "0", python=("-I",)), answer)
    assert seen == alone
    graphs, breaks, _ = seen
    assert (len(graphs), breaks) == (2, {})


def test_the_scripts_own_clean_up_does_not_run_when_it_is_stopped(tmp_path):
    """It would write a checkpoint of zeros over the user's."""
    report = fits(
        script(
            tmp_path,
            """
            import atexit, pathlib
            atexit.register(pathlib.Path("left").touch)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            try:
                for _ in range(20):
                    model(x).mean().backward(); optimizer.step(); optimizer.zero_grad()
            finally:
                pathlib.Path("cleaned").touch()
            """,
        )
    )
    assert report["steps"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_checkpoints_of_zeros_are_led_aside_and_found_again(tmp_path):
    kept = tmp_path / "model.pt"
    kept.write_bytes(b"trained for a week")
    report = fits(
        script(
            tmp_path,
            """
            import pathlib
            state = {key: value.cpu() for key, value in model.state_dict().items()}
            torch.save(state, "model.pt")
            torch.save(state, pathlib.Path("new.pt"))
            assert torch.load("new.pt").keys() == torch.load(pathlib.Path("model.pt")).keys() == state.keys()
            model.eval()(x)
            """,
        ),
        "--steps",
        "0",
    )
    assert kept.read_bytes() == b"trained for a week"
    assert not (tmp_path / "new.pt").exists()
    assert any("checkpoints" in note for note in report["fidelity"]["notes"])


# Full cover
