"""Transformers' `Trainer` with memfit: without an out-of-memory error it gives the same losses as without
memfit, bit for bit; with one, it ends where it would have ended without.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import memfit
import pytest
import torch
from torch import nn
from torch.nn import functional
from training import FailAt, flat

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB."


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_importing_memfit_and_the_package_imports_neither_torch_nor_a_trainer() -> None:
    done = python(
        "import sys, memfit; memfit.integrations; assert 'integrations' in dir(memfit)\n"
        "loaded = {'torch', 'transformers', 'lightning', 'accelerate'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["transformers", "lightning", "accelerate"])
def test_a_missing_library_is_named_with_the_command_that_installs_it(name: str) -> None:
    hide = f"import sys; sys.modules[{name!r}] = sys.modules['pytorch_lightning'] = None\n"
    done = python(f"{hide}import memfit\nmemfit.integrations.{name}")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()
    assert (
        f"ImportError: `memfit.integrations.{name}` needs `{name}`, which is not installed here" in last[-2]
    )
    assert f"-m pip install '{name}>=" in last[-1]


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sentences of which a different number of tokens counts in each."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 32, (10,), generator=torch.Generator().manual_seed(index))
        labels = tokens.clone()
        labels[: index % 7] = -100
        return {"input_ids": tokens, "labels": labels}


class Predictor(nn.Module):
    """Predicts the next token; the loss is normalised as in Transformers' language models."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embed, self.drop, self.head = nn.Embedding(32, 8), nn.Dropout(dropout), nn.Linear(8, 32)

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        # This name says to the oldest releases that the model takes the number of items.
        **loss_kwargs: Any,  # noqa: ARG002
    ) -> dict[str, torch.Tensor]:
        logits = self.head(self.drop(torch.tanh(self.embed(input_ids))))[:, :-1].flatten(0, 1)
        targets = labels[:, 1:].flatten()
        if num_items_in_batch is None:
            return {"loss": functional.cross_entropy(logits, targets)}
        return {"loss": functional.cross_entropy(logits, targets, reduction="sum") / num_items_in_batch}


def language_model(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    if not os.environ.get("MEMFIT_INTEGRATIONS"):
        return Predictor(dropout)
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_dropout=dropout,
    )
    return LlamaForCausalLM(config)


def arguments(folder: Path, **keywords: Any) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(
        str(folder),
        **{
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 2,
            "num_train_epochs": 2,
            "logging_steps": 1,
            # Adam would turn the rounding of gradients near zero into whole steps.
            "optim": "sgd",
            "learning_rate": 0.5,
            "use_cpu": True,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            **keywords,
        },
    )


def fail_in_forward(trainer: Any, at: Callable[[int, int], bool]) -> None:
    """Raise an out-of-memory error in the forward passes that `at` names by their number and their rows."""
    compute, calls = trainer.compute_loss, [0]

    def compute_loss(model: nn.Module, inputs: Any, *args: Any, **keywords: Any) -> Any:
        calls[0] += 1
        loss = compute(model, inputs, *args, **keywords)
        if at(calls[0], len(inputs["input_ids"])):
            raise torch.OutOfMemoryError(MEMORY)
        return loss

    trainer.compute_loss = compute_loss


def counting(base: type) -> type:
    """A trainer that counts on its own, as TRL's do."""

    class Counting(base):  # type: ignore[misc]
        tokens = 0

        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **keywords)
            self.losses: dict[str, list[float]] = {"train": []}
            self.total = torch.zeros(())

        def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **keywords: Any) -> Any:
            loss = super().compute_loss(model, inputs, *args, **keywords)
            self.tokens += inputs["input_ids"].numel()
            self.losses["train"].append(loss.item())
            self.total += loss.detach()
            return loss

    return Counting


def trained(
    trainer_class: type,
    folder: Path,
    *,
    at: Callable[[int, int], bool] | None = None,
    dropout: float = 0.0,
    arguments_: dict[str, Any] | None = None,
    **keywords: Any,
) -> tuple[Any, list[float], torch.Tensor]:
    model = keywords.pop("model", None) or language_model(dropout)
    data = keywords.pop("train_dataset", None) or Sentences()
    trainer = trainer_class(
        model=model, args=arguments(folder, **(arguments_ or {})), train_dataset=data, **keywords
    )
    if at is not None:
        fail_in_forward(trainer, at)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return trainer, losses, flat(model)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[float], torch.Tensor]:
    transformers = pytest.importorskip("transformers")
    return trained(counting(transformers.Trainer), tmp_path_factory.mktemp("plain"))


def with_memfit() -> type:
    from memfit.integrations import transformers as integration
    from transformers import Trainer

    return integration.memfit_trainer(counting(Trainer))


def test_a_trainer_without_a_failure_trains_bit_for_bit_the_same(plain: Any, tmp_path: Path) -> None:
    trainer, losses, weights = trained(with_memfit(), tmp_path)
    assert losses == plain[1]
    assert torch.equal(weights, plain[2])
    assert (trainer.memfit.retries, trainer.memfit.micro_batches) == (0, 1)
    assert (trainer.tokens, trainer.losses) == (plain[0].tokens, plain[0].losses)
    # Nothing is left in place after the training.
    assert "memfit/integrations" not in trainer.optimizer.step.__code__.co_filename
    assert "backward" not in vars(trainer.accelerator)


@pytest.mark.parametrize("call", [1, 2, 4])
def test_a_trainer_that_runs_out_of_memory_ends_where_it_would_have_without(
    plain: Any, tmp_path: Path, call: int
) -> None:
    """In the first and the second batch of a window: the loss stays the mean over the window's tokens."""
    trainer, losses, weights = trained(
        with_memfit(), tmp_path, at=lambda number, rows: number == call and rows == 8
    )
    assert trainer.memfit.retries == 1
    assert losses == pytest.approx(plain[1], rel=1e-5)
    assert torch.allclose(weights, plain[2], atol=1e-6)
    # The trainer's own counters have each batch once, and no failed attempt or comparison.
    assert trainer.tokens == plain[0].tokens
    assert float(trainer.total) == pytest.approx(float(plain[0].total), rel=1e-5)
    assert sum(trainer.losses["train"]) == pytest.approx(sum(plain[0].losses["train"]), rel=1e-5)


def test_a_retry_is_bit_for_bit_the_training_that_began_with_smaller_parts(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from memfit.integrations.transformers import Settings

    smaller = trained(with_memfit(), tmp_path, dropout=0.2, memfit=Settings(micro_batch=4))
    failing = trained(with_memfit(), tmp_path, dropout=0.2, at=lambda _, rows: rows > 4)
    assert failing[0].memfit.retries > 0
    assert failing[1] == smaller[1]
    assert torch.equal(failing[2], smaller[2])


def test_an_operation_that_fails_in_the_middle_of_a_backward_pass_leaves_no_trace(
    plain: Any, tmp_path: Path
) -> None:
    from memfit.integrations import transformers as integration
    from transformers import Trainer

    survived = 0
    for at in (12, 25, 40):
        model = language_model()
        trainer = counting(Trainer)(model=model, args=arguments(tmp_path), train_dataset=Sentences())
        callback = integration.Callback(trainer)
        trainer.add_callback(callback)
        run, modes = trainer.training_step, []

        def failing(
            *args: Any, run: Any = run, modes: list[FailAt] = modes, at: int = at, **keywords: Any
        ) -> Any:
            with FailAt(at if not modes else None) as mode:
                modes.append(mode)
                return run(*args, **keywords)

        trainer.training_step = failing
        trainer.train()
        survived += callback.retries
        assert torch.allclose(flat(model), plain[2], atol=1e-6), at
    assert survived >= 2


class Normalised(nn.Module):
    """A mean over samples, behind batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": functional.cross_entropy(self.layers(input_ids.float()), labels.clamp(0)[:, -1] % 5)}


def test_a_batch_that_may_not_be_divided_is_refused_before_a_weight_changes(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from memfit.integrations.transformers import Settings

    model = Normalised()
    before = flat(model)
    with pytest.raises(memfit.StepDoesNotFit, match="batch normalisation"):
        trained(with_memfit(), tmp_path, model=model, at=lambda _, rows: rows == 8)
    assert torch.equal(flat(model), before)
    assert not any(each.grad is not None for each in model.parameters())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trainer, _, weights = trained(
            with_memfit(),
            tmp_path,
            model=model,
            at=lambda _, rows: rows == 8,
            memfit=Settings(allow="changes-training"),
        )
    assert not torch.equal(weights, before)
    assert trainer.memfit.changed
    assert any("splitting the batch changes training results" in str(each.message) for each in seen)


class Tagger(nn.Module):
    """A mean over the tokens of a batch, whatever the window has: the trainer divides it by the batches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.head = nn.Embedding(32, 8), nn.Linear(8, 32)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.embed(input_ids))
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)}


def test_parts_of_a_mean_over_tokens_are_weighted_by_their_tokens(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    plain = trained(transformers.Trainer, tmp_path, model=Tagger())
    divided = trained(with_memfit(), tmp_path, model=Tagger(), at=lambda _, rows: rows > 3)
    assert divided[0].memfit.retries > 0
    assert divided[1] == pytest.approx(plain[1], rel=1e-5)
    assert torch.allclose(divided[2], plain[2], atol=1e-6)


def test_a_plan_is_stated_by_the_arguments_and_the_rest_is_applied_or_named(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from memfit.integrations.transformers import training_arguments

    plan = tmp_path / "memfit.plan.toml"
    plan.write_text(
        "micro_batch = 4\nmicro_batches_per_step = 4\naccumulate = 2\n[made_for]\nbatch = 8\nown_accumulation = 2\n"
        + "".join(
            f'[[lever]]\nname = "{name}"\nvalue = {value}\nlabel = "exact"\n'
            for name, value in (
                ("autocast-bf16", "true"),
                ("fused-optimizer", "true"),
                ("loader-workers", "4"),
                ("checkpointing", '["model.layers.0"]'),
                ("bf16-optimizer-state", "true"),
            )
        )
    )
    keywords = {"use_cpu": True, "report_to": []}
    with pytest.warns(UserWarning, match="`loader-workers` is not applied") as said:
        made = training_arguments(plan, output_dir=str(tmp_path), **keywords)
    assert (made.per_device_train_batch_size, made.gradient_accumulation_steps) == (4, 4)
    assert (made.bf16, made.gradient_checkpointing) == (True, True)
    assert str(getattr(made.optim, "value", made.optim)) == "adamw_torch_fused"
    assert made.memfit_settings.micro_batch is None
    assert made.memfit_settings.plan == {"lever": [{"name": "bf16-optimizer-state", "value": True}]}
    texts = " ".join(str(each.message) for each in said)
    assert "`bf16-optimizer-state`: `memfit.integrations.transformers.Mixin` applies the rest" in texts
    # The user's batch is not multiplied by the plan's: the mixin divides it instead.
    with pytest.warns(UserWarning, match="`autocast-bf16` is not applied"):
        own = training_arguments(
            plan, output_dir=str(tmp_path), per_device_train_batch_size=8, bf16=False, **keywords
        )
    assert (own.per_device_train_batch_size, own.gradient_accumulation_steps) == (8, 1)
    assert own.memfit_settings.micro_batch == 4
    trainer, _, _ = trained(
        with_memfit(),
        tmp_path,
        memfit=own.memfit_settings,
        arguments_={"max_steps": 1, "num_train_epochs": 1},
    )
    assert trainer.memfit.micro_batches == 2


PLAN_FOR_TWO = """
[made_for]
batch = 8
gpu = "T4"
[parallel]
replicate = 2
"""


def test_a_plan_for_several_processes_is_refused_before_a_step(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from memfit.integrations.transformers import Settings, training_arguments

    plan = tmp_path / "memfit.plan.toml"
    plan.write_text(PLAN_FOR_TWO)
    model = language_model()
    before = flat(model)
    with pytest.raises(
        ValueError, match=r"the plan is for 2 processes, .* run in one\nhint: use `memfit.Step`"
    ):
        trained(with_memfit(), tmp_path, model=model, memfit=Settings(plan=plan))
    assert torch.equal(flat(model), before)
    with pytest.raises(ValueError, match="the plan is for 2 processes"):
        training_arguments(plan, output_dir=str(tmp_path), use_cpu=True)


def test_a_plan_for_another_gpu_is_applied_with_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from memfit.integrations.transformers import Settings

    plan = tmp_path / "memfit.plan.toml"
    plan.write_text('micro_batch = 4\n[made_for]\nbatch = 8\ngpu = "T4"\n')
    keywords = {"max_steps": 1, "num_train_epochs": 1}
    with pytest.warns(UserWarning, match="the plan was made for T4, but this training runs on the CPU"):
        trainer, _, _ = trained(with_memfit(), tmp_path, memfit=Settings(plan=plan), arguments_=keywords)
    assert trainer.memfit.micro_batches == 2


def test_the_noise_scale_counts_tokens(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from memfit.integrations.transformers import Settings

    trainer, _, _ = trained(with_memfit(), tmp_path, memfit=Settings(micro_batch=3, noise_scale=True))
    found = trainer.memfit.noise_scale()
    assert (found.estimates, found.undivided) == (trainer.state.global_step, 0)
    # Seven tokens of a sentence's ten count on average.
    sentences = trainer.tokens / 10 / trainer.state.global_step
    assert found.unit == "counted items"
    assert 6 * sentences < found.batch < 8 * sentences
