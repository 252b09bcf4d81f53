"""Prepares a process once and forks it for each try.

Everything that a script does before it first uses the GPU (imports, data set, often the model) runs once. The
process then waits; for each line from the runner, which names a run directory, it forks a child that
continues as a separate run. The device library must not be in use by then, because a forked child could not
use it.
"""

import contextlib
import functools
import gc
import os
import random
import sys

from . import ahead, alive, channel, imports, kept_batches, kinds, random_numbers

# Garbage-collector thresholds during preparation, when little of the script's data is garbage.
RARE_COLLECTION = (50_000, 20, 100)


def arm(session):
    """Wait at the first use of the GPU."""
    lone_rank = os.environ.get("MEMFIT_LONE_RANK")
    if int(os.environ.get("WORLD_SIZE") or 1) > 1 and not lone_rank:
        _answer("several processes train together")
        return
    torch = session.torch
    # Threads do not survive a fork.
    torch.set_num_threads(1)
    random_numbers.arm(torch)
    thresholds = gc.get_threshold()
    gc.set_threshold(*RARE_COLLECTION)
    count, init = torch._C._cuda_getDeviceCount, torch._C._cuda_init
    # Scripts ask early and often for the number of GPUs, but the device itself must not be used yet.
    torch._C._cuda_getDeviceCount = lambda: len(session.setup["cards"])
    answers = contextlib.ExitStack()
    imports.after(
        "torch.cuda",
        lambda _module: answers.enter_context(kinds.answered_from_catalogue(torch, session.setup["cards"])),
    )

    def serve():
        answers.close()
        torch._C._cuda_getDeviceCount, torch._C._cuda_init = count, init
        if gc.get_threshold() == RARE_COLLECTION:
            gc.set_threshold(*thresholds)
        _freeze_objects(torch)
        _serve(session)

    def begin():
        serve()
        return init()

    torch._C._cuda_init = begin
    _serve_before_backward(torch.autograd, lambda: torch._C._cuda_init is begin, serve)
    if lone_rank:
        # Threads of a process group do not survive a fork either.
        imports.after(
            "torch.distributed.distributed_c10d", functools.partial(_before_groups, torch, begin, serve)
        )


def _serve_before_backward(autograd, waits, serve):
    """Serve before a backward pass on the host: the autograd engine then starts threads and counts the GPUs,
    neither of which a forked child could use.
    """
    original = autograd._engine_run_backward

    @functools.wraps(original)
    def run(*args, **kwargs):
        if autograd._engine_run_backward is run:
            autograd._engine_run_backward = original
        if waits():
            serve()
        return original(*args, **kwargs)

    autograd._engine_run_backward = run


def _before_groups(torch, begin, serve, c10d):
    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*args, **kwargs):
        if torch._C._cuda_init is begin:
            serve()
        return original(*args, **kwargs)

    c10d.init_process_group = init_process_group
    # The package has its own reference, if it was imported before.
    package = sys.modules.get("torch.distributed")
    if getattr(package, "init_process_group", None) is original:
        package.init_process_group = init_process_group


def _freeze_objects(torch):
    """Exclude existing objects from the garbage collector, which would copy their pages in each child; an
    explicit collection by the script includes them.
    """
    alive.freeze(torch.nn.Module)
    original = gc.collect

    @functools.wraps(original)
    def collect(*args, **kwargs):
        gc.unfreeze()
        return original(*args, **kwargs)

    gc.collect = collect


def _answer(text):
    path = os.path.join(channel.run_dir(), "forks")
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(path + ".new", path)


def _serve(session):
    """Wait for requests. Only forked children return."""
    requests = os.path.join(channel.run_dir(), "requests")
    numbers = random.getstate()
    random_numbers.seed_later_ones()
    with contextlib.suppress(Exception):
        session.planned.inputs.survey()
    session.ahead = ahead.Ahead(session, channel.run_dir())
    session.kept = kept_batches.KeptBatches(session, channel.run_dir())
    _write_facts_read()
    _answer("ready")
    with open(requests, encoding="utf-8") as lines:
        while True:
            line = lines.readline()
            if not line:
                # The runner has ended.
                os._exit(0)
            run_dir = line.rstrip("\n")
            with contextlib.suppress(Exception):
                session.ahead.catch_up()
                session.kept.catch_up()
            _write_facts_read()
            middle = os.fork()
            if middle:
                os.waitpid(middle, 0)
                continue
            # The runner adopts the child and gets its exit status.
            if os.fork():
                os._exit(0)
            break
    # Python reseeds its generator in each forked child: tries would draw different numbers.
    random.setstate(numbers)
    _become(session, run_dir)


def _write_facts_read():
    """Write which facts about the GPU the script has read so far: a run on a GPU where they differ cannot be
    forked from here.
    """
    path = os.path.join(channel.run_dir(), "asked")
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write("\n".join(sorted(kinds.ASKED)))
    os.rename(path + ".new", path)


def _become(session, run_dir):
    os.setsid()
    session.ahead.forked()
    session.kept.forked()
    os.environ["MEMFIT_RUN_DIR"] = run_dir
    for number, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        descriptor = os.open(os.path.join(run_dir, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    # A forked child recreates PyTorch's thread pool on first use, which is not safe from several autograd
    # threads at once, as with several GPUs.
    session.torch.set_num_threads(1)
    session.become(channel.setup(), channel.plan() or {})
    if session.setup.get("beside"):
        kinds.watch(session.torch)
    session.planned.retune()
    with contextlib.suppress(Exception):
        session.planned.set_environment()
        session.planned.arm_shards()
    _answer(str(os.getpid()))
