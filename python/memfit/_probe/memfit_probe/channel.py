"""Messages from this process to the runner: one JSON object per line, appended to the process's file."""

import os
import sys


def run_dir():
    return os.environ["MEMFIT_RUN_DIR"]


def number(variable):
    """Return an environment variable as a non-negative number, or None."""
    value = os.environ.get(variable, "")
    return int(value) if value.isdigit() else None


def send(kind, **fields):
    """Append one message. Each line is written in one call, so threads cannot interleave."""
    line = encode({"kind": kind, **fields}) + "\n"
    path = os.path.join(run_dir(), f"messages-{os.getpid()}.jsonl")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
    try:
        os.write(descriptor, line.encode("utf-8", "surrogatepass"))
    finally:
        os.close(descriptor)


def send_hello(rank=None, world_size=None):
    """Introduce this process."""
    send(
        "hello",
        pid=os.getpid(),
        parent=os.getppid(),
        python=".".join(map(str, sys.version_info[:3])),
        executable=sys.executable or "",
        rank=rank,
        world_size=world_size,
    )


def send_torch(torch):
    """Send the version of torch and the current allocator settings of the environment."""
    settings = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
    send("torch", version=str(torch.__version__), cuda=torch.version.cuda, alloc_conf=settings)


def remark(name, **values):
    """Send a remark for the report: an id of docs/remarks.md, and values for its text."""
    send("note", id=name, values={key: str(value) for key, value in values.items()})


def finished():
    """Mark this process as finished, so that the runner does not wait for its messages."""
    with open(os.path.join(run_dir(), f"finished-{os.getpid()}"), "w", encoding="utf-8"):
        pass


def setup():
    """Return the run's setup, as the runner wrote it."""
    import json

    with open(os.path.join(run_dir(), "setup.json"), encoding="utf-8") as file:
        return json.load(file)


def plan():
    """Return the plan to apply, or None if the training is only watched."""
    path = os.path.join(run_dir(), "plan.json")
    if not os.path.exists(path):
        return None
    import json

    with open(path, encoding="utf-8") as file:
        return json.load(file)


def encode(value):
    """Encode as JSON. The `json` package is not imported, because this runs in every process."""
    from _json import encode_basestring_ascii as quoted

    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, str):
        # A lone surrogate, which file names can contain, is not valid in JSON text.
        return quoted(value.encode("utf-8", "replace").decode("utf-8"))
    if isinstance(value, dict):
        return "{" + ",".join(f"{quoted(str(key))}:{encode(item)}" for key, item in value.items()) + "}"
    return "[" + ",".join(map(encode, value)) + "]"
