"""A process that has imported torch: activates the probe, and ends the process when it has seen enough."""

import atexit
import contextlib
import functools
import importlib
import os
import sys
import time
import weakref

from . import (
    channel,
    checkpoints,
    compiled,
    extensions,
    forks,
    generation,
    graphs,
    last_words,
    late_compiler,
    loaders,
    masks,
    modules,
    notes,
    oom,
    planned,
    random_numbers,
    read_back,
    replicas,
    shards,
    sizes,
    small,
    solvers,
    synthetic_data,
    synthetic_weights,
    wrapping,
)
from . import watch as codes
from .calls_seen import CallsSeen
from .counting import StepCounter
from .guard import guarded
from .host import run_of
from .passes import Passes

_session = None


def begin(torch):
    """Start to watch, after torch was imported."""
    global _session
    channel.send_torch(torch)
    try:
        wrapping.list_constructors()
        _session = Session(torch)
        _session.arm()
    except Exception:
        import traceback

        channel.remark("probe-unarmed", error=traceback.format_exc(limit=-2))


class Session:
    """The state of this process, and the parts of the probe."""

    def __init__(self, torch):
        self.torch = torch
        self.setup = channel.setup()
        self.is_compiling = torch.compiler.is_compiling
        # In a run on the host there is no GPU to watch.
        self.host = run_of(self)
        self.watch = codes.find() if self.host is None else None
        self.virtual = bool(self.setup["cards"])
        self._forget()
        self.notes = notes.Notes(self)
        self.sizes = sizes.Sizes(self)
        self.modules = modules.Modules(self)
        self.oom = oom.OutOfMemory(self)
        self.loaders = loaders.Loaders(self)
        self.graphs = graphs.Graphs(self)
        self.peaks = last_words.Peaks(self)
        self.checkpoints = checkpoints.Checkpoints(torch)
        self.calls_seen = CallsSeen()
        plan = channel.plan()
        self.planned = planned.Planned(self, plan) if plan is not None else None
        # Set in a process that is forked for each try, and with synthetic data.
        self.ahead = self.kept = self.made_up = self.weights = None

    def _forget(self):
        """Reset the state of this process."""
        self.pid = os.getpid()
        self.steps = StepCounter(self.setup["steps"])
        self.optimizers = weakref.WeakSet()
        self.stepping = {}
        self.phase_before_step = {}
        self.told = set()
        self.reads = None
        self.texts = {}
        self.reported = 0
        self.ended = False
        self.evaluation = self.evaluating = self.had_backward = False
        self.after_step = []
        self.passes = Passes(self)
        self.generating = False

    def arm(self):
        if self.setup.get("seeded"):
            random_numbers.seed(self.torch)
        if self.host is not None:
            self._arm_on_host()
            return
        if self.watch is None:
            self.remark("no-watcher")
        else:
            self.modules.arm()
            self._arm_backward()
            self.sizes.arm()
            replicas.arm(self)
        self._arm_optimizers()
        self.calls_seen.arm(self.torch)
        self.peaks.arm()
        self.oom.arm()
        self.loaders.arm()
        shards.arm(self)
        self.graphs.arm()
        if self.virtual:
            self._arm_stand_ins()
            self.checkpoints.arm()
        if self.planned is not None:
            self.planned.arm()
            if self.planned.serves:
                forks.arm(self)
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._forked)

    def _arm_on_host(self):
        """Activate the parts for a run on the host, which compares values and measures no memory."""
        late_compiler.arm(self.torch)
        self._arm_optimizers()
        self.oom.arm()
        self.checkpoints.arm()
        self._arm_synthetic()
        self.host.arm()
        atexit.register(self._at_exit)

    def _arm_stand_ins(self):
        """Activate replacements for missing data, and for values that a virtual GPU does not compute."""
        late_compiler.arm(self.torch)
        extensions.arm(self)
        generation.arm(self)
        solvers.arm(self)
        compiled.arm(self)
        masks.arm()
        read_back.arm(self)
        small.arm(self)
        self._arm_synthetic()

    def _arm_synthetic(self):
        synthetic = self.setup["synthetic"]
        if synthetic["weights"]:
            self.weights = synthetic_weights.SyntheticWeights(self).arm()
        if synthetic["data"] is not None:
            self.made_up = synthetic_data.SyntheticData(self, synthetic["data"]).arm()

    def _forked(self):
        """Reset the state in a forked child."""
        self.made_before = list(self.optimizers) or getattr(self, "made_before", [])
        self._forget()
        self.loaders.forget()
        if self.planned is not None:
            self.planned.forget()
        for part in (self.modules, self.sizes, self.peaks, self.calls_seen):
            part.forget()

    def become(self, setup, plan):
        """Continue a forked child as a separate run, with its own setup and plan."""
        self.setup = setup
        self.checkpoints.become()
        self.planned.read(plan)
        self._forked()
        # Optimizers created before belong to this run as well.
        for optimizer in list(self.made_before):
            self.optimizers.add(optimizer)
            self.steps.appeared(id(optimizer))
        channel.send_hello()
        channel.send_torch(self.torch)

    # Messages

    def remark(self, name, error=None, **values):
        """Send a remark for the report, once. `name` is an id of docs/remarks.md, `values` fill its text."""
        if error is not None:
            values["error"] = f"{type(error).__name__}: {error}"
        key = (name, *sorted(values.items()))
        if key not in self.told:
            self.told.add(key)
            channel.remark(name, **values)

    def text(self, text):
        """Return the number of a text in the event log."""
        number = self.texts.get(text)
        if number is None:
            number = self.texts[text] = len(self.texts) + 1
            self.watch.text(number, text)
        return number

    def text_of(self, number):
        """Return the text with this number, or None."""
        return next((text for text, known in self.texts.items() if known == number), None)

    def devices(self):
        """Return the indices of the CUDA devices, once CUDA is initialised."""
        cuda = self.torch.cuda
        return range(cuda.device_count()) if cuda.is_initialized() else range(0)

    # Phases

    def _arm_backward(self):
        """Wrap the one function that `Tensor.backward`, `autograd.backward` and `autograd.grad` use."""
        autograd, watch, is_compiling = self.torch.autograd, self.watch, self.is_compiling
        original = autograd._engine_run_backward

        @functools.wraps(original)
        def run(*args, **kwargs):
            if is_compiling():
                return original(*args, **kwargs)
            if self.planned is not None:
                args = self._begin_backward(args, kwargs.get("accumulate_grad", True))
            self.passes.by_hand.count()
            if not self.had_backward:
                self.had_backward = True
                self._note_copies()
            before = watch.phase(codes.BACKWARD)
            try:
                return original(*args, **kwargs)
            finally:
                if self.planned is not None and before != codes.BACKWARD:
                    self.planned.facts.division.backward_ends()
                if kwargs.get("accumulate_grad", True):
                    self.passes.by_hand.backward_ended()
                # Within a step (LBFGS calls a closure), or within another backward pass (reentrant
                # checkpoints), that phase continues.
                watch.phase(before if before in (codes.OPTIMIZER, codes.BACKWARD) else codes.OTHER)

        autograd._engine_run_backward = run

    @guarded
    def _note_copies(self):
        self.notes.copies()

    def _begin_backward(self, args, adds_up):
        """Apply a plan at the start of a backward pass: leave the forward contexts, weight the gradients."""
        try:
            # `torch.autograd.grad`, as for a gradient penalty, is part of the computation.
            if self.watch.current_phase() != codes.BACKWARD and adds_up:
                self.planned.leave()
                self.planned.facts.division.backward_begins(args[0])
                return (args[0], self.planned.seeds(args[1]), *args[2:])
        except Exception as error:
            self.remark("plan-failed", error, where="in a backward pass")
        return args

    # Optimizers

    def _arm_optimizers(self):
        optimizer = self.torch.optim.Optimizer
        init, session = optimizer.__init__, self

        @functools.wraps(init)
        def made(self, *args, **kwargs):
            init(self, *args, **kwargs)
            session._appeared(self)

        optimizer.__init__ = made
        # Imported by name, because the package's `Optimizer` attribute hides the module.
        module = importlib.import_module("torch.optim.optimizer")
        module.register_optimizer_step_pre_hook(self._before_step)
        module.register_optimizer_step_post_hook(self._after_step)

    @guarded
    def _appeared(self, optimizer):
        key = id(optimizer)
        self.optimizers.add(optimizer)
        self.steps.appeared(key)
        weakref.finalize(optimizer, self._vanished, self.pid, key).atexit = False
        if self.planned is not None:
            self.planned.appeared(optimizer)

    def _vanished(self, pid, key):
        if pid == self.pid == os.getpid():
            self.steps.vanished(key)

    def _before_step(self, optimizer, args, kwargs):
        if self.is_compiling():
            return
        self._step_begins(optimizer)

    @guarded
    def _step_begins(self, optimizer):
        # A step that calls its parent class's step runs this hook twice.
        depth = self.stepping[id(optimizer)] = self.stepping.get(id(optimizer), 0) + 1
        if self.host is not None and depth == 1:
            self.host.before_step(optimizer)
        if depth > 1 or self.watch is None:
            return
        if self.planned is not None:
            self.planned.equip(optimizer)
        self.notes.gradients(optimizer)
        self.phase_before_step[id(optimizer)] = self.watch.phase(codes.OPTIMIZER)

    def _after_step(self, optimizer, args, kwargs):
        if self.is_compiling():
            return
        self._step_ends(optimizer)

    @guarded
    def _step_ends(self, optimizer):
        key = id(optimizer)
        depth = self.stepping[key] = self.stepping.get(key, 1) - 1
        if depth > 0:
            return
        self.stepping.pop(key, None)
        if self.host is not None:
            self.host.after_step(optimizer)
        if optimizer not in self.optimizers:
            self._appeared(optimizer)
        if self.watch is not None:
            self.notes.optimizer_state(optimizer)
            # After a step within the backward pass, as with one optimizer per parameter, that continues.
            before = self.phase_before_step.pop(key, codes.OTHER)
            self.watch.phase(before if before == codes.BACKWARD else codes.OTHER)
        if not self.graphs.captures(optimizer):
            self.completed(self.steps.stepped(key))

    @guarded
    def stepped(self, optimizer):
        """Record that a captured step has run."""
        self.completed(self.steps.stepped(id(optimizer)))

    def completed(self, complete):
        if complete > self.reported:
            self.reported = complete
            self._send_step(complete)
        if self.steps.enough and not (self.loaders.has_more_to_cover() or self.graphs.are_expected()):
            self.finish("steps")

    def _send_step(self, complete):
        allocated = peak = 0
        clock = None
        if self.watch is not None:
            clock = self.watch.clock()
            self.watch.step(complete)
            peaks = {}
            for device in self.devices():
                stats = self.watch.stats(device)
                self.watch.reset_window(device)
                peaks[device] = stats.peak_allocated
                if stats.peak_allocated >= peak:
                    allocated, peak = stats.allocated, stats.peak_allocated
            self.sizes.step_is_over(peaks)
        self.after_step.append((self._requested(), peak))
        channel.send("step", step=complete, allocated=allocated, peak_allocated=peak, clock=clock)

    def _requested(self):
        """Return the bytes that tensors request on all devices; constant after each step if training is
        steady.
        """
        stats = self.torch._C._cuda_memoryStats
        return sum(stats(device)["requested_bytes"]["all"]["current"] for device in self.devices())

    # Forward passes of the outermost module

    @guarded
    def forward_began(self, module):
        # A step may have ended with an exception.
        self.stepping.clear()
        self.calls_seen.record()
        self.passes.began(module)
        if self.planned is not None:
            self.planned.forward_begins(module)
        self.evaluating = not module.training

    @guarded
    def forward_ended(self, module, output):
        self.evaluation = self.evaluation or not module.training
        if self.planned is not None:
            self.planned.forward_ends(module)
        if not self.generating:
            self.passed(module, output)

    @guarded
    def passed(self, module, output=None):
        """Record a pass of a model."""
        self.passes.passed(module, output)

    @guarded
    def _at_exit(self):
        if not self.ended and self.pid == os.getpid():
            self.oom.report_uncaught()
            self.passes.by_hand.count()
            self._send_done("exit")
            if self.had_backward:
                # The autograd threads release Python objects after `backward` has returned. If one needs the
                # GIL during shutdown, the process ends by a signal: give them time now.
                time.sleep(0.1)

    def finish(self, reason):
        """Report that everything requested was seen, and wait to be terminated.

        The process waits instead of exiting, so that no cleanup code of the script runs: it could save a
        checkpoint of zeros.
        """
        if self.ended:
            return
        for stream in (sys.stdout, sys.stderr):
            # A closed or replaced stream has nothing to flush.
            with contextlib.suppress(Exception):
                stream.flush()
        self._send_done(reason)
        channel.finished()
        while True:
            time.sleep(3600)

    def _send_done(self, reason):
        self.ended = True
        self._measure_loader()
        if self.watch is not None:
            self.notes.everything()
            self.sizes.read()
        if self.planned is not None:
            self._send_training()
        if self.ahead is not None:
            self._write_for_later_tries()
        if self.host is not None:
            self.host.send_result()
        last_words.send(self, reason)

    @guarded
    def _measure_loader(self):
        self.loaders.settle()
        self.loaders.feeding.measure()

    @guarded
    def _send_training(self):
        self.planned.send_facts()

    @guarded
    def _write_for_later_tries(self):
        self.ahead.write_new_modules()
        self.kept.write()
