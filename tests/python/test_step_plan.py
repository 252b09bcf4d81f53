"""`memfit.Step` under a plan: its levers, what wins over it, and that nothing of it is left."""

from __future__ import annotations

import contextlib
import copy
import textwrap
import warnings
from pathlib import Path
from typing import Any

import memfit
import pytest
import torch
from lever_models import TOKENS, Language, language_loss, traces
from ragged import RAGGED
from support import on_device
from tiers import every, exhaustive
from training import FailAt, Perceptron, flat, mean_loss

MIB = 2**20

PLAN = """
version = 1
micro_batch = 2
accumulate = 2

[[lever]]
name = "checkpointing"
value = ["blocks.0", "blocks.2"]
label = "exact"

[[lever]]
name = "chunked-loss"
value = 16
label = "rounding"

[[lever]]
name = "foreach-off"
value = true
label = "exact"

[[lever]]
name = "autocast-bf16"
value = true
label = "precision"

[made_for]
memfit = "0.1.0"
torch = "2.15.0"
gpu = "Tesla T4"
capacity = 15642329088
count = 1
command = ["python", "train.py"]
"""


def begin(**settings: Any) -> tuple[Language, torch.optim.Optimizer, memfit.Step]:
    torch.manual_seed(0)
    model = Language(0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, memfit.Step(model, optimizer, language_loss, **settings)


def test_a_plan_is_applied_warns_if_made_for_another_gpu_and_is_undone(tmp_path: Path) -> None:
    plan = tmp_path / "memfit.plan.toml"
    plan.write_text(PLAN)
    torch.manual_seed(0)
    model = Language(0.0)
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    marks = traces(model, optimizer)
    with pytest.warns(UserWarning, match="made for Tesla T4") as said:
        step = memfit.Step(model, optimizer, language_loss, plan=plan, precision="fp32")
    # The warning points to the line that passed the plan.
    assert {Path(warning.filename).name for warning in said} == {Path(__file__).name}
    assert traces(model, optimizer) != marks
    first, second = step(TOKENS), step(TOKENS.flip(0))
    assert (first.micro_batches, first.stepped, second.stepped) == (2, False, True)
    assert optimizer.param_groups[0]["foreach"] is False
    step.close()
    assert traces(model, optimizer) == marks

    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    both = torch.cat([TOKENS, TOKENS.flip(0)])
    logits = plain(both)
    torch.nn.functional.cross_entropy(
        logits[:, :-1].reshape(-1, logits.size(-1)), both[:, 1:].flatten()
    ).backward()
    reference.step()
    assert torch.allclose(flat(model), flat(plain), rtol=0, atol=1e-6)


def test_keywords_take_precedence_over_the_plan_and_conflicts_are_named(tmp_path: Path) -> None:
    plan = tmp_path / "memfit.plan.toml"
    plan.write_text(PLAN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, _, step = begin(plan=plan, micro_batch=4, accumulate=1, levers={"chunked-loss": False})
        kinds = []
        model.head.register_forward_hook(lambda _module, _inputs, output: kinds.append(output.dtype))
        result = step(TOKENS)
        assert (result.micro_batches, result.stepped) == (1, True)
        assert set(kinds) == {torch.bfloat16}
        step.close()
    for levers, text in [
        ({"fused-optimizer": True, "foreach-off": True}, "cannot be combined"),
        ({"quantized-base": "8-bit"}, "^`quantized-base` needs `lora`\nhint: add what is needed"),
        ({"checkpoint": "blocks"}, "not a lever that memfit knows\nhint: there is `checkpointing`"),
        ({"nothing": 1}, "not a lever that memfit knows\nhint: docs/training.md lists all levers"),
    ]:
        with pytest.raises(ValueError, match=text):
            begin(levers=levers)
    # A hint is about what was given: the argument, or a plan.
    with pytest.raises(RuntimeError, match=r"no module `layers.7`\nhint: .* leave it out of `levers=`"):
        begin(levers={"checkpointing": ["layers.7"]})
    with pytest.raises(RuntimeError, match=r"no module `layers.7`\nhint: leave it out of the plan"):
        begin(plan={"lever": [{"name": "checkpointing", "value": ["layers.7"]}]})
    with pytest.raises(ValueError, match="gradient is freed"):
        begin(levers={"optimizer-in-backward": True}, clip_grad_norm=1.0)


def test_levers_that_change_the_training_are_marked() -> None:
    _, _, step = begin(levers={"lora": 2})
    assert any("`lora`" in text for text in step(TOKENS).changed)
    _, _, step = begin(levers={"checkpointing": "blocks"})
    assert step(TOKENS).changed == ()


def test_an_optimizer_in_the_backward_is_never_half_applied() -> None:
    data = torch.randn(4, 6), torch.tensor([0, 1, 2, 3])
    outcomes: dict[str, int] = {}
    for backup in (False, True):
        for at in every(4, range(1, 400)):
            torch.manual_seed(0)
            model = Perceptron()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
            step = memfit.Step(
                model, optimizer, mean_loss, backup=backup, levers={"optimizer-in-backward": True}
            )
            before = flat(model)
            with FailAt(at) as fault:
                try:
                    step(data)
                    ended = "done"
                except memfit.StepInvalid:
                    ended = "invalid"
                except memfit.StepDoesNotFit:
                    ended = "as before"
            if not fault.raised:
                break
            outcomes[ended] = outcomes.get(ended, 0) + 1
            assert ended != "as before" or torch.equal(flat(model), before), at
            assert ended != "invalid" or not backup
    assert outcomes["as before"] > 10
    assert outcomes["invalid"] > 0


def test_a_step_restored_from_its_backup_does_not_block_the_next() -> None:
    data = torch.randn(4, 6), torch.tensor([0, 1, 2, 3])
    put_back = 0
    for at in range(1, 400, 7):
        torch.manual_seed(0)
        model = Perceptron()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        step = memfit.Step(model, optimizer, mean_loss, backup=True, levers={"optimizer-in-backward": True})
        with FailAt(at) as fault, contextlib.suppress(memfit.StepDoesNotFit):
            step(data)
        if not fault.raised:
            break
        put_back += 1
        assert step(data).stepped
        step.close()
    assert put_back > 5


@pytest.mark.filterwarnings("ignore:memfit")
def test_packed_moments_are_restored_after_a_failed_step() -> None:
    """An optimizer's step that fails at any of its operations is done again, from the moments as they were
    packed.
    """
    data = torch.randn(4, 64), torch.randint(0, 80, (4,))

    def train(at: int | None) -> tuple[torch.Tensor, torch.Tensor, FailAt]:
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 80)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
        step = memfit.Step(model, optimizer, mean_loss, backup=True, levers={"8-bit-optimizer": True})
        step(data)
        update, fault = optimizer.step, FailAt(at)

        def failing() -> None:
            with fault:
                update()

        optimizer.step = failing  # type: ignore[method-assign]
        step(data)
        del optimizer.step
        step(data)
        step.close()
        return flat(model), optimizer.state[model.weight]["exp_avg"], fault

    weights, moment, counted = train(None)
    assert counted.seen > 40
    tried = range(1, counted.seen + 1, 5)
    for at in tried:
        now, kept, fault = train(at)
        assert fault.raised
        assert torch.equal(now, weights), at
        assert torch.equal(kept, moment), at


def test_a_sample_that_does_not_fit_names_what_holds_the_memory_and_what_would_fit(tmp_path: Path) -> None:
    """A sequence so long that not even one of its samples fits on the card."""
    found = on_device(
        RAGGED
        + textwrap.dedent("""
        model, step = begin()
        step(torch.randint(0, 8000, (8, 128)))
        before = [parameter.clone() for parameter in model.parameters()]
        live = torch.cuda.memory_allocated()
        text = ""
        try:
            step(torch.randint(0, 8000, (1, 9000)))
        except memfit.StepDoesNotFit as error:
            text = str(error)
        same = all(torch.equal(one, other) for one, other in zip(before, model.parameters()))
        answer(text=text, same=same, left=torch.cuda.memory_allocated() - live, steps=step.steps)
        """),
        tmp_path,
        "t4",
    ).said
    text = found["text"]
    assert text.startswith("a single sample does not fit"), text
    for part in (
        "MiB of parameters",
        "of optimizer state",
        "GiB of this sample",
        "the failed allocation needed at least",
    ):
        assert part in text, text
    # Two moments are too little; what a sample keeps for its backward is not.
    assert "`activation-offload` (exact, about" in text
    assert "`autocast-bf16` (precision, about" in text
    assert "hint: " in text
    assert (found["same"], found["left"], found["steps"]) == (True, 0, 1)


# The memory of a training with each of `LEVERS`.
PEAKS = """
large, small = torch.randint(0, 8000, (16, 512)), torch.randint(0, 8000, (1, 64))
peaks = {}
for name, levers in LEVERS.items():
    model, step = begin(levers=levers, micro_batch=16)
    start = torch.cuda.memory_allocated()
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        step(small if name.startswith("small") else large)
    live = torch.cuda.memory_allocated()
    asked = torch.cuda.memory_stats()["requested_bytes.all.current"]
    peaks[name] = dict(peak=torch.cuda.max_memory_allocated(), live=live, asked=asked, start=start)
    step.close()
    del model, step
    memfit.release()
    peaks[name]["left"] = torch.cuda.memory_allocated()
answer(**peaks)
"""
# Logits of `PEAKS`, without the last place of each sequence.
LOGITS = 16 * 511 * 8000 * 4


def memory_with(
    levers: dict[str, dict[str, Any]], folder: Path, before: str = ""
) -> dict[str, dict[str, int]]:
    """The memory with each of these levers and with none, after which nothing may be left."""
    levers = {"plain": {}, **levers}
    found = on_device(f"{before}\n{RAGGED}LEVERS = {levers}\n{PEAKS}", folder, "a100-80gb").said
    left = {name: run["left"] for name, run in found.items()}
    assert set(left.values()) == {left["plain"]}, left
    return found


def test_levers_on_a_virtual_gpu_take_the_promised_memory(tmp_path: Path) -> None:
    found = memory_with(
        {
            "checkpointing": {"checkpointing": "blocks"},
            "offload": {"activation-offload": "blocks"},
            "both": {"checkpointing": "blocks", "activation-offload": "blocks"},
            "chunked": {"chunked-loss": 512},
            "sdpa": {"sdpa": True},
            "8-bit": {"8-bit-optimizer": True},
            "bf16 state": {"bf16-optimizer-state": True},
            "host": {"host-optimizer-state": True},
            "in backward": {"optimizer-in-backward": True},
            "small": {},
            "small in backward": {"optimizer-in-backward": True},
            "lora": {"lora": 8},
            "quantized": {"lora": 8, "quantized-base": "4-bit"},
        },
        tmp_path,
    )
    plain = found["plain"]
    parameters = plain["start"]

    def saves(name: str, of: str = "peak") -> int:
        return plain[of] - found[name][of]

    assert saves("checkpointing") > 0.4 * plain["peak"]
    assert saves("offload") > 0.4 * plain["peak"]
    assert saves("both") > saves("checkpointing")
    # Only the log-sum-exp of each attention row is saved.
    assert saves("sdpa") > 6 * 16 * 8 * 512 * (512 - 2) * 4
    # Two moments of four bytes: eight of them become two and a little, four, none.
    assert saves("8-bit", "live") > 1.4 * parameters
    # Blocks are up to a megabyte larger than what is asked of them, and more so for smaller tensors: what is
    # asked for is all of it, but for moments of less than 4,096 numbers.
    assert saves("bf16 state", "live") > 0.9 * parameters
    assert saves("bf16 state", "asked") > 0.98 * parameters
    assert saves("host", "live") > 1.9 * parameters
    # This model's peak lies where the backward begins, before there are gradients, and the head's update with
    # its temporaries falls in it; with few samples the peak is where all gradients are.
    assert saves("in backward") > -0.01 * plain["peak"]
    assert found["small"]["peak"] - found["small in backward"]["peak"] > 0.5 * parameters
    assert found["quantized"]["start"] < found["lora"]["start"] - 0.5 * parameters
    # Logits, their copy without the last place, and their softmax; what the backward of a block needs stands
    # in their place.
    assert saves("chunked") > 1.8 * LOGITS


@exhaustive
def test_levers_on_compiled_blocks_take_the_promised_memory(tmp_path: Path) -> None:
    found = memory_with(
        {
            "checkpointing": {"checkpointing": "blocks"},
            "compiled": {"compile": {"backend": "eager"}, "checkpointing": "blocks", "chunked-loss": 512},
            "compiled offload": {
                "compile": {"backend": "aot_eager", "modules": "blocks"},
                "activation-offload": "blocks",
            },
        },
        tmp_path,
    )
    plain, checkpointed = found["plain"]["peak"], found["checkpointing"]["peak"]
    assert plain - found["compiled offload"]["peak"] > 0.4 * plain
    # The virtual card's own wrappers of operators are taken away when the compiler is imported.
    assert checkpointed - found["compiled"]["peak"] > 0.5 * LOGITS


def test_logits_are_never_whole_if_the_lever_was_imported_before_the_card_was_used(tmp_path: Path) -> None:
    found = memory_with(
        {"chunked": {"chunked-loss": 512}},
        tmp_path,
        before="import memfit._levers.logits, memfit._levers.chunked_loss",
    )
    assert found["plain"]["peak"] - found["chunked"]["peak"] > 1.8 * LOGITS


def test_a_leak_warning_names_the_line_that_holds_the_tensors(tmp_path: Path) -> None:
    found = on_device(
        RAGGED
        + textwrap.dedent("""
        def train():
            said, kept, total = [], [], 0
            model, step = begin(micro_batch=4)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for index in range(12):
                    step(torch.randint(0, 8000, (4, 64)))
                    kept.append(torch.zeros(1 << 20, device="cuda"))
            return [(str(each.message), each.filename) for each in caught]
        answer(said=train(), script=__file__)
        """),
        tmp_path,
    ).said
    leaks = [(text, file) for text, file in found["said"] if "grows by" in text]
    assert len(leaks) == 1
    text, file = leaks[0]
    assert file == found["script"]
    assert "4.0 MiB per step" in text
    assert "`kept`" in text
    assert 'kept.append(torch.zeros(1 << 20, device="cuda"))' in text
