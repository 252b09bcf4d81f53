"""`memfit.distill`: the losses are those of the definition, and micro-batches train as the whole batch."""

from __future__ import annotations

import copy
from typing import Any

import memfit
import pytest
import torch
from lever_models import TOKENS, Language
from memfit._train import distillation
from torch import nn
from torch.nn import functional

IMAGES, LABELS = (
    torch.randn(6, 8, generator=torch.Generator().manual_seed(1)),
    torch.tensor([0, 1, 2, 0, 1, 2]),
)


def model(width: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3))


def own(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(outputs, batch[1])


def by_definition(student: nn.Module, teacher: nn.Module, temperature: float, weight: float) -> torch.Tensor:
    ours, theirs = student(IMAGES) / temperature, teacher(IMAGES).detach() / temperature
    soft = functional.kl_div(ours.log_softmax(-1), theirs.softmax(-1), reduction="batchmean") * temperature**2
    return weight * soft + (1 - weight) * own(student(IMAGES), (IMAGES, LABELS))


@pytest.mark.parametrize("micro_batch", [None, 2, 4])
def test_a_step_is_the_definitions(micro_batch: int | None) -> None:
    teacher, student = model(32, 1), model(4, 2)
    plain = copy.deepcopy(student)
    loss = by_definition(plain, teacher, 3.0, 0.7)
    loss.backward()
    torch.optim.SGD(plain.parameters(), lr=0.5).step()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.5)
    step = memfit.distill(
        teacher, student, optimizer, own, temperature=3.0, weight=0.7, micro_batch=micro_batch
    )
    result = step((IMAGES, LABELS))
    assert float(result.loss) == pytest.approx(float(loss), rel=1e-5)
    for ours, theirs in zip(student.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not teacher.training
    assert all(each.grad is None for each in teacher.parameters())


def test_the_soft_loss_is_that_of_the_definition_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(5, 7, 11, dtype=torch.float64, requires_grad=True)
    taught = torch.randn(5, 7, 11, dtype=torch.float64)
    taught[0, 0, :3] = -torch.inf
    expected = functional.kl_div((logits / 2).log_softmax(-1), (taught / 2).softmax(-1), reduction="sum") * 4
    (gradient,) = torch.autograd.grad(expected, logits)
    for elements in (1, 40, 1 << 22):
        monkeypatch.setattr(distillation, "_ELEMENTS_AT_ONCE", elements)
        total = distillation.soft_loss(logits, taught, 2.0)
        assert float(total) == pytest.approx(float(expected), rel=1e-5)
        (found,) = torch.autograd.grad(3 * total, logits)
        torch.testing.assert_close(found, 3 * gradient, rtol=1e-4, atol=1e-6)


def test_features_are_compared_and_move_the_student() -> None:
    teacher, student = model(4, 1), model(4, 2)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.0)
    distance = (student[0](IMAGES) - teacher[0](IMAGES)).square().mean()
    plain = memfit.distill(teacher, student, optimizer)((IMAGES, LABELS)).loss
    step = memfit.distill(
        teacher, student, optimizer, features={"0": "0"}, feature_weight=10.0, micro_batch=4
    )
    assert float(step((IMAGES, LABELS)).loss - plain) == pytest.approx(10 * float(distance), rel=1e-4)


class Convolutional(nn.Module):
    """Feature maps of any number of channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.maps, self.head = nn.Conv2d(1, channels, 3), nn.Linear(channels, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.maps(x.view(-1, 1, 4, 2).repeat(1, 1, 2, 4)).mean((2, 3)))


def test_attention_is_where_outputs_are_large_whatever_their_channels() -> None:
    teacher, student = Convolutional(8), Convolutional(2)
    images = IMAGES.view(-1, 1, 4, 2).repeat(1, 1, 2, 4)
    one, two = (
        functional.normalize(each.maps(images).square().mean(1).flatten(1), dim=1)
        for each in (student, teacher)
    )
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    result = memfit.distill(
        teacher, student, optimizer, weight=1.0, attentions={"maps": "maps"}, attention_weight=100.0
    )
    plain = memfit.distill(teacher, copy.deepcopy(student), torch.optim.SGD(student.parameters(), lr=0.0))
    difference = float(result((IMAGES, LABELS)).loss - plain((IMAGES, LABELS)).loss)
    assert difference == pytest.approx(100 * float((one - two).square().mean()), rel=1e-4)
    moved = functional.normalize(student.maps(images).square().mean(1).flatten(1), dim=1)
    assert (moved - two).square().mean() < (one - two).square().mean()


class Attending(nn.Module):
    """Returns attention weights in addition to its output, as the modules of transformers do."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, heads, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(-1, 1, 8).repeat(1, 3, 1) * torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1)
        return self.head(self.attention(x, x, x, average_attn_weights=False)[0].mean(1))


def test_attention_weights_are_compared_where_there_are_some() -> None:
    teacher, student = Attending(4), Attending(2)
    tokens = IMAGES.view(-1, 1, 8).repeat(1, 3, 1) * torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1)
    one, two = (
        each.attention(tokens, tokens, tokens, average_attn_weights=False)[1].mean(1)
        for each in (student, teacher)
    )
    assert one.shape == two.shape == (6, 3, 3)
    found = distillation.attention_distance((tokens, one.unsqueeze(1)), (tokens, two.unsqueeze(1)))
    torch.testing.assert_close(found, (one - two).square().flatten(1).mean(1))
    step = memfit.distill(
        teacher,
        student,
        torch.optim.SGD(student.parameters(), lr=0.1),
        attentions={"attention": "attention"},
        micro_batch=2,
    )
    step((IMAGES, LABELS))
    with pytest.raises(ValueError, match="no places to attend to"):
        distillation.attention_distance(IMAGES, IMAGES)


def test_the_teacher_keeps_its_precision_and_may_stay_on_the_host() -> None:
    teacher, student = Language(0.0), Language(0.0)
    expected = teacher(TOKENS)
    kinds = []
    teacher.to(torch.bfloat16).blocks[0].register_forward_hook(lambda *given: kinds.append(given[2].dtype))
    step = memfit.distill(teacher, student, torch.optim.SGD(student.parameters(), lr=0.1), offload=True)
    step(TOKENS)
    assert set(kinds) == {torch.bfloat16}
    torch.testing.assert_close(teacher(TOKENS).float(), expected, rtol=0.1, atol=0.1)


def test_mistakes_are_named() -> None:
    teacher, student = model(4, 1), model(4, 2)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for options, text in (
        ({"temperature": 0.0}, "above 0"),
        ({"weight": 1.5}, "between 0 and 1"),
        ({"features": {"9": "0"}}, "student has no module `9`, which `features`"),
        ({"attentions": {"0": "9"}}, "teacher has no module `9`, which `attentions`"),
        ({"offload": True}, "the teacher has none"),
    ):
        with pytest.raises(ValueError, match=text):
            memfit.distill(teacher, student, optimizer, own, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="same module"):
        memfit.distill(student, student, optimizer)
    wide = nn.Linear(8, 5)
    with pytest.raises(ValueError, match="shape"):
        memfit.distill(wide, student, optimizer)((IMAGES, LABELS))
