"""Unknown floating-point values: printing one has no effect, and if something depends on one, the verdict is
unknown. A script that reads no sizes is not reported to.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from runs import invoke
from support import on_device
from tiers import rarely

pytest.importorskip("torch")

READ = """
    import math
    loss = torch.randn(8, device=device).cumsum(0).mean()
    {}
"""


PRINTED = """
    import copy, csv, json, logging, math, pickle
    loss = torch.randn(8, device=device).cumsum(0).mean()
    number, total = loss.item(), 0.0
    print(f"{number:.3f}", number, "%.2f" % number, round(number, 3), [f"{x:.1f}" for x in loss.view(1).tolist()])
    print(json.dumps({"loss": number}, indent=2), json.dumps([number]), copy.deepcopy({"loss": number}))
    total += number * 4
    print(total / 4, sum([number, 1.0]) / 2, -number, 2 ** number, divmod(number, 2))
    assert math.isfinite(number) and number == number and number != math.inf and isinstance(number, float)
    with open("told", "wb") as file:
        pickle.dump({"loss": number}, file)
    with open("told", "a") as file:
        file.write(json.dumps({"loss": number, "perplexity": math.exp(number)}) + "\\n")
        json.dump([number], file)
        csv.writer(file).writerow([number, str(number)])
    told = "loss %.3f" % number
    told += ", {:.2f}".format(number)
    print(told if number is not None else "")
    logging.getLogger("train").warning("loss %s, %.2f", number, number)
    class Meter:
        def __init__(self, value):
            self.value, self.form = value, "{name} {value:.3f}"
        def __str__(self):
            return self.form.format(name="loss", **self.__dict__)
    entries = ["epoch 1"] + [str(meter) for meter in [Meter(number)]]
    entries += [f"{Meter(number)}"]
    print("\\t".join(entries), Meter(number))
    def summary(value):
        text = f"loss {value:.2f}"
        return text.ljust(20)
    print(summary(number))
    torch.save({"loss": number}, f"loss-{number:.3f}.pt")
    assert torch.tensor([1.0, 2.0]).sum() == 3 and math.exp(1) > 2
    print(math.exp(number), math.fsum([number, 1.0]), math.hypot(number, 3.0), f"{math.log(number + 1):.2f}")
"""


def test_a_number_that_is_printed_costs_no_second_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = on_device(PRINTED, tmp_path)
    assert answer.report["verdict"] == "fits", answer.output
    effects = {effect["id"] for effect in answer.report["fidelity"]["effects"]}
    assert "value" in effects
    assert "number" not in effects
    assert "running again" not in answer.output


SAVED = """
    import io
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(3):
        model(torch.randn(4, 8, device=device)).sum().backward()
        optimizer.step()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
        kept = io.BytesIO()
        torch.save(model, kept)
"""


def test_what_is_saved_costs_no_second_run(tmp_path: Path) -> None:
    answer = on_device(SAVED, tmp_path)
    assert answer.report["verdict"] == "fits", answer.output
    assert "running again" not in answer.output
    assert "number" not in {effect["id"] for effect in answer.report["fidelity"]["effects"]}


RATIOS = """
    from math import log10
    import sys
    error = torch.randn(8, device=device).square().mean()
    number, known = error.item(), torch.zeros((), device=device)
    print("PSNR: %.2f" % (10 * log10(1 / number)), 1 // number, 5 % number, number ** -1, divmod(3, number))
    failed = []
    for use in (lambda: number / 0, lambda: log10(0), lambda: log10(known), lambda: 1 / known.item()):
        try:
            use()
        except (ValueError, ZeroDivisionError) as raised:
            failed.append(type(raised).__name__)
    answer(failed=failed)
"""


def test_an_unknown_divisor_is_not_zero(tmp_path: Path) -> None:
    answer = on_device(RATIOS, tmp_path)
    assert answer.report["verdict"] == "fits", answer.output
    errors = ["ZeroDivisionError", "ValueError", "ValueError", "ZeroDivisionError"]
    assert answer.said == {"failed": errors}, answer.output


@pytest.mark.parametrize(
    ("use", "verdict"),
    [
        ("torch.zeros(int(loss.item() * 1000) + 1, 1000, device=device)", "unknown"),
        rarely("torch.zeros(math.ceil(loss.item()) + 1, 1000000, device=device)", "unknown"),
        ("torch.zeros(round(sum(loss.view(1).tolist()) / 2) + 1, 1000000, device=device)", "unknown"),
        rarely("torch.zeros(int(loss.half()) + 1, 1000000, device=device)", "unknown"),
        rarely("torch.zeros(int(float(loss) * 1000) + 1, 1000, device=device)", "unknown"),
        rarely("torch.zeros(int(loss.cpu().numpy() * 1000) + 1, 1000, device=device)", "unknown"),
        ("x = torch.zeros(9, 1000000, device=device) if loss.item() > 3 else None", "more"),
        rarely("x = torch.zeros(9, 1000000, device=device) if math.exp(loss.item()) > 3 else None", "more"),
        rarely(
            "x = torch.zeros(9, 1000000, device=device) if math.fsum(x for x in [loss.item()]) > 3 else None",
            "more",
        ),
        (
            "x = torch.zeros(9, 1000000, device=device) if torch.tensor([loss.item()]).mean() > 3 else None",
            "unknown",
        ),
        rarely("x = torch.zeros(int(math.frexp(loss.item())[1]) + 1, 1000000, device=device)", "unknown"),
        rarely(
            "x = [] if math.isclose(loss.item(), 0.0) else torch.zeros(9, 1000000, device=device)", "more"
        ),
        rarely("torch.zeros(int(math.log2(loss.item() * 1000 + 1)) + 1, 1000000, device=device)", "unknown"),
        ("print(10 * math.log10(loss.max() ** 2 / loss), math.log10(1 / loss))", "fits"),
        ("best = min(9.0, loss.item()); history = [loss.cpu()]; print(best, float(loss), history)", "fits"),
    ],
)
def test_a_number_counts_where_something_depends_on_it(use: str, verdict: str, tmp_path: Path) -> None:
    answer = on_device(READ.format(use), tmp_path)
    report = answer.report
    assert report["verdict"] == ("fits" if verdict == "more" else verdict), answer.output
    assert "running again" in answer.output
    if verdict == "unknown":
        assert report["problem"]["kind"] == "number-read-back"
        assert "script.py:" in report["problem"]["message"]
    else:
        # A comparison decides what is allocated, not how much.
        more = 36 << 20 if verdict == "more" else 0
        found = [each["bytes"] for each in report["fidelity"]["effects"] if each["id"] == "number"]
        assert found == [more]


GPT = """
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).view(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.second(x))

words, width, length, batch_size = 8000, 128, 256, 16
model = nn.Sequential(nn.Embedding(words, width), *(Block(width) for _ in range(4)), nn.Linear(width, words))
model.cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda", enabled={reads})
for _ in range(6):
    x = torch.randint(words, (batch_size, length), device="cuda")
    y = torch.randint(words, (batch_size, length), device="cuda")
    with torch.autocast("cuda", torch.float16, enabled={reads}):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    if {reads}:
        scaler.unscale_(optimizer)
        print(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item(), loss.item())
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize("reads", [False, True])
def test_a_script_that_reads_no_sizes_is_not_said_to(reads: bool, tmp_path: Path) -> None:
    script = tmp_path / "gpt.py"
    script.write_text(GPT.format(reads=reads))
    command = ["--", sys.executable, str(script)]
    report = invoke(["run", "--gpu", "t4", "--format", "json", *command]).report
    assert report["verdict"] == "fits", report["problem"]
    said = [value["call"] for value in report["fidelity"]["values"]]
    assert said == (
        ["a value that only a GPU can compute, read by the script and taken as 0"] if reads else []
    )
    # So little is left that what was read would matter.
    tight = f"{int(report['peak']['device_upper'] * 1.05)}B"
    planned = invoke(["plan", "--gpu", "t4", "--memory", tight, "--format", "json", *command])
    assert planned.status == 0, planned.stderr
    assert "only a GPU can compute" not in planned.stdout
    assert "is not counted as fitting" not in planned.stdout


DEPENDS = """
import torch
from torch import nn
model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    loss = model(torch.randn(512, 512, device="cuda")).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    number = loss.item()
    {}
"""


@pytest.mark.parametrize(
    ("use", "verdict", "status"),
    [
        ("print('best' if number < 9 else 'worse')", "fits-as-is", 0),
        ("torch.zeros(int(number * 1000) + 1, 1000, device='cuda')", None, 2),
    ],
)
def test_a_plan_that_depends_on_such_a_number_is_not_said_to_fit(
    use: str, verdict: str | None, status: int, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(DEPENDS.format(use))
    plan = tmp_path / "plan.toml"
    words = ["plan", "--gpu", "t4", "--format", "json", "-o", str(plan), "--", sys.executable, str(script)]
    answer = invoke(words)
    report = json.loads(answer.stdout)
    assert (answer.status, report["verdict"]) == (status, verdict)
    assert not plan.exists(), "none is needed, or none is known"
    if verdict is None:
        assert report["problem"]["kind"] == "number-read-back"
        assert "script.py:12" in report["problem"]["message"]


WAITING = """
import torch
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.randn(512, 512, device="cuda")).pow(2).mean().backward()
    optimizer.step()
    loss, kept = model.weight.norm(), []
    while True:
        kept.append(torch.zeros(1 << 30, dtype=torch.uint8, device="cuda"))
        if {}: break
"""


@pytest.mark.parametrize(
    ("ends", "known"), [("loss.item() > 9", False), rarely("loss.item() < 0 and len(kept) == 99", True)]
)
def test_no_verb_says_that_memory_is_lacking_where_a_value_may_end_a_loop(
    ends: str, known: bool, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(WAITING.format(ends))
    command = ["--format", "json", "--", sys.executable, str(script)]
    planned = invoke(["plan", "--gpu", "t4", *command])
    report = json.loads(planned.stdout)
    assert (planned.status, report["verdict"]) == ((1, "does-not-fit") if known else (2, None)), report
    if not known:
        assert report["problem"]["kind"] == "number-read-back"
    compared = json.loads(invoke(["cards", "--gpu", "t4", "--gpu", "l4", *command]).stdout)
    verdicts = {row["verdict"] for row in compared["rows"]}
    assert verdicts == ({"does-not-fit"} if known else {"unknown"}), compared["rows"]


FULL = """
import torch
loss = torch.randn(8, device="cuda").cumsum(0).mean()
parts = [torch.zeros(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(12)]
{}
"""


@pytest.mark.parametrize(
    ("use", "proven"),
    [("print(loss.item())", True), ("torch.zeros(int(loss.item() * 1000) + 1, 1000, device='cuda')", False)],
)
def test_a_remedy_that_depends_on_such_a_number_is_not_proven(use: str, proven: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FULL.format(use))
    words = ["run", "--gpu", "t4", "--memory", "700MiB", "--steps", "0", "--format", "json"]
    report = invoke([*words, "--", sys.executable, str(script)]).report
    assert report["verdict"] == "oom"
    (card,) = [fix for fix in report["fixes"] if fix["lever"] == "larger-gpu"]
    assert card["proof"]["verdict"] == ("fits" if proven else "unknown")
    assert (card["evidence"] == "run", card["enough"]) == (proven, True if proven else None)


REPEATED = """
import torch
from torch import nn
model = nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    loss = model(torch.randn(512, 512, device="cuda")).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    kept, norm = [], loss.detach()
    {}
"""


@pytest.mark.parametrize(
    ("use", "verdict", "mebibytes"),
    [
        # Each iteration keeps 8 MiB, and nothing shows how many there are.
        ("while norm > 1e-3:\n        kept.append(torch.zeros(2 << 20, device='cuda'))", "unknown", None),
        # Forty of them at most.
        rarely(
            "for _ in range(40):\n        if norm > 1e-3:\n"
            "            kept.append(torch.zeros(2 << 20, device='cuda'))",
            "fits",
            320,
        ),
    ],
)
def test_a_condition_that_is_met_again_and_again(
    use: str, verdict: str, mebibytes: int | None, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(REPEATED.format(use))
    report = invoke(
        ["run", "--gpu", "a100-80gb", "--format", "json", "--", sys.executable, str(script)]
    ).report
    assert report["verdict"] == verdict, (report["problem"], report["fidelity"])
    if mebibytes is None:
        assert report["problem"]["kind"] == "number-read-back"
    else:
        assert report["peak"]["device_upper"] - report["peak"]["device"] >= (mebibytes - 20) << 20
