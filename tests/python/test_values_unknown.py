"""Unknown values: results of uploads are computed for every operator, and the verdict never silently depends
on others.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest
from support import on_device, through_memfit
from tiers import rarely

pytest.importorskip("torch")

# Each on the same six numbers, here and on the device.
COMPUTED = """
    import torch.nn.functional as F
    numbers = torch.tensor([5, 2, 9, 3, 3, 7])
    def changed(x):
        y = x.clone()
        y[0:2] = 100
        return y.sum()
    expressions = {
        "cummax": lambda x: x.cummax(0)[0][-1],
        "cummin": lambda x: torch.cummin(x, 0).values[2],
        "bucketize": lambda x: torch.bucketize(x, torch.tensor([2, 4, 8], device=x.device)).sum(),
        "kthvalue": lambda x: x.kthvalue(3)[0],
        "unique": lambda x: len(x.unique()),
        "unique with counts": lambda x: x.unique(return_counts=True)[1].max(),
        "unique_consecutive": lambda x: x.unique_consecutive().numel(),
        "roll": lambda x: x.roll(1)[0],
        "and, or, xor": lambda x: (x & 6).sum() + (x | 8).sum() + (x ^ 3)[2],
        "not": lambda x: (~x).abs().sum(),
        "shifts": lambda x: (x << 1).sum() + (x >> 1).max(),
        "scatter_reduce": lambda x: x.new_zeros(3).scatter_reduce(0, x % 3, x, "amax").sum(),
        "searchsorted": lambda x: torch.searchsorted(x.sort()[0], torch.tensor([4], device=x.device))[0],
        "flip": lambda x: x.flip(0)[0],
        "triangles": lambda x: x.view(2, 3).tril().sum() + x.view(2, 3).triu(1).sum(),
        "halves": lambda x: (x.float() / 2).ceil().long().sum(),
        "roots": lambda x: x.float().sqrt().round().long().sum(),
        "sixteen bits": lambda x: x.half().long().sum(),
        "prod": lambda x: x[:3].prod(),
        "diff": lambda x: x.diff().abs().max(),
        "median, mode": lambda x: x.median() + x.mode()[0],
        "topk": lambda x: x.topk(2)[0].sum(),
        "nonzero": lambda x: (x > 3).nonzero().sum() + torch.where(x > 3)[0][-1],
        "mask": lambda x: x[x > 3].sum(),
        "cumprod": lambda x: x.cumprod(0)[3],
        "outer": lambda x: torch.outer(x, x).max(),
        "index_add": lambda x: x.new_zeros(9).index_add(0, x % 9, x).max(),
        "lcm": lambda x: torch.lcm(x, x + 1).max(),
        "one_hot": lambda x: F.one_hot(x).sum(0).max(),
        "changed": changed,
        "masked_scatter": lambda x: x.masked_scatter(x > 4, x).sum(),
        "repeat_interleave": lambda x: x.repeat_interleave(x).numel(),
        "repeated rows": lambda x: len(x.view(2, 3).repeat_interleave(x[:2], dim=0)),
    }
    wrong = {}
    for name, expression in expressions.items():
        here, there = int(expression(numbers)), int(expression(numbers.to(device)))
        if here != there:
            wrong[name] = [here, there]
    lengths = torch.tensor([4096] * 64).to(device)
    repeated = len(torch.repeat_interleave(torch.randn(64, 2, device=device), lengths, dim=0))
    answer(wrong=wrong, total=int(torch.cumsum(lengths, 0)[-1]), repeated=repeated)
"""


def test_every_operator_computes_from_uploaded_values(tmp_path: Path) -> None:
    answer = on_device(COMPUTED, tmp_path)
    assert answer.status == 0, answer.output
    assert answer.said == {"wrong": {}, "total": 262_144, "repeated": 262_144}
    assert answer.report["fidelity"]["values"] == []


def test_a_size_summed_from_uploaded_values_runs_out_of_memory_as_on_a_real_gpu(tmp_path: Path) -> None:
    answer = on_device(
        """
        lengths = torch.tensor([4096] * 64).to("cuda")
        torch.zeros(int(torch.cumsum(lengths, 0)[-1]), 32768, device="cuda")
        """,
        tmp_path,
        gpu="t4",
    )
    assert answer.report["verdict"] == "oom", answer.output
    assert "32.00 GiB" in answer.report["oom"]["message"]


MASKS = """
    x = torch.randn(50_000, device=device)
    truths = [(x >= 0).all(), (x >= 0).any(), x.isfinite().all(), ~(~x.isfinite()).any(), ~x.isnan().any()]
    truths += [~x.isnan().all(), ~x[0].isnan(), x[0].isfinite()]
    assert all(map(bool, truths))
    m = x > 0
    counts = [len(x[~(x >= 0)]), len(x[x.isnan()]), len(x[m]), len(x[~m]), int(m.sum()), int((~m).sum())]
    # The one that is asked first has the bound.
    other = x > 1
    answer(counts=counts, other=[int((~other).sum()), len(x[other])])
"""


@pytest.mark.parametrize(
    ("sizes", "counts", "other"),
    [
        ("upper", [50_000, 50_000, 50_000, 0, 50_000, 0], [50_000, 0]),
        ("lower", [0, 0, 0, 50_000, 0, 50_000], [0, 50_000]),
        ("0.25", [12_500, 12_500, 12_500, 37_500, 12_500, 37_500], [12_500, 37_500]),
    ],
)
def test_a_mask_of_unknown_numbers_has_a_bound_and_its_complement_the_rest(
    sizes: str, counts: list[int], other: list[int], tmp_path: Path
) -> None:
    answer = on_device(MASKS, tmp_path, start=partial(through_memfit, options=("--sizes", sizes)))
    assert answer.status == 0, answer.output
    assert answer.said == {"counts": counts, "other": other}


UNKNOWN = """
    ids = torch.randint(0, 9, (5000,), device=device) * 3
    number = int(torch.kthvalue(ids, 7)[0])
    loss = torch.randn(8, device=device).mean().item()
"""


@pytest.mark.parametrize(
    ("use", "verdict", "problem", "said"),
    [
        ("print(number, loss)", "fits", None, ""),
        ("torch.zeros(number, 1000, device=device)", "unknown", "number-read-back", "script.py:"),
        ("print(1 // number)", "error", "exception-after-change", "taken as 0 (at "),
        ("for _ in range(number + 2): torch.zeros(99, 1000, device=device)", "fits", None, ""),
        (
            "kept = [torch.zeros(99, 1000, device=device) for _ in range(number + 2)]",
            "unknown",
            "number-read-back",
            "script.py:",
        ),
    ],
    ids=["printed", "a size", "an index", "how often", "how many are kept"],
)
def test_an_unknown_integer_counts_where_anything_depends_on_it(
    use: str, verdict: str, problem: str | None, said: str, tmp_path: Path
) -> None:
    answer = on_device(UNKNOWN + f"    {use}\n", tmp_path)
    report = answer.report
    assert report["verdict"] == verdict, answer.output
    assert (report["problem"] or {}).get("kind") == problem
    assert said in (report["problem"] or {}).get("message", "")
    effects = {effect["id"]: effect["bytes"] for effect in report["fidelity"]["effects"]}
    assert effects["number"] == (0 if verdict == "fits" else None)


def test_every_operator_is_right_or_said_to_be_unknown(tmp_path: Path) -> None:
    script, said = Path(__file__).parent / "operator_sizes.py", tmp_path / "answer.json"
    status, output, _ = through_memfit(
        "a100", [sys.executable, str(script)], {"MEMFIT_TEST_ANSWER": str(said)}, ("--sizes", "1")
    )
    assert status == 0, output
    answer = json.loads(said.read_text())
    assert answer["silent"] == []
    count = int(os.environ.get("MEMFIT_EXPRESSIONS", "300"))
    # Most random expressions are computed here as well; few are refused on a GPU.
    assert answer["outcomes"]["equal"] > count * 0.6, answer
    assert answer["outcomes"]["refused"] < count * 0.1, answer


def test_a_loop_over_unknown_groups_is_no_longer_than_it_must_be(tmp_path: Path) -> None:
    answer = on_device(
        """
        groups = torch.randint(0, 9, (30_000,), device=device).kthvalue(1, keepdim=True)[0] + torch.randint(
            0, 9, (30_000,), device=device
        )
        found = groups.unique()
        rounds = sum(1 for _ in found)
        known = sum(1 for _ in torch.arange(100).to(device).unique())
        answer(found=len(found), rounds=rounds, known=known)
        """,
        tmp_path,
    )
    assert answer.status == 0, answer.output
    assert answer.said == {"found": 30_000, "rounds": 8, "known": 100}
    assert any("first 8 iterations" in value["call"] for value in answer.report["fidelity"]["values"])


EVERYWHERE = """
    numbers, found = torch.tensor([3, 1, 2]).to(device), {}

    @torch.jit.script
    def scripted(x: torch.Tensor):
        return torch.sort(x)[0].cumsum(0)

    class Own(torch.Tensor):
        pass

    def in_a_thread():
        found["thread"] = torch.tensor([1, 5, 2]).to(device).cummax(0)[0].tolist()

    found["script"] = scripted(numbers).tolist()
    found["trace"] = torch.jit.trace(lambda x: x.cumsum(0) * 2, (numbers,))(numbers).tolist()
    found["vmap"] = torch.vmap(lambda x: x.cumsum(0))(numbers.view(3, 1)).tolist()
    found["symbols"] = torch.fx.symbolic_trace(lambda x: torch.cumsum(x, 0))(numbers).tolist()
    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    with torch.cuda.stream(torch.cuda.Stream()):
        found["stream"] = numbers.cumsum(0).tolist()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = numbers.cumsum(0)
    graph.replay()
    found["graph"] = made.tolist()
    state = torch.get_rng_state()
    numbers.roll(1).bernoulli(0.5)
    weight = torch.ones(3, requires_grad=True)
    weight.to(device).cumsum(0).flip(0).sum().backward()

    # A compiler sees PyTorch's own functions, and one graph.
    optimizer = torch.optim.SGD([weight], lr=0.1)
    graphs = []

    def backend(module, inputs):
        graphs.append([str(node.target) for node in module.graph.nodes])
        return module

    torch.compile(lambda x: torch.sort(x.cumsum(0) + torch.cumsum(x, 0))[0].roll(1), backend=backend)(numbers)
    answer(
        found=found, own=type(numbers.as_subclass(Own).cumsum(0)).__name__, graphs=graphs,
        random=bool(torch.equal(state, torch.get_rng_state())), gradient=list(weight.grad.shape),
        builtin=type(torch.cumsum).__name__,
    )
"""


def test_operators_are_followed_in_whatever_way_they_are_called(tmp_path: Path) -> None:
    answer = on_device(EVERYWHERE, tmp_path, start=partial(through_memfit, options=("--sizes", "1")))
    assert answer.status == 0, answer.output
    said = answer.said
    assert said["found"] == {
        "script": [1, 3, 6],
        "trace": [6, 8, 12],
        "vmap": [[3], [1], [2]],
        "symbols": [3, 4, 6],
        "thread": [1, 5, 5],
        "stream": [3, 4, 6],
        "graph": [3, 4, 6],
    }
    assert (said["own"], said["random"], said["gradient"]) == ("Own", True, [3])
    assert (len(said["graphs"]), said["builtin"]) == (1, "builtin_function_or_method")
    assert any("cumsum of type object" in target for target in said["graphs"][0])


# An integer that the device cannot know, at most 9.
DIFFERENCE = "torch.randint(0, 9, (300,), device=device).sort()[0].diff().max()"


@pytest.mark.parametrize(
    ("use", "verdict"),
    [
        # Eight elements need as many bytes as one: the allocator rounds to 512.
        ("torch.zeros(int(NUMBER) + 1, device=device)", "unknown"),
        rarely("torch.zeros(int(NUMBER) + 1, dtype=torch.bool, device=device)", "unknown"),
        ("torch.zeros(len(range(int(NUMBER.float()) + 1)), device=device)", "unknown"),
        # Only a small number is in the range of a list.
        (
            "names = 'a b c d e f g h i j'.split(); print(names[int(NUMBER)]); torch.zeros(9, device=device)",
            "fits",
        ),
        # No number changes what is allocated.
        ("print(int(NUMBER)); torch.zeros(9, device=device)", "fits"),
    ],
)
def test_a_verdict_is_unknown_where_an_unknown_integer_is_a_size(
    use: str, verdict: str, tmp_path: Path
) -> None:
    answer = on_device(use.replace("NUMBER", DIFFERENCE), tmp_path)
    assert answer.report["verdict"] == verdict, answer.output
    assert answer.report["fidelity"]["values"], "the integer is assumed"


@pytest.mark.parametrize(
    ("condition", "branch", "verdict"),
    [
        # The other branch needs more memory than there is.
        ("noise.mean().abs() < 10", "kept = torch.zeros(9 << 30, device=device)", "unknown"),
        rarely("not (noise > -100).all()", "kept = torch.zeros(9 << 30, device=device)", "unknown"),
        ("(noise > 5).any()", "kept = torch.zeros(9 << 30, device=device)", "unknown"),
        rarely("(noise > 5).any().item()", "kept = torch.zeros(9 << 30, device=device)", "unknown"),
        rarely("noise.std().item() > 100", "kept = torch.zeros(9 << 30, device=device)", "unknown"),
        ("not torch.allclose(noise, noise + 1)", "kept = torch.zeros(9 << 30, device=device)", "unknown"),
        # It needs more than the first, and fits, too.
        ("noise.std().item() > 100", "kept = torch.zeros(9 << 20, device=device)", "fits"),
        # It needs more, and how much more is not seen.
        (
            "noise.std().item() > 100",
            "kept = torch.zeros(9 << 20, device=device); raise SystemExit(3)",
            "unknown",
        ),
        # It does not, or ends the script.
        ("noise.mean() > 0", "print('above')", "fits"),
        rarely("noise.mean().item() > 100", "raise SystemExit(3)", "fits"),
        ("torch.isnan(noise).any()", "raise RuntimeError('not a number')", "fits"),
        rarely("not noise.mean() > 100", "kept = None", "fits"),
    ],
)
def test_a_branch_on_unknown_values_is_taken_both_ways(
    condition: str, branch: str, verdict: str, tmp_path: Path
) -> None:
    code = f"""
    kept = torch.zeros(1 << 20, device=device)
    noise = torch.randn(300, device=device)
    if {condition}:
        {branch}
    torch.zeros(9, device=device)
    """
    answer = on_device(code, tmp_path)
    assert answer.report["verdict"] == verdict, answer.output
    if verdict == "unknown":
        assert "script.py:" in answer.report["problem"]["message"], "the line decides"


@pytest.mark.parametrize(
    "branches",
    [
        # The run with all conditions inverted ends at the first, ...
        """
        if noise.mean() > 1e4:
            raise RuntimeError("diverged")
        if noise.std() > 5:
            NEEDS
        """,
        # ... takes the first of several branches, ...
        """
        if noise.mean() > 1e4:
            kept = None
        elif noise.std() > 5:
            NEEDS
        """,
        # ... or not the `else` of a nested one.
        """
        if noise.mean() > 1e4:
            if noise.std() > 5:
                kept = None
            else:
                NEEDS
        """,
    ],
    ids=["after a guard", "second of two", "else of a nested one"],
)
def test_branches_that_exclude_each_other_are_all_taken(branches: str, tmp_path: Path) -> None:
    code = f"""
    kept = torch.zeros(1 << 20, device=device)
    noise = torch.randn(300, device=device)
    {textwrap.indent(textwrap.dedent(branches), "    ").strip()}
    torch.zeros(9, device=device)
    """
    needs = "kept = torch.zeros(9 << 30, device=device)"
    answer = on_device(code.replace("NEEDS", needs), tmp_path)
    assert answer.report["verdict"] == "unknown", answer.output


def test_the_upper_bound_includes_the_other_branch(tmp_path: Path) -> None:
    code = """
    model = torch.nn.Linear(4096, 4096, device=device)
    best, copy = 0.0, None
    for _ in range(3):
        loss = model(torch.randn(8, 4096, device=device)).square().mean()
        if loss < best:
            copy = {name: value.clone() for name, value in model.state_dict().items()}
    """
    answer = on_device(code, tmp_path)
    report = answer.report
    assert report["verdict"] == "fits", answer.output
    condition = next(effect for effect in report["fidelity"]["effects"] if effect["id"] == "condition")
    assert condition["bytes"] >= 64 << 20, "a copy of the weights"
    assert report["peak"]["device_upper"] >= report["peak"]["device"] + condition["bytes"]


def test_a_loop_that_waits_for_an_unknown_condition_ends_in_both_runs(tmp_path: Path) -> None:
    code = """
    x = torch.randn(300, device=device)
    while x.abs().mean() > 1e-3:
        x = x / 2
    while not (x < 1).all():
        x = x / 2
    """
    answer = on_device(code, tmp_path)
    assert answer.report["verdict"] == "fits", answer.output
