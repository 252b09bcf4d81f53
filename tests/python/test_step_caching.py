"""`memfit.Step(embed=…)`: a loss that compares the samples of a batch is the whole batch's, in parts too."""

from __future__ import annotations

import copy
from typing import Any

import memfit
import pytest
import torch
from support import on_device
from torch import nn
from torch.nn import functional
from training import FailAt, flat

Pair = tuple[torch.Tensor, torch.Tensor]


class Towers(nn.Module):
    """Two encoders and a learnt temperature, as of CLIP."""

    def __init__(self, dropout: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        between = [nn.BatchNorm1d(16)] if norm else []
        self.left = nn.Sequential(
            nn.Linear(6, 16), *between, nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 8)
        )
        self.right = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8))
        self.scale = nn.Parameter(torch.tensor(1.5))


def embed(model: nn.Module, part: Pair) -> dict[str, torch.Tensor]:
    return {
        "left": functional.normalize(model.left(part[0]), dim=1),
        "right": functional.normalize(model.right(part[1]), dim=1),
    }


def contrastive(model: nn.Module, found: dict[str, torch.Tensor]) -> torch.Tensor:
    scores = found["left"] @ found["right"].T * model.scale.exp()
    own = torch.arange(len(scores))
    return (functional.cross_entropy(scores, own) + functional.cross_entropy(scores.T, own)) / 2


def pairs(count: int, kind: torch.dtype = torch.float64) -> Pair:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 6, generator=generator, dtype=kind), torch.randn(
        count, 6, generator=generator, dtype=kind
    )


def stepped(model: nn.Module, data: list[Pair], micro: int | None, **options: Any) -> memfit.Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = memfit.Step(
        model,
        optimizer,
        lambda found, _: contrastive(model, found),
        embed=embed,
        whole=True,
        micro_batch=micro,
        **options,
    )
    for batch in data:
        step(batch)
    return step


@pytest.mark.parametrize("items", [64, 256])
@pytest.mark.parametrize("micro", [1, 7, 50])
def test_a_contrastive_loss_in_parts_is_that_of_the_whole_batch(items: int, micro: int) -> None:
    torch.manual_seed(0)
    divided = Towers().double()
    plain = copy.deepcopy(divided)
    data = [pairs(items), pairs(items - 5)]
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for batch in data:
        optimizer.zero_grad()
        contrastive(plain, embed(plain, batch)).backward()
        optimizer.step()
    step = stepped(divided, data, micro)
    assert step.verification is not None
    assert step.verification.equal
    assert torch.allclose(flat(divided), flat(plain), rtol=0, atol=1e-12)


def test_the_result_has_the_whole_batchs_loss_and_gradient_norm() -> None:
    torch.manual_seed(0)
    model = Towers().double()
    expected = contrastive(model, embed(model, pairs(20))).item()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = lambda found, batch: {"loss": contrastive(model, found), "samples": len(batch[0])}  # noqa: E731
    step = memfit.Step(model, optimizer, loss, embed=embed, micro_batch=6, clip_grad_norm=1.0)
    result = step(pairs(20))
    assert result.loss.item() == pytest.approx(expected)
    assert (result.micro_batches, result.metrics["samples"], result.changed) == (4, 20, ())
    assert result.grad_norm is not None


def test_accumulated_batches_are_each_compared_within_themselves() -> None:
    torch.manual_seed(0)
    divided = Towers().double()
    plain = copy.deepcopy(divided)
    data = [pairs(20), pairs(20), pairs(20)]
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for batch in data:
        (contrastive(plain, embed(plain, batch)) / 3).backward()
    optimizer.step()
    stepped(divided, data, 7, accumulate=3)
    assert torch.allclose(flat(divided), flat(plain), rtol=0, atol=1e-12)


def test_random_numbers_are_the_same_in_both_passes() -> None:
    """With dropout the gradient is that of the embeddings that the loss saw."""
    torch.manual_seed(0)
    model = Towers(dropout=0.5).double()
    seen: list[torch.Tensor] = []

    def watched(model: nn.Module, part: Pair) -> dict[str, torch.Tensor]:
        found = embed(model, part)
        if step.verification is not None:
            seen.append(found["left"].detach())
        return found

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = lambda found, _: contrastive(model, found)  # noqa: E731
    step = memfit.Step(model, optimizer, loss, embed=watched, micro_batch=5)
    step(pairs(15))
    assert len(seen) == 6
    assert all(torch.equal(one, other) for one, other in zip(seen[:3], seen[3:], strict=True))
    assert not torch.equal(seen[0], seen[1])


def test_an_out_of_memory_error_at_any_operation_leaves_no_trace() -> None:
    torch.manual_seed(0)
    fresh = Towers(dropout=0.5)
    data = [pairs(12, torch.float32)]

    def run(at: int | None, micro: int) -> tuple[FailAt, nn.Module, memfit.Step]:
        model = copy.deepcopy(fresh)
        step = stepped(model, [], micro)
        step.verify(data[0])
        torch.manual_seed(2)
        with FailAt(at) as fault:
            step(data[0])
        return fault, model, step

    counted, _, _ = run(None, 6)
    _, expected, _ = run(None, 3)
    survived = 0
    for at in range(1, counted.seen - 30, max(counted.seen // 12, 1)):
        fault, model, step = run(at, 6)
        assert fault.raised
        if step.retries:
            survived += 1
            assert torch.equal(flat(model), flat(expected)), f"operation {at} of {counted.seen}"
    assert survived > 5


def test_batch_normalisation_in_embed_is_refused() -> None:
    """Batch normalisation within `embed` takes its statistics from each part."""
    torch.manual_seed(0)
    model = Towers(norm=True)
    before = flat(model)
    with pytest.raises(memfit.StepDoesNotFit, match="batch normalisation"):
        stepped(model, [pairs(16, torch.float32)], 4)
    assert torch.equal(flat(model), before)


def test_arguments_that_contradict_each_other_are_refused() -> None:
    model = Towers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = lambda found, _: contrastive(model, found)  # noqa: E731
    with pytest.raises(ValueError, match="leave `whole=` out"):
        memfit.Step(model, optimizer, loss, embed=embed, whole=False)
    with pytest.raises(ValueError, match="needs `embed="):
        memfit.Step(model, optimizer, loss, whole=True)
    step = memfit.Step(model, optimizer, loss, embed=lambda _, part: part[0].sum(), micro_batch=4)
    with pytest.raises(ValueError, match="first dimension is the batch dimension"):
        step(pairs(8, torch.float32))


def test_gradient_caching_fits_a_batch_that_is_too_large_for_the_gpu(tmp_path: Any) -> None:
    """A convolutional encoder with 4,096 pictures on an RTX 3060, which holds 256 at once and no 1,024."""
    script = """
    import memfit
    from torch import nn
    from torch.nn import functional as F
    net = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 64),
    ).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    def embed(net, part):
        return F.normalize(net(part), dim=1)
    def loss(found, batch):
        return F.cross_entropy(found @ found.roll(1, 0).T, torch.arange(len(found), device=device))
    held = []
    for count in (256, 1024):
        try:
            loss(embed(net, torch.rand(count, 3, 128, 128, device=device)), None).backward()
            held.append(count)
        except torch.OutOfMemoryError:
            pass
    optimizer.zero_grad()
    torch.cuda.empty_cache()
    step = memfit.Step(net, optimizer, loss, embed=embed, whole=True)
    result = step(torch.empty(4096, 3, 128, 128))
    answer(held=held, parts=result.micro_batches, stepped=result.stepped)
    """
    found = on_device(script, tmp_path, gpu="rtx-3060")
    assert found.said["stepped"], found.output
    assert found.said["held"] == [256]
    assert found.said["parts"] > 4
