"""Lightning's `Trainer` with memfit: the same losses without an out-of-memory error, and the same end with
one.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from training import flat

pl = pytest.importorskip("lightning.pytorch")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB."


def lightning_run(
    callbacks: list[Any],
    at: int | None = None,
    accumulate: int = 2,
    module: Any = None,
    clip: float | None = 0.5,
) -> tuple[list[tuple[float, float]], torch.Tensor, dict[str, float]]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)

    class Classifier(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 3))
            self.seen: list[tuple[float, float]] = []

        def training_step(self, batch: Any, index: int) -> dict[str, torch.Tensor]:
            inputs, labels = batch
            loss = functional.cross_entropy(self.net(inputs), labels)
            self.log("loss", loss, on_step=True, on_epoch=True)
            if at is not None and len(inputs) == 8 and index == at:
                raise torch.OutOfMemoryError(MEMORY)
            return {"loss": loss, "first": inputs[:, 0]}

        def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:  # noqa: ARG002
            assert torch.equal(outputs["first"], batch[0][:, 0])
            self.seen.append((float(outputs["loss"]), float(self.trainer.callback_metrics["loss_step"])))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    torch.manual_seed(1)
    module = module or Classifier()
    generator = torch.Generator().manual_seed(3)
    inputs, labels = torch.randn(38, 6, generator=generator), torch.randint(0, 3, (38,), generator=generator)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs, labels), 8, shuffle=True, generator=generator
    )
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        accumulate_grad_batches=accumulate,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=clip,
    )
    trainer.fit(module, loader)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert {"training_step", "backward"}.isdisjoint(vars(trainer.strategy))
    return module.seen, flat(module), metrics


def test_lightning_without_a_failure_trains_bit_for_bit_the_same() -> None:
    from memfit.integrations.lightning import Callback

    plain, callback = lightning_run([]), Callback()
    seen, weights, metrics = lightning_run([callback])
    assert seen == plain[0]
    assert metrics == plain[2]
    assert torch.equal(weights, plain[1])
    assert (callback.retries, callback.micro_batches) == (0, 1)


@pytest.mark.parametrize("at", [0, 1, 3])
def test_lightning_that_runs_out_of_memory_ends_where_it_would_have_without(at: int) -> None:
    from memfit.integrations.lightning import Callback

    plain, callback = lightning_run([]), Callback()
    seen, weights, metrics = lightning_run([callback], at=at)
    assert callback.retries >= 1
    assert [loss for loss, _ in seen] == pytest.approx([loss for loss, _ in plain[0]], rel=1e-5)
    assert [logged for _, logged in seen] == pytest.approx([logged for _, logged in plain[0]], rel=1e-5)
    assert metrics == pytest.approx(plain[2], rel=1e-5)
    assert torch.allclose(weights, plain[1], atol=1e-6)


@pytest.mark.parametrize("at", [None, 0, 3])
def test_metrics_count_each_sample_once(at: int | None) -> None:
    """A metric of torchmetrics that is logged, one that the module reads itself, and one in a collection."""
    torchmetrics = pytest.importorskip("torchmetrics")
    from memfit.integrations.lightning import Callback

    class Measured(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, fails_at: int | None) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
            self.fails_at = fails_at
            self.seen: list[Any] = []
            self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3)
            self.mean = torchmetrics.MeanMetric()
            self.more = torchmetrics.MetricCollection(
                [torchmetrics.classification.MulticlassConfusionMatrix(3)]
            )
            self.counted: list[tuple[float, Any]] = []

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            inputs, labels = batch
            logits = self.net(inputs)
            self.accuracy(logits, labels)
            self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
            self.mean.update(logits.detach().sum(1))
            self.more.update(logits, labels)
            if index == self.fails_at and len(inputs) == 8:
                raise torch.OutOfMemoryError(MEMORY)
            self.log("loss_step", 0.0)
            return functional.cross_entropy(logits, labels)

        def on_train_epoch_end(self) -> None:
            samples = self.more.compute()["MulticlassConfusionMatrix"].sum()
            self.counted.append((float(self.mean.compute()), int(samples)))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    plain, watched, callback = Measured(None), Measured(at), Callback()
    watched.load_state_dict(plain.state_dict())
    _, weights, metrics = lightning_run([], module=plain)
    _, weights_watched, after = lightning_run([callback], module=watched)
    assert (callback.retries > 0) == (at is not None)
    assert torch.allclose(weights_watched, weights, atol=1e-6)
    assert after == pytest.approx(metrics, rel=1e-5)
    for (mean, samples), (mean_plain, samples_plain) in zip(watched.counted, plain.counted, strict=True):
        assert samples == samples_plain
        assert mean == pytest.approx(mean_plain, rel=1e-4)


def test_lightning_with_a_count_takes_the_mean_over_the_window() -> None:
    """The last window of an epoch has a batch of 6: with a count, each sample of it has the same weight."""
    from memfit.integrations.lightning import Callback, Settings

    class Line(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(6))
            self.seen: list[Any] = []
            self.gradients: list[torch.Tensor] = []
            self.inputs: list[torch.Tensor] = []

        def training_step(self, batch: Any, index: int) -> torch.Tensor:  # noqa: ARG002
            return (batch[0] @ self.weight).mean()

        def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:  # noqa: ARG002
            self.inputs.append(batch[0])
            self.log("loss_step", 0.0)

        def on_before_optimizer_step(self, optimizer: Any) -> None:  # noqa: ARG002
            self.gradients.append(self.weight.grad.clone())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Line()
    settings = Settings(count=lambda batch: float(len(batch[0])), micro_batch=5)
    lightning_run([Callback(settings)], accumulate=5, module=module, clip=None)
    # Each epoch is one window of four batches of 8 and one of 6.
    for gradient, start in zip(module.gradients, (0, 5), strict=True):
        inputs = torch.cat(module.inputs[start : start + 5])
        assert torch.allclose(gradient, inputs.mean(0), atol=1e-6)


def test_lightning_refuses_what_it_cannot_divide() -> None:
    from memfit.integrations.lightning import Callback

    class Manual(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.weight = nn.Parameter(torch.zeros(6))

        def training_step(self, batch: Any, index: int) -> None: ...

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with pytest.raises(ValueError, match="automatic optimization"):
        lightning_run([Callback()], module=Manual(), accumulate=1, clip=None)
