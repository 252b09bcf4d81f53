"""Sizes that only a GPU computes: their bounds, and verdicts that hang on them."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from runs import MIB
from support import on_device, through_memfit
from tiers import first

SIZES = """
    found = {}
    for count in (1_000, 3_000, 100_000, 3_000_000):
        x, ids = torch.randn(count, device=device), torch.randint(0, 9, (count,), device=device)
        rows = x.view(-1, 1)
        sizes = {
            "mask": x[x > 0],
            "nonzero": (x > 0).nonzero(),
            "masked_select": x.masked_select(x > 0),
            "unique": ids.unique(),
            "unique, inverse": ids.unique(return_inverse=True)[0],
            "unique, counts": ids.unique(return_counts=True)[0],
            "unique, both": ids.unique(return_inverse=True, return_counts=True)[0],
            "unique_consecutive": ids.unique_consecutive(),
            "unique rows": rows.unique(dim=0),
            "unique rows, both": rows.unique(dim=0, return_inverse=True, return_counts=True)[0],
        }
        found[count] = {name: len(made) for name, made in sizes.items()}
    answer(found=found)
"""


def test_sizes_that_are_read_back_are_upper_bounds(tmp_path: Path) -> None:
    answer = on_device(SIZES, tmp_path)
    assert answer.status == 0, answer.output
    for count, sizes in answer.said["found"].items():
        assert set(sizes.values()) == {int(count)}, (count, sizes)


def test_each_assumption_is_named(tmp_path: Path) -> None:
    answer = on_device(SIZES + "    assert torch.isfinite(torch.randn(9, device=device)).all()\n", tmp_path)
    rules = {value["call"]: value["count"] for value in answer.report["fidelity"]["values"]}
    for name in ("nonzero", "unique"):
        assert any(name in rule and count > 0 for rule, count in rules.items()), rules


EXPERTS = """
    import torch.nn.functional as F
    tokens, experts, chosen = 512, 8, 2
    x = torch.randn(tokens, 64, device=device, requires_grad=True)
    weights, ids = torch.randn(tokens, experts, device=device).softmax(-1).topk(chosen, -1)
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=experts).tolist()
    parts = x[order // chosen].split(counts)
    made = torch.cat([part * 2 for part in parts])
    torch.zeros_like(x).index_add_(0, order // chosen, made).sum().backward()
    ones = ids.new_zeros((tokens, experts)).scatter_(1, ids, 1).sum(0).tolist()
    hot = F.one_hot(flat, experts).sum(0).tolist()
    ends = torch.histc(flat.float(), bins=experts, min=0, max=experts - 1).cumsum(0).tolist()
    mask = x[:, 0] > 0
    low = torch.randint(3, 9, (1,), device=device).item()
    repeated = len(x.repeat_interleave(torch.randint(0, 5, (tokens,), device=device), dim=0))
    answer(counts=counts, ones=ones, hot=hot, ends=ends, kept=int(mask.sum()), drawn=low, repeated=repeated)
"""


@pytest.mark.parametrize(
    ("sizes", "counts", "ones", "kept", "drawn"),
    [
        ("upper", [1017, *[1] * 7], [512], 512, 8),
        ("lower", [128] * 8, [128], 0, 3),
    ],
)
def test_tokens_are_routed_to_experts_without_loss(
    sizes: str, counts: list[int], ones: list[int], kept: int, drawn: int, tmp_path: Path
) -> None:
    answer = on_device(
        EXPERTS, tmp_path, start=lambda *asked: through_memfit(*asked, options=("--sizes", sizes))
    )
    said = answer.said
    assert said["counts"] == counts == said["hot"], answer.output
    assert sum(said["ones"]) == 1024
    assert max(said["ones"]) <= 512
    assert said["ones"][0] == ones[0]
    assert said["ends"][-1] == 1024
    assert (said["kept"], said["repeated"]) == (kept, 512)
    assert said["drawn"] in (0, drawn)
    # Repeats have no bound: only with a stated policy for sizes is there a verdict.
    assert answer.report["verdict"] == ("unknown" if sizes == "upper" else "fits")
    assert any("no bound follows" in value["call"] for value in answer.report["fidelity"]["values"])


def test_a_verdict_that_depends_on_a_size_has_an_interval_of_peaks(tmp_path: Path) -> None:
    answer = on_device(
        """
        x = torch.randn(256, 1024, 1024, device=device)
        kept = x[x > 0]
        """,
        tmp_path,
        start=lambda *asked: through_memfit(*asked, options=("--memory", "3GiB")),
    )
    report = answer.report
    assert (answer.status, report["verdict"]) == (2, "unknown"), answer.output
    assert report["problem"]["kind"] == "size-read-back"
    lower, upper = report["peak_interval"]["lower"], report["peak_interval"]["upper"]
    assert (lower["out_of_memory"], upper["out_of_memory"]) == (False, True)
    assert lower["completed"]
    assert lower["device_upper"] <= report["device"]["capacity"]


@pytest.mark.parametrize(
    ("use", "verdict", "kind"),
    [
        ("print(f'{100 * right.item() / 400:.2f} %')", "fits", None),
        ("more = torch.empty(right.item(), 1024, device=device)", "unknown", "size-read-back"),
        # As large with all as with none.
        ("k = right.item(); more = torch.empty(min(3 * k, 400 - k), 1024, device=device)", "unknown", None),
    ],
)
def test_where_memory_is_tight_a_count_matters_only_if_it_becomes_a_size(
    use: str, verdict: str, kind: str | None, tmp_path: Path
) -> None:
    code = f"""
    held = torch.zeros(2300 << 20, dtype=torch.uint8, device=device)
    right = (torch.randn(400, 10, device=device).argmax(1) == 0).sum()
    {use}
    """
    start = functools.partial(through_memfit, options=("--memory", "3GiB"))
    answer = on_device(code, tmp_path, start=start)
    free = answer.report["headroom"] / answer.report["device"]["capacity"]
    assert 0 < free < 0.1
    assert answer.report["verdict"] == verdict, answer.output
    if kind is not None:
        assert answer.report["problem"]["kind"] == kind
    assert answer.output.count("running again, with other computed sizes") == 1


def test_generation_ends_where_the_policy_says(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    answer = on_device(
        """
        import transformers
        config = transformers.LlamaConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, vocab_size=1000,
        )
        model = transformers.LlamaForCausalLM(config).to(device).eval()
        ids = torch.randint(0, 1000, (2, 16), device=device)
        lengths = [
            model.generate(ids, max_new_tokens=20, eos_token_id=2, pad_token_id=0, **how).shape[1]
            for how in ({"do_sample": False}, {"do_sample": True, "top_p": 0.9})
        ]
        answer(lengths=lengths)
        """,
        tmp_path,
        start=lambda *asked: through_memfit(*asked, options=("--sizes", "0.5")),
    )
    assert answer.status == 0, answer.output
    # The first token is the minimum; then half of the remaining length.
    assert all(26 <= length <= 27 for length in answer.said["lengths"]), answer.said
    values = [value["call"] for value in answer.report["fidelity"]["values"]]
    assert any("generate" in value and "0.5 of the way from the lower" in value for value in values), values


def test_a_detector_trains_with_the_maximum_number_of_boxes(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    answer = on_device(
        """
        import torchvision
        net = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5)
        net = net.to(device).train()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        images = [torch.rand(3, 300, 400, device=device) for _ in range(2)]
        targets = [
            {
                "boxes": torch.tensor([[10.0, 10, 200, 200], [50, 60, 300, 280]], device=device),
                "labels": torch.tensor([1, 2], device=device),
            }
            for _ in images
        ]
        losses = net(images, targets)
        sum(losses.values()).backward()
        optimizer.step()
        assert all(torch.isfinite(loss) for loss in losses.values())
        with torch.no_grad():
            found = net.eval()(images)
        answer(boxes=[len(each["boxes"]) for each in found], labels=targets[0]["labels"].tolist())
        """,
        tmp_path,
    )
    assert answer.status == 0, answer.output
    assert answer.said == {"boxes": [100, 100], "labels": [1, 2]}


def test_a_gpu_without_kernels_in_this_pytorch_is_reported(tmp_path: Path) -> None:
    answer = on_device(
        """
        oldest = min(int(arch.removeprefix("sm_").rstrip("af")) for arch in torch.cuda.get_arch_list())
        try:
            torch.zeros(3, device=device) + 1
            said = None
        except RuntimeError as error:
            said = str(error)
        answer(oldest=oldest, said=said)
        """,
        tmp_path,
        gpu="gtx-1080-ti",
    )
    assert answer.status == 0, answer.output
    if answer.said["oldest"] > 61:
        assert "no kernel image is available for execution on the device" in answer.said["said"]
    else:
        assert answer.said["said"] is None


# A number decides how long memory is kept, not how much is allocated.
NUMBER = "number = torch.randint(0, 9, (300,), device=device).sort()[0].diff().max().item()\n"
KEPT = {
    # Freed memory stays reserved, so what follows adds to it.
    "reserved": (
        "first = torch.zeros(256 << 20, dtype=torch.uint8, device=device)\n"
        "del first\n"
        "if number == 0: torch.cuda.empty_cache()\n"
        "second = torch.zeros(512 << 20, dtype=torch.uint8, device=device)\n"
    ),
    # Memory stays allocated, and a larger number would keep more of it.
    "allocated": (
        "kept = []\n"
        "for _ in range(8):\n"
        "    kept.append(torch.zeros(16 << 20, dtype=torch.uint8, device=device))\n"
        "    if len(kept) > number: kept.pop()\n"
    ),
}


@pytest.mark.parametrize(("kept", "verdict"), [("reserved", "fits"), ("allocated", "unknown")])
def test_reserved_memory_that_depends_on_a_number_counts_in_the_upper_bound(
    kept: str, verdict: str, tmp_path: Path
) -> None:
    report = on_device(NUMBER + KEPT[kept], tmp_path, "t4").report
    assert report["verdict"] == verdict, report["problem"]
    if verdict == "fits":
        assert report["peak"]["device_upper"] - report["peak"]["device"] >= 256 * MIB, report["peak"]


COUNTED = """
    import math
    import numpy as np
    scores = torch.nn.Linear(16, 4, device=device)(torch.randn(400, 16, device=device))
    right = (scores.argmax(1) == torch.randint(0, 4, (400,), device=device)).sum()
    kept = []
    def keep(): kept.append(torch.zeros(20 << 30, dtype=torch.uint8, device=device))
    {}
"""
# Each runs out of memory on a real GPU, where some predictions are right. The upper bound is that all are.
FEW = {
    "a number": "if right.item() < 300: keep()",
    "a share": "if 100.0 * right.item() / 400 < 75: keep()",
    "a sum": "total = 0\n    for _ in range(2): total += right.item()\n    if total < 500: keep()",
    "an integer": "if int(right) < 300: keep()",
    "a converted number": "if float(right.item()) < 300.0: keep()",
    "on the card": "if right < 300: keep()",
    "on the host": "if right.cpu() < 300: keep()",
    "an array": "if np.mean([right.item(), 0]) < 150: keep()",
    "of math": "if math.sqrt(right.item()) < 17: keep()",
    "a histogram": "if int(torch.histc(scores, 4)[1]) > 9: keep()",
    "bins": "if (torch.bincount(scores.argmax(1), minlength=4) > 50).all(): keep()",
    "a list": "if min(torch.bincount(scores.argmax(1), minlength=4).tolist()) > 50: keep()",
    "a truth value": "if not right.item() - 400: pass\n    else: keep()",
}


@pytest.mark.parametrize(
    "use",
    first(
        FEW,
        besides=[
            "a number",
            "a share",
            "an integer",
            "a converted number",
            "on the card",
            "an array",
            "a histogram",
            "a list",
        ],
    ),
)
def test_a_count_decides_with_both_of_its_bounds(use: str, tmp_path: Path) -> None:
    report = on_device(COUNTED.format(FEW[use]), tmp_path, "t4").report
    assert report["verdict"] == "unknown", (report["problem"], report["fidelity"])
    assert report["problem"]["kind"] in ("number-read-back", "size-read-back")
    assert "script.py:" in report["problem"]["message"]


def test_a_count_that_is_printed_or_a_size_fits(tmp_path: Path) -> None:
    code = """
    correct = right.item()
    print(f"{correct} of {400}, {100.0 * correct / 400:.2f} %", correct, "%d" % correct, round(correct / 400, 3))
    assert isinstance(correct, int) and torch.zeros(correct, device=device).shape == (400,)
    parts = torch.tensor_split(scores, [correct])
    kept = scores[:correct], [0] * correct, scores.new_zeros((correct, 2)), list(range(correct))
    """
    answer = on_device(COUNTED.format(code.strip()), tmp_path, "t4")
    assert answer.report["verdict"] == "fits", answer.output


LABELS = """
    labels = torch.randint(0, 21, (8, 512, 512), dtype=torch.uint8)
    labels[0, 0, :21] = torch.arange(21)
    long = labels.long()
    few = torch.randint(3, 9, (300, 300))
    few[0, :6] = torch.arange(3, 9)
    there = {name: each.to(device) for name, each in (("bytes", labels), ("long", long), ("few", few))}
    there["cast"] = there["bytes"].long()
    there["narrowed"] = there["long"].int()
    there["part"] = there["long"][:, :100]
    there["of a part"] = there["long"][3]
    found = {name: len(torch.unique(each)) for name, each in there.items()}
    counts = torch.unique(there["cast"], return_counts=True)[1]
    found["counts"] = len(counts)
    found["greatest"] = there["cast"].max().item()
    # Rows, runs and sums may be more than the values.
    found["rows"] = len(torch.unique(there["bytes"].view(-1, 512), dim=0))
    found["runs"] = len(torch.unique_consecutive(there["long"]))
    there["cast"] *= 3
    found["changed"] = len(torch.unique(there["cast"]))
    answer(**found)
"""


def test_large_labels_have_no_more_values_than_their_range(tmp_path: Path) -> None:
    answer = on_device(LABELS, tmp_path)
    said = answer.said
    values = {
        name: said.pop(name) for name in ("bytes", "long", "cast", "narrowed", "part", "of a part", "counts")
    }
    assert set(values.values()) == {21}, (values, answer.output)
    assert (said.pop("few"), said.pop("greatest")) == (6, 20)
    assert said == {"rows": 8 * 512, "runs": 8 * 512 * 512, "changed": 8 * 512 * 512}
