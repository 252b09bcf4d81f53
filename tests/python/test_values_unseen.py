"""Values that only a GPU can compute, used where no call asks for them: no verdict depends on them in
silence.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import on_device
from tiers import first

pytest.importorskip("torch")

# `many` takes more than the GPU has. On a real one, the loss is near 2, and the others are between -1 and 1.
MADE = """
    import io, json, math, pickle
    import numpy as np
    layer = torch.nn.Linear(64, 64).to(device)
    computed = lambda rows: layer(torch.randn(rows, 64).to(device)).mean(1).detach()
    loss, few, lots = 2 + computed(9).square().mean(), computed(100), computed(60000)
    kept = []
    def many():
        kept.append(torch.zeros(20 << 30, dtype=torch.uint8, device=device))
    def large():
        return torch.zeros(1 << 30, dtype=torch.uint8, device=device)
    number = loss.item()
    {}
"""
DECIDED = {
    "a range": "if 1 < number < 4: many()",
    "a text": "if float(f'{number:.3f}') > 1: many()",
    "another text": "if float(str(number)) > 1: many()",
    "a text of an integer": "if int(format(number, '.0f')) > 1: many()",
    "a range of a plain number": "if 1 < float(loss) < 4: many()",
    "a range of an array": "if 1 < loss.cpu().numpy() < 4: many()",
    "a part of a range": "if number > 100: pass\nelif number > 1: many()",
    "the best so far, in numpy": "best = np.inf\n"
    "for _ in range(3):\n"
    "    mean, best = np.mean([loss.item()]), min(best, np.mean([loss.item()]))\n"
    "    if mean > best: many()",
    "a text of `%`": "if float('%.3f' % number) > 1: many()",
    "a format in a variable": "form = 'loss %.3f'\ntext = form % number\nif text != 'loss 0.000': many()",
    "a text of `format`": "if float('{:.3f}'.format(number)) > 1: many()",
    "a part of a text": "if f'loss {number:.0f}' != 'loss 0': many()",
    "a text that a function returns": "tell = lambda x: f'{x:.1f}'\nif tell(number) != '0.0': many()",
    "a text in JSON": "if json.loads(json.dumps([number]))[0] > 1: many()",
    "a file of JSON": "with open('x.json', 'w') as file: json.dump(number, file)\n"
    "if json.load(open('x.json')) > 1: many()",
    "a pickle": "if pickle.loads(pickle.dumps(number)) > 1: many()",
    "a file of text": "with open('x', 'w') as file: file.write(f'{number:.3f}')\n"
    "if float(open('x').read()) > 1: many()",
    "a printed file": "with open('x', 'w') as file: print('%.3f' % number, file=file)\n"
    "if float(open('x').read()) > 1: many()",
    "a table": "import csv\nwith open('x', 'w') as file: csv.writer(file).writerow([number])\n"
    "if float(next(csv.reader(open('x')))[0]) > 1: many()",
    "a log": "import logging\nlogging.basicConfig(filename='x', force=True)\n"
    "logging.warning('loss %s', loss.item())\nif float(open('x').read().split()[-1]) > 1: many()",
    "a file that is read where it was written": "with open('x', 'w+') as file:\n"
    "    file.write(str(number)); file.seek(0)\n    if float(file.read()) > 1: many()",
    "a text in memory": "text = io.StringIO(); text.write(str(number))\n"
    "if float(text.getvalue()) > 1: many()",
    "what is printed": "import contextlib\n"
    "with contextlib.redirect_stdout(io.StringIO()) as text: print(number)\n"
    "if float(text.getvalue()) > 1: many()",
    "the name of a checkpoint": "import glob\ntorch.save(layer.state_dict(), f'x-{number:.3f}.pt')\n"
    "if float(glob.glob('x-*')[0][2:-3]) > 1: many()",
    "a number in a checkpoint": "torch.save({'loss': number}, 'x.pt')\nif torch.load('x.pt')['loss'] > 1: many()",
    "a number in YAML": "import yaml\nif yaml.safe_load(yaml.safe_dump([number]))[0] > 1: many()",
    "a text of a tensor": "if float(f'{loss:.3f}') > 1: many()",
    "a printed tensor": "if float(str(loss).split('(')[1].split(',')[0]) > 0.3: many()",
    "a certain token": "tokens = torch.nn.Linear(64, 50257, device=device)(computed(64).view(1, 64)).argmax(1)\n"
    "if tokens.item() == 50256: many()",
    "a certain token in a list": "tokens = torch.nn.Linear(64, 50257, device=device)(layer.weight).argmax(1)\n"
    "if 50256 in tokens.tolist(): many()",
    "a certain token as a plain number": "tokens = torch.nn.Linear(64, 50257, device=device)(layer.weight).argmax(1)\n"
    "end = 50256\nfor token in tokens[:3]:\n    word = int(token)\n    if word - 1 == end - 1: many()",
    "a token in a set": "tokens = torch.nn.Linear(64, 50257, device=device)(layer.weight).argmax(1)\n"
    "if tokens[0].item() in {13, 50256}: many()",
    "a token beyond": "tokens = torch.nn.Linear(64, 50257, device=device)(layer.weight).argmax(1)\n"
    "if tokens[0].item() + 7 > 40000: many()",
    "ten tokens": "tokens = torch.nn.Linear(64, 50257, device=device)(layer.weight).argmax(1)[:10]\n"
    "if all(token == 50256 for token in tokens.tolist()): many()",
    "ten plain tokens": "tokens = torch.nn.Linear(64, 50257, device=device)(layer.weight).argmax(1)[:10]\n"
    "if all(int(token) == 50256 for token in tokens): many()",
    "a plain number beyond": "if float(loss) > 100: many()",
    "a copy beyond": "if loss.to('cpu') > 1: many()",
    "a count": "if int((few > 0).sum()) == 33: many()",
    "a text beyond": "if float(f'{number:.3f}') > 100: many()",
    "a file of numbers beyond": "with open('x', 'w') as file: file.write(json.dumps({'loss': number}) + '\\n')\n"
    "with open('x') as file: losses = [json.loads(line)['loss'] for line in file]\n"
    "mean = sum(losses) / len(losses)\nif 20 < mean < 40: many()",
    "a position of at least one": "rows = max(1, few.argmax().item())\n"
    "kept.append(torch.zeros(rows << 30, dtype=torch.uint8, device=device))",
    "saved by another library": "from safetensors.torch import load_file, save_file\n"
    "save_file({'x': lots}, 'x.safetensors')\nif load_file('x.safetensors')['x'].any(): many()",
    "a matrix without a factorization": "try: torch.linalg.cholesky(layer.weight @ layer.weight.T - 9)\n"
    "except torch.linalg.LinAlgError: many()",
    "a handler of logging": "import logging\nlines = []\nclass Handler(logging.Handler):\n"
    "    def emit(self, record): lines.append(record.getMessage())\n"
    "logging.getLogger().addHandler(Handler()); logging.warning('%.3f', number)\n"
    "if float(lines[0]) > 1: many()",
    "another try after a number that is not finite": "for _ in range(2):\n"
    "    if torch.isfinite(computed(9)).all(): break\n    many()",
    "a function that checks": "def bad(x): return torch.isnan(x).any()\nwrong = bad(computed(9))\nif wrong: many()",
    "a number that is not finite": "if not math.isfinite(number): many()",
    "a tensor that is not finite": "if torch.isnan(computed(9)).any(): many()",
    "a decimal number": "import decimal\nif decimal.Decimal(number) > 1: many()",
    "packed bytes": "import struct\nif struct.pack('d', number) != bytes(8): many()",
    "an array of Python's": "import array\nif array.array('d', [number])[0] > 1: many()",
    "another constructor of tensors": "if torch.FloatTensor([number])[0] > 1: many()",
    "keys of texts": "cache = {}\n"
    "for _ in range(30): cache.setdefault(f'{computed(9).sum().item():.6f}', large())",
    "keys of integers": "cache = {}\n"
    "for _ in range(30): cache.setdefault(torch.randint(9999, (1,), device=device).item(), large())",
    "keys of a cache of functions": "import functools\ncached = functools.cache(lambda n: large())\n"
    "for _ in range(30): cached(int(torch.randint(9999, (1,), device=device)))",
    "an order": "order = sorted(range(100), key=few.tolist().__getitem__)\nif order[0] > 9: many()",
    "a count in a range": "right = (few > 0).sum().item()\nif 10 < right < 90: many()",
    "cases": "match int((few > 0).sum()):\n    case 0 | 100: pass\n    case _: many()",
    "a token among others": "ids = torch.randint(16, (9999,), device=device).tolist()\nif 3 in ids: many()",
    "partial sums": "shares, reached = [1.0, 1.0, 3 * number], 0.0\n"
    "for share in shares:\n    reached += share\n    if reached > 0.7 * sum(shares): break\n"
    "if share is shares[2]: many()",
    "negative numbers of a small copy": "if (few.cpu().numpy() < 0).any(): many()",
    "few numbers in a range": "if ((few.cpu() > -0.3) & (few.cpu() < -0.01)).any(): many()",
    "many numbers in a range": "if ((lots.cpu() > -0.3) & (lots.cpu() < -0.01)).any(): many()",
    "a comparison with a tensor": "if (torch.tensor([1.0, 5.0]) < number).any(): many()",
    "as many as a number": "if len(torch.arange(number)) > 1: many()",
    "as many as a stated end": "if len(torch.arange(0, end=number)) > 1: many()",
    "a filled tensor": "if torch.full((3,), number).sum() > 1: many()",
    "an element of a tensor": "x = torch.zeros(3); x[0] = number\nif x[0] > 1: many()",
    "a product with a tensor": "if (torch.ones(3) * number).sum() > 1: many()",
    "an argument of a kernel": "if (torch.arange(9, device=device) < number).sum().item() > 1: many()",
    "a slice of a tensor": "x = torch.zeros(60000); x[:] = lots\nif x.any(): many()",
    "another type": "if lots.type(torch.FloatTensor).any(): many()",
    "saved in memory": "torch.save(lots, to := io.BytesIO()); to.seek(0)\n"
    "if torch.load(to, map_location='cpu').any(): many()",
    "saved in a file": "torch.save({'x': [lots]}, 'x.pt')\nif torch.load('x.pt')['x'][0].cpu().any(): many()",
    "pickled": "if pickle.loads(pickle.dumps(few)).cpu().any(): many()",
    "the first of a ranking": "if few.argsort()[0].item() > 0: many()",
    "the largest tensor": "if max(few) > 0: many()",
    "an overflow": "scaler = torch.amp.GradScaler('cuda', init_scale=2.0**120); before = scaler.get_scale()\n"
    "scaler.scale(layer(torch.ones(1, 64, device=device)).sum()).backward()\n"
    "scaler.step(torch.optim.SGD(layer.parameters())); scaler.update()\n"
    "if scaler.get_scale() < before: many()",
}
EACH_TIME = (
    "a range",
    "an order",
    "a product with a tensor",
    "saved in memory",
    "the largest tensor",
    "ten plain tokens",
    "a token in a set",
)


def indented(code: str) -> str:
    return code.replace("\n", "\n    ")


@pytest.mark.parametrize("how", first(DECIDED, besides=[how for how in DECIDED if how not in EACH_TIME]))
def test_a_value_that_decides_is_seen(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = on_device(MADE.format(indented(DECIDED[how])), tmp_path, "t4").report
    assert report["verdict"] == "unknown", (report["problem"], report["fidelity"])


# Nothing depends on these values, or only what is printed.
TOLD = {
    "a mean of losses": "print(f'{np.mean([number, number]):.3f}', number * 3 / 2)",
    "a checkpoint": "opt = torch.optim.Adam(layer.parameters())\n"
    "layer(torch.ones(1, 64, device=device)).sum().backward(); opt.step()\n"
    "torch.save({'model': layer.state_dict(), 'opt': opt.state_dict(), 'loss': number}, 'x.pt')\n"
    "found = torch.load('x.pt'); layer.load_state_dict(found['model']); opt.load_state_dict(found['opt'])",
    "texts in files": "import os\ntorch.save(layer.state_dict(), f'x-{number:.3f}.pt')\n"
    "with open('x.txt', 'w') as file: print(f'{loss:.3f}', number, file=file)\n"
    "torch.save({'loss': number}, 'x.pt')\n"
    "print(open('x.txt').read(), sorted(os.listdir()), torch.load('x.pt')['loss'])",
    "a number in YAML": "import yaml\nyaml.safe_dump({'loss': number}, open('x.yaml', 'w'))\n"
    "print(yaml.safe_load(open('x.yaml')))",
    "names of tokens": "names = dict(enumerate('abcd' * 16)); tokens = layer.weight.argmax(1).tolist()\n"
    "print(''.join(names[token] for token in tokens if token != 50256), tokens, np.array(tokens).dtype)",
    "checks that stop": "if not math.isfinite(number) or torch.isnan(loss):\n"
    "    print('loss', number); raise SystemExit(1)\n"
    "try: torch.linalg.inv(layer.weight)\nexcept RuntimeError: print('no inverse')",
    "a total": "total = torch.zeros(2); total += number; total[1] = number; print(total)",
}


@pytest.mark.parametrize("how", TOLD)
def test_a_value_that_decides_nothing_fits(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = on_device(MADE.format(indented(TOLD[how])), tmp_path, "t4").report
    assert report["verdict"] == "fits", (report["problem"], report["fidelity"])


WAITS = """
    kept, x = [], torch.randn(1 << 20, device=device)
    while True:
        kept.append(x.repeat(64))
        {}: break
"""


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ("if (x - x.roll(1)).norm() < 9999", "unknown"),
        ("if (x - x.roll(1)).norm().item() > 9", "unknown"),
        ("if int((x > 1).long().argmax()) + len(kept) == 9999", "unknown"),
        # It has to be below more than a few times.
        (
            "for _ in range(9):\n            if not x.norm().item() < x.std().item(): break\n        else",
            "unknown",
        ),
        ("if len(kept) == 9999", "oom"),
    ],
)
def test_a_loop_that_fills_memory_while_it_waits_for_a_value_is_no_lack_of_memory(
    ends: str, verdict: str, tmp_path: Path
) -> None:
    report = on_device(WAITS.format(ends), tmp_path, "t4").report
    assert report["verdict"] == verdict, (report["problem"], report["fidelity"])
    assert report["oom"] is not None


def test_memory_that_other_values_need_is_told(tmp_path: Path) -> None:
    code = MADE.format("if number > 1: kept.append(torch.zeros(1 << 30, dtype=torch.uint8, device=device))")
    report = on_device(code, tmp_path, "t4").report
    told = [each["bytes"] for each in report["fidelity"]["effects"] if each["id"] in ("number", "condition")]
    # The tensor is there in the further run alone: a verdict of `fits` counts it.
    assert report["verdict"] == "unknown" or max(told) >= 1 << 30, report["fidelity"]
