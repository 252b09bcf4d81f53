"""A number of distinct values that only a GPU can compute is no larger than checks before an error allow."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import Answer, on_device, through_memfit
from tiers import rarely


def asked(code: str, folder: Path, *options: str) -> Answer:
    return on_device(code, folder, start=lambda *words: through_memfit(*words, options=options))


CHECKED = """
    class Metric:
        def __init__(self):
            self.classes = 5

    def number_of(labels, most=5, ignored=None, metric=Metric()):
        {body}

    answer(number=number_of((torch.rand(64, device="cuda") * 5).long()))
"""


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ("n = len(torch.unique(labels))\nif n > most: raise RuntimeError(f'{n} values')\nreturn n", 5),
        ("n = len(labels.unique())\nassert n <= metric.classes\nreturn n", 5),
        (
            "n = len(torch.unique(labels, dim=None))\n"
            "check = n > most if ignored is None else n > most + 1\n"
            "if check: raise ValueError('more')\n"
            "return n",
            5,
        ),
        ("if len(torch.unique(labels)) >= most: raise ValueError('more')\nreturn most", 5),
        rarely("if len(torch.unique(labels)) != most: raise ValueError('more')\nreturn most", 5),
        rarely("n = len(labels.unique())\nif n - 1 > most: raise RuntimeError('more')\nreturn n", 6),
        # Nothing tells how many there can be.
        ("n = len(torch.unique(labels))\nif n > most: most = n\nreturn n", 64),
        ("n = len(torch.unique(labels))\nif n > max(most, 3): raise ValueError('more')\nreturn most", None),
        rarely("n = len(torch.unique(labels))\nif n < 1: raise ValueError('none')\nreturn n", 64),
    ],
)
def test_no_more_distinct_values_than_a_check_allows(body: str, number: int | None, tmp_path: Path) -> None:
    answer = asked(CHECKED.format(body=body.replace("\n", "\n        ")), tmp_path)
    if number is None:
        assert answer.report["problem"]["kind"] == "exception-after-change", answer.output
    else:
        assert answer.said == {"number": number}, answer.output


def test_a_metric_of_torchmetrics_takes_labels_that_a_gpu_computes(tmp_path: Path) -> None:
    pytest.importorskip("torchmetrics")
    code = """
    from torchmetrics.classification import Accuracy, MulticlassConfusionMatrix
    layer = torch.nn.Linear(32, 10).cuda()
    accuracy, matrix = (
        each.cuda() for each in (Accuracy(task="multiclass", num_classes=10), MulticlassConfusionMatrix(10))
    )
    for _ in range(3):
        logits = layer(torch.rand(128, 32, device="cuda"))
        target = torch.randint(10, (128,)).cuda()
        for metric in (accuracy, matrix):
            metric(logits.argmax(dim=1), target)
    answer(shape=list(matrix.compute().shape))
    """
    answer = asked(code, tmp_path)
    assert answer.said == {"shape": [10, 10]}, answer.output
