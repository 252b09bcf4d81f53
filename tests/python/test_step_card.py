"""`memfit.Step` on a virtual card, where the first batch starts with small parts and no value is computed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import memfit
from runs import invoke
from support import on_device, through_memfit

LOOPS = """
import copy, sys, warnings
sys.path.insert(0, TESTS)
import memfit, torch
from test_step_equivalence import ALL, SIZES, total
from torch.utils._pytree import tree_map_only

warnings.simplefilter("ignore")
ran, failed = [], {}
for name, loop in ALL.items():
    generator = torch.Generator().manual_seed(3)
    try:
        model = loop.build().double().cuda()
        data = [loop.data(generator, size) for size in SIZES]
        data = tree_map_only(torch.Tensor, torch.Tensor.cuda, data)
        plain = copy.deepcopy(model)
        loss = loop.loss(plain)
        for batch in data:
            total(loss(plain, copy.deepcopy(batch))).backward()
    except (RuntimeError, ValueError):
        continue  # Its tensors have to be on the host.
    ran.append(name)
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        step = memfit.Step(model, optimizer, loop.loss(model), allow="changes-training", **loop.settings)
        for batch in data:
            step(batch)
    except Exception as error:
        failed[name] = repr(error)
answer(ran=ran, failed=failed)
"""
"""Trains those loops of `test_step_equivalence.py` that run on a card."""

TRAINING = """
import memfit, torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)).cuda()
sizes = []

def loss(model, batch):
    sizes.append(len(batch[0]))
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

def train(samples, **settings):
    sizes.clear()
    optimizer = torch.optim.AdamW(model.parameters())
    step = memfit.Step(model, optimizer, loss, allow="changes-training", **settings)
    step((torch.randn(samples, 32).cuda(), torch.randint(0, 10, (samples,)).cuda()))
    return list(sizes)
"""
"""Trains one step, and returns the sizes of its micro-batches."""


def test_no_micro_batch_of_the_first_step_has_a_single_sample(tmp_path: Path) -> None:
    counts = list(range(2, 20))
    found = on_device(f"{TRAINING}\nanswer(found=[train(samples) for samples in {counts}])", tmp_path).said
    assert [sum(sizes) for sizes in found["found"]] == counts
    assert all(size > 1 for sizes in found["found"] for size in sizes), found


def test_an_error_that_the_division_may_have_caused_is_not_blamed_on_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{TRAINING}\ntrain(8, micro_batch=1)\n")
    told = invoke(["run", "--gpu", "t4", "--", "python", str(script)], tmp_path)
    text = " ".join(told.stdout.split())
    assert "memfit may have caused this failure" in text, told.stdout
    assert "`memfit.Step` ran a part of a batch by itself (samples 0 to 1 of 8)" in text


def test_loops_of_many_kinds_train_and_memfit_reads_no_value_of_them(tmp_path: Path) -> None:
    code = f"TESTS = {str(Path(__file__).parent)!r}\n{LOOPS}"
    # One run, with the values as they are assumed first.
    found = on_device(code, tmp_path, start=partial(through_memfit, options=("--sizes", "1")))
    assert found.said["failed"] == {}
    assert len(found.said["ran"]) > 80
    lines = [line for value in found.report["fidelity"]["values"] for line in value["lines"]]
    package = str(Path(memfit.__file__).parent)
    assert lines, "the losses themselves read some"
    own = [line for line in lines if line.startswith(package)]
    # A loss whose own backward pass reads a value has no other line.
    assert all(line.endswith("._backward") for line in own), own


ROOMY = """
import memfit, torch
from torch import nn

model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.ReLU()))).cuda()
optimizer = torch.optim.SGD(model.parameters())
# A live block keeps a segment of 400 MiB from being freed, as parameters do after a comparison in float64.
large = torch.empty(400 << 20, dtype=torch.uint8, device="cuda")
del large
kept = torch.empty(12 << 20, dtype=torch.uint8, device="cuda")
torch.cuda.empty_cache()
torch.cuda.set_per_process_memory_fraction(LIMIT / torch.cuda.mem_get_info()[1])
sizes = []

def loss(model, batch):
    sizes.append(len(batch))
    return model(batch).square().mean()

step = memfit.Step(model, optimizer, loss, allow="changes-training")
for _ in range(3):
    step(torch.randn(64 * 256, 2048, device="cuda").view(64, 256, 2048))
answer(sizes=sizes, ooms=torch.cuda.memory_stats()["num_ooms"])
"""
"""Trains with a memory limit, while a segment that cannot be freed has room for a small micro-batch."""


def test_memory_that_cannot_be_freed_does_not_hide_what_a_sample_needs(tmp_path: Path) -> None:
    """One sample fits into that segment: what it needs must not seem to be nothing."""
    found = on_device(ROOMY.replace("LIMIT", str(1400 << 20)), tmp_path).said
    assert found["ooms"] == 0, found
    # The first step needs a few sizes to learn; later ones do with as few parts as fit.
    assert len(found["sizes"]) < 20, found
    assert found["sizes"][-1] > 2, found


SPOKEN = """
import memfit, torch
from memfit._train.comparing import Comparing, Draws
from torch.nn import functional

torch.manual_seed(0)
scores = torch.randn(7, 4, 5, device="cuda", requires_grad=True)
targets = torch.ones(4, 3, dtype=torch.long, device="cuda")
lengths = torch.full((4,), 7), torch.full((4,), 3)
found = {}
for name, function in {"functional": functional.ctc_loss, "torch": torch.ctc_loss}.items():
    with Comparing(Draws(4), None, False):
        function(scores.log_softmax(2), targets, *lengths).mean().backward()
    found[name] = list(scores.grad.shape)
criterion = torch.nn.CTCLoss()
with Comparing(Draws(4), None, False):
    criterion(scores.log_softmax(2), targets, input_lengths=lengths[0], target_lengths=lengths[1])
answer(found=found)
"""


def test_lengths_of_ctc_may_be_on_the_host_while_batches_are_compared(tmp_path: Path) -> None:
    """A real GPU showed it: beside a dispatch mode PyTorch refuses lengths that it otherwise wants there."""
    found = on_device(SPOKEN, tmp_path)
    assert found.said.get("found") == {"functional": [7, 4, 5], "torch": [7, 4, 5]}, found.output
