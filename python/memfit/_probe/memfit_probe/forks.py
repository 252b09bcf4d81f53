"""A process that gets ready once and is tried many times.

Everything that a script does before it first needs the card (its imports, its data set, often its model) is
done once. There it stops, and for each line that the runner writes, which names a run directory, a child is
forked that goes on from there as a run of its own. The device library must not have been used by then: a
forked child could not use it.
"""

import contextlib
import functools
import gc
import os
import sys

from . import ahead, channel, imports, kinds, random_numbers

# While a script gets ready, little of what it makes is garbage.
SELDOM = (50_000, 20, 100)


def arm(session):
    """Waits where the script first needs the card."""
    alone = os.environ.get("MEMFIT_LONE_RANK")
    if int(os.environ.get("WORLD_SIZE") or 1) > 1 and not alone:
        _answer("several processes train together")
        return
    torch = session.torch
    # A child could not use threads that were started before it was forked.
    torch.set_num_threads(1)
    random_numbers.arm(torch)
    often = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    count, init = torch._C._cuda_getDeviceCount, torch._C._cuda_init
    # How many cards there are is asked early and often; the device itself must not be asked yet.
    torch._C._cuda_getDeviceCount = lambda: len(session.setup["cards"])
    asked = contextlib.ExitStack()
    imports.after(
        "torch.cuda", lambda _module: asked.enter_context(kinds.told(torch, session.setup["cards"]))
    )

    def serve():
        asked.close()
        torch._C._cuda_getDeviceCount, torch._C._cuda_init = count, init
        if gc.get_threshold() == SELDOM:
            gc.set_threshold(*often)
        _leave_what_is_there()
        _serve(session)

    def begin():
        serve()
        return init()

    torch._C._cuda_init = begin
    if alone:
        # A group's threads would not be there in a child either.
        imports.after(
            "torch.distributed.distributed_c10d", functools.partial(_before_groups, torch, begin, serve)
        )


def _before_groups(torch, begin, serve, c10d):
    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*args, **kwargs):
        if torch._C._cuda_init is begin:
            serve()
        return original(*args, **kwargs)

    c10d.init_process_group = init_process_group
    # The package has it by the same name, if it was imported before.
    package = sys.modules.get("torch.distributed")
    if getattr(package, "init_process_group", None) is original:
        package.init_process_group = init_process_group


def _leave_what_is_there():
    """No child goes over what was there before it, which would copy all of it; unless the script asks for
    that.
    """
    gc.freeze()
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
    """Returns in children alone."""
    requests = os.path.join(channel.run_dir(), "requests")
    with contextlib.suppress(Exception):
        session.planned.inputs.survey()
    session.ahead = ahead.Ahead(session, channel.run_dir())
    _tell_asked()
    _answer("ready")
    with open(requests, encoding="utf-8") as lines:
        while True:
            line = lines.readline()
            if not line:
                # The runner is gone.
                os._exit(0)
            run_dir = line.rstrip("\n")
            with contextlib.suppress(Exception):
                session.ahead.catch_up()
            _tell_asked()
            middle = os.fork()
            if middle:
                os.waitpid(middle, 0)
                continue
            # The runner adopts the child, and learns how it ended.
            if os.fork():
                os._exit(0)
            break
    _become(session, run_dir)


def _tell_asked():
    """Which facts of the card the script was told before it needed it: a run on a card where they differ
    cannot be forked from here.
    """
    path = os.path.join(channel.run_dir(), "asked")
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write("\n".join(sorted(kinds.ASKED)))
    os.rename(path + ".new", path)


def _become(session, run_dir):
    os.setsid()
    session.ahead.forked()
    os.environ["MEMFIT_RUN_DIR"] = run_dir
    for number, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        descriptor = os.open(os.path.join(run_dir, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    # PyTorch makes its pool of threads anew in a child, when it is first asked for: with several cards
    # several threads of autograd ask at once, which it does not bear.
    session.torch.set_num_threads(1)
    session.become(channel.setup(), channel.plan() or {})
    if session.setup.get("beside"):
        kinds.watch(session.torch)
    session.planned.retune()
    with contextlib.suppress(Exception):
        session.planned.set_environment()
        session.planned.arm_shards()
    _answer(str(os.getpid()))
