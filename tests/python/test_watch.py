"""`memfit watch`: a running process is observed from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from runs import MIB, invoke, memfit

# Two steps; then it reports, and continues on request.
SCRIPT = """
import sys
import torch

model = torch.nn.Linear(4096, 4096, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.ones(8, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
with open(sys.argv[1], "w") as file:
    file.write("two steps are done")
with open(sys.argv[2]) as file:
    file.read()
"""


@pytest.fixture
def waiting(tmp_path):
    """A run whose script has done two steps, and waits."""
    # Wherever the tests lie, the command is longer than a screen is wide.
    folder = tmp_path / ("a-folder-with-a-name-that-alone-fills-a-line-of-a-terminal" * 2)
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    said, go = folder / "said", folder / "go"
    os.mkfifo(said)
    os.mkfifo(go)
    command = [memfit(), "run", "--gpu", "t4", "--steps", "0", "--no-prove", "--", sys.executable, "train.py"]
    run = subprocess.Popen(
        [*command, str(said), str(go)], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert said.read_text() == "two steps are done"
        yield run, go
    finally:
        run.terminate()
        run.communicate()


def test_a_run_is_seen_while_it_goes_on_and_its_end_ends_the_watching(waiting):
    run, go = waiting
    once = invoke(["watch", str(run.pid), "--once", "--format", "json"])
    assert once.status == 0, once.stderr
    report = json.loads(once.stdout)
    assert report["schema"] == "memfit.watch/1"
    (seen,) = report["runs"]
    assert seen["steps"] == 2
    assert seen["steps_wanted"] is None
    assert not seen["ended"]
    assert seen["command"][1] == "train.py"
    assert seen["kind"] == "virtual"
    (card,) = seen["cards"]
    assert "T4" in card["name"]
    # Weights of 64 MiB stay; their gradients are there at the peak only.
    assert 64 * MIB < card["used"] <= card["peak"] < card["capacity"]
    (process,) = seen["processes"]
    assert process["steps"] == 2
    assert process["alive"]
    assert 64 * MIB <= process["allocated"] < process["peak_allocated"]
    assert process["used"] <= card["used"]
    assert process["resident"] > 100 * MIB

    # Any process of the run can be named, or none; the text output has the same contents.
    assert (
        json.loads(invoke(["watch", str(seen["pid"]), "--once", "--format", "json"]).stdout)["runs"][0]["pid"]
        == (seen["pid"])
    )
    words = invoke(["watch", "--once"]).stdout
    assert "train.py" in words
    assert "step 2" in words
    assert "Tesla T4" in words

    watching = subprocess.Popen(
        [memfit(), "watch", str(run.pid), "--format", "json", "--every", "0.05s"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    first = json.loads(watching.stdout.readline())
    assert not first["runs"][0]["ended"]
    go.write_text("")
    rest = [json.loads(line) for line in watching.stdout]
    assert watching.wait(timeout=60) == 0
    assert rest[-1]["runs"][0]["ended"]
    assert run.wait(timeout=60) == 0


def test_watching_a_process_that_is_no_run_is_an_error():
    alone = invoke(["watch", str(os.getpid()), "--once"])
    assert alone.status == 2
    assert "does not belong to a memfit run" in alone.stderr
    assert "memfit run" in alone.stderr


def test_prometheus_reads_the_run_while_it_goes_on(waiting, tmp_path):
    run, go = waiting
    serving = subprocess.Popen(
        [memfit(), "watch", str(run.pid), "--prometheus", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert serving.stdout
        url = serving.stdout.readline().strip()
        with urllib.request.urlopen(url) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            text = answer.read().decode()
        samples = dict(re.findall(r"^(\w+)\{.*\} (\S+)$", text, re.M))
        assert samples["memfit_steps_total"] == "2"
        assert 64 * MIB < int(samples["memfit_gpu_memory_used_bytes"]) < 1024 * MIB
        assert int(samples["memfit_process_peak_allocated_bytes"]) > 128 * MIB
        assert str(tmp_path) not in text
        assert "train.py" not in text
        # A website whose name was pointed to this machine gets nothing.
        foreign = urllib.request.Request(url, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(foreign)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url + "/more")
        go.write_text("go on")
        run.communicate()
        with urllib.request.urlopen(url) as answer:
            assert "{" not in answer.read().decode(), "a run that has ended has no samples"
    finally:
        serving.send_signal(signal.SIGINT)
        serving.communicate(timeout=20)
    assert serving.returncode == -signal.SIGINT, "Ctrl-C ends it"


def test_a_port_in_use_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = invoke(["watch", "--prometheus", str(port)])
    assert answer.status == 2
    assert f"port {port} of 127.0.0.1" in answer.stderr
    assert "--prometheus 0" in answer.stderr
