"""A plan carried out from outside, on a script that knows nothing of it.

The training loader's batches come in pieces; the optimizer steps, is cleared and is clipped for only once all
pieces of a step are through, with each piece's gradients weighted by its samples; levers are put on the model
at its first training forward. What a plan needs to know of a training (how large its batches are, which
blocks repeat, what they keep and take) is measured on the way, plan or not, and told at the end.
"""

import contextlib
import functools
import os
import types
import weakref

from . import channel, facts, gates, handles, inputs, measured, models, telling, trainers
from .cuts import Fetched, Pieces
from .rounds import Round, Scaling

NO_LOADER = "no batch came from a DataLoader of PyTorch's"


class Planned:
    """What is done to a script's training, and what is learnt of it."""

    def __init__(self, session, plan):
        self.session = session
        # It lasts over the tries.
        self.inputs = inputs.Inputs(session)
        self.facts = facts.Facts(session)
        self.blocks = measured.Blocks(session)
        self.framework = ""
        self.read(plan)

    def read(self, plan):
        """What is to be done from now on."""
        self.serves = bool(plan.get("serves"))
        self.micro_batch = plan.get("micro_batch")
        self.accumulate = plan.get("accumulate") or 1
        self.batch = plan.get("batch")
        self.by_name = bool(plan.get("by_name")) and bool(self.micro_batch) and bool(self.batch)
        self.own = plan.get("own_accumulation") or 1
        self.most = plan.get("most_pieces")
        self.levers = [(lever["name"], lever["value"]) for lever in plan.get("levers", ())]
        self.measures = bool(plan.get("measure"))
        self._infers = True if plan.get("infers") else None
        self.forget()

    @property
    def infers(self):
        """Whether the script only goes forward: it is said, or a lever that a person chose says so."""
        if self._infers is None:
            self._infers = any(lever.inference for lever in self._known())
        return self._infers

    def _known(self):
        """The plan's levers, as far as they are known."""
        if not self.levers:
            return []
        import memfit_levers

        return [lever for name, _ in self.levers if (lever := memfit_levers.known(name)) is not None]

    def _of(self, stage):
        """The plan's levers of a stage, by name."""
        return frozenset(lever.name for lever in self._known() if lever.stage.name == stage)

    def forget(self):
        """Nothing has happened yet."""
        self.target = None
        self.model = None
        self.around = None
        self.first = None
        self.arguments = None
        self.scaling = Scaling()
        self.fetched = Fetched()
        self.round = Round(self)
        self.steps = 0
        self.batches = 0
        self.forwards = 0
        self.seen = 0
        self.largest = 0
        # What went through a script's model while it had no optimizer and recorded no gradients.
        self.seen_idle = 0
        self.largest_idle = 0
        self.autocast = False
        self.clipped = False
        self.blocks.forget()
        self.inputs.sampled = ""
        self.loading = None
        self.equipped = weakref.WeakSet()
        self.arriving = None
        # Whether all pieces of a step are run though only some were asked for.
        self.whole_steps = False
        self.facts.forget()

    def arm(self):
        self.facts.arm()
        trainers.arm(self)
        self.arm_shards()
        self._arm_first_call()
        if not self.serves:
            self.set_environment()
            if self.by_name:
                self._arm_names()
        gates.arm(self)

    def _arm_first_call(self):
        """A call has looked up the model's forward by the time that its hooks run: levers are put on before
        it.
        """
        module, planned = self.session.torch.nn.Module, self
        original = module.__call__

        @functools.wraps(original)
        def call(self, *args, **kwargs):
            if planned.target is None:
                planned.about_to_call(self)
            # Gone before what is called is compiled: a compiler would find it in each of the model's modules.
            if planned.target is not None:
                module.__call__ = original
            return original(self, *args, **kwargs)

        module.__call__ = call

    def arm_shards(self):
        """Shards come where replicas would be made."""
        if any(name == "shard" for name, _ in self.levers):
            from memfit_levers.shard import instead_of_replicas

            instead_of_replicas(lambda: list(self.session.optimizers))

    def _arm_names(self):
        """Where the script first needs the card it has read its arguments, and made no batch yet."""
        core = self.session.torch._C
        init = core._cuda_init

        def begin():
            core._cuda_init = init
            self.retune()
            return init()

        core._cuda_init = begin

    def set_environment(self):
        """Some levers are settings that are read when the card is first used."""
        if self.levers:
            import memfit_levers

            os.environ.update(memfit_levers.environment(self.levers))

    def retune(self):
        """The script makes smaller batches from now on."""
        if self.by_name:
            handles.set_to(self.batch, self.micro_batch)

    def pieces(self):
        """Of how many pieces a batch is where the script makes them itself."""
        pieces = -(-self.batch // self.micro_batch)
        return min(pieces, self._most()) if self.most else pieces

    def _most(self):
        """A rehearsal runs a few pieces of each batch: from the third on they are alike. The last step has
        one more, so that the time of one can be told.
        """
        return self.most + (self.session.steps.complete + 1 >= self.session.setup["steps"])

    def refuse_clipping(self):
        """Gradients that are clipped once they are gone are not clipped."""
        if self.target is not None and self.target.updates_in_backward:
            self._refuse("optimizer-in-backward", facts.CLIPPED)

    def holds(self, name):
        """Whether a call belongs to a step that is not through yet."""
        return self.round.held if name in ("zero_grad", "update") else not self.round.ends()

    # Batches

    def bounds(self, samples):
        """Where the pieces of a batch begin and end."""
        size = self.micro_batch
        if not size or self.by_name or size >= samples or not self._trains():
            return [(0, samples)]
        pieces = [(begin, min(begin + size, samples)) for begin in range(0, samples, size)]
        return pieces[: self._most()] if self.most else pieces

    def _trains(self):
        """Whether what is asked for now is for training, as far as can be told."""
        if self.infers:
            return True
        if not self.session.torch.is_grad_enabled():
            return False
        model = self.model() if self.model is not None else None
        return model is None or model.training

    def worst(self, dataset, sampler):
        """The largest items that a batch can be of, where a try is to tell the most that is needed."""
        return self.inputs.worst(dataset, sampler) if self.measures and self._trains() else None

    def bucketed(self, sampler, dataset):
        """A loader's sampler of batches, with those of like length together where that is planned."""
        value = dict(self.levers).get("length-buckets")
        if not value or not self._trains():
            return sampler
        from memfit_levers.buckets import together

        return together(sampler, dataset, value) or sampler

    def arrive(self, batch):
        """What a loader gives, as the plan has it."""
        self.facts.batch(batch, self._trains())
        if self.arriving is None:
            self.arriving = self._arriving()
        for change in self.arriving:
            batch = change(batch)
        return batch

    def _arriving(self):
        wanted = [(name, value) for name, value in self.levers if name == "resize-before-upload"]
        if not wanted:
            return []
        import memfit_levers

        target = memfit_levers.Target(self.session.torch.nn.Identity())
        for name, value in wanted:
            try:
                memfit_levers.apply_one(target, name, value)
            except Exception as error:
                self._refuse(name, error)
        return target.arrivals

    def given(self, iterator):
        """A loader has given a batch, or a piece of one."""
        sampler = getattr(iterator, "_index_sampler", None)
        if not isinstance(sampler, Pieces) or not sampler.made:
            return
        piece = sampler.made.popleft()
        if piece is None:
            return
        if not self._trains():
            if not self.session.optimizers:
                self.largest_idle = max(self.largest_idle, piece.batch)
            return
        self.fetched.fetch(iterator, piece)
        self.loading = iterator
        self.batches += piece.last
        self.largest = max(self.largest, piece.batch)

    def ended(self, iterator):
        """A loader has no more to give."""
        if self.loading is iterator:
            self.fetched.fetch(iterator, None)

    # Optimizers

    def appeared(self, optimizer):
        """An optimizer was made: its step and its clearing go through here."""
        planned = self
        self.facts.appeared(optimizer)
        clear = optimizer.zero_grad
        # It asks for the loss again and again, so no piece of it would do.
        several_times = self.session.torch.optim.LBFGS

        @functools.wraps(optimizer.step.__func__)
        def step(self, *args, **kwargs):
            # A lever may have given it another class meanwhile, whose step it is then.
            original = functools.partial(type(self).step, self)
            closure = args[0] if args else kwargs.get("closure")
            if (
                planned.scaling.inside
                or len(args) > 1
                or (closure is not None and isinstance(self, several_times))
            ):
                return original(*args, **kwargs)
            kwargs.pop("closure", None)
            return planned.step(self, functools.partial(original, **kwargs), closure)

        @functools.wraps(clear.__func__)
        def zero_grad(self, *args, **kwargs):
            if not planned.round.held:
                clear(*args, **kwargs)

        optimizer.step = types.MethodType(step, optimizer)
        # Levers that put a step of their own in its place go through it all the same.
        optimizer.__dict__["_memfit_gate"] = optimizer.step
        optimizer.zero_grad = types.MethodType(zero_grad, optimizer)

    def step(self, optimizer, original, closure=None):
        """An optimizer is asked to step: whether it does. A closure computes the loss and its gradients, of
        this piece.
        """
        if closure is not None:
            with self.session.torch.enable_grad():
                loss = closure()
            self.step(optimizer, original)
            return loss
        if self.facts.asked_to_step(optimizer, self.fetched.piece) and self.micro_batch is not None:
            self._refuse("micro-batch", facts.TURNS)
        stepped = self.scaling.step(optimizer, original) if self.round.asked() else None
        self.facts.division.ended(0 if self.largest else self.seen)
        return stepped

    def held_back(self, optimizer=None):
        """A step that does not happen yet; of an optimizer that was not asked itself, but through a
        scaler.
        """
        if optimizer is not None:
            self.facts.counts(optimizer)
        self.round.asked()

    def equip(self, optimizer):
        """Levers of an optimizer that was made after the first forward."""
        if self.target is None:
            return
        import memfit_levers

        for inner in memfit_levers.innermost([optimizer]):
            if inner not in self.equipped:
                self.equipped.add(inner)
                self._apply([inner], self._of("OPTIMIZER"))

    # Forward and backward

    def about_to_call(self, model):
        """A module is about to be called, and no levers are on a model yet."""
        session, torch = self.session, self.session.torch
        if torch.compiler.is_compiling() or (session.watch is not None and session.watch.depth()):
            return
        # A transform of data is a module without parameters.
        self.facts.division.meets(model)
        if self.levers and self._is_it(model) and next(model.parameters(), None) is not None:
            self.autocast = torch.is_autocast_enabled("cuda")
            # One that fails is tried once more, and told, where the forward begins.
            with contextlib.suppress(Exception):
                self._put_on(model)

    def _is_it(self, model):
        """Whether this is the model that the plan is for: one that trains, as a teacher or an encoder that is
        used does not.
        """
        if self.infers:
            return True
        if not (model.training and self.session.torch.is_grad_enabled()):
            return False
        groups = [group for optimizer in self.session.optimizers for group in optimizer.param_groups]
        trained = {id(parameter) for group in groups for parameter in group["params"]}
        return not trained or any(id(parameter) in trained for parameter in model.parameters())

    def forward_begins(self, model):
        """An outermost module begins."""
        torch = self.session.torch
        self.facts.forward_begins(model)
        self.first = self.first or weakref.ref(model)
        self.autocast = self.autocast or torch.is_autocast_enabled("cuda")
        # Nothing of it is kept: it may be all that holds a batch.
        arguments, self.arguments = self.arguments, None
        if self.target is None and self._is_it(model):
            self._put_on(model)
        del arguments
        if model.training and torch.is_grad_enabled():
            self.forwards += self.model is not None and self.model() is model
            self.fetched.begin()
            self.round.piece_runs()
        if self.target is not None and self.around is None and self.target.contexts:
            self.around = contextlib.ExitStack()
            self.around.enter_context(self.target.around())

    def saw(self, arguments):
        """What an outermost module is called with."""
        self.arguments = arguments if self.target is None else None
        self.facts.saw(arguments)
        idle = not self.session.torch.is_grad_enabled() and not self.infers
        if idle and self.session.optimizers:
            return
        name = "seen_idle" if idle else "seen"
        setattr(self, name, max(getattr(self, name), inputs.first_dimension(self.session.torch, arguments)))

    def forward_ends(self, _model):
        """It has ended; its loss follows where there are gradients."""
        self.facts.forward_ends()
        if not self.session.torch.is_grad_enabled():
            self.leave()

    def leave(self):
        """The forward with its loss is over."""
        around, self.around = self.around, None
        if around is not None:
            around.close()

    def seeds(self, gradients):
        """What a backward begins with: weighted, where the loss is that of a piece, and scaled."""
        self.facts.backward()
        self.round.piece_runs()
        self.scaling.begin()
        weight, piece = 1.0, self.fetched.piece
        if self.by_name:
            weight = 1 / (self.pieces() * self.accumulate)
        elif piece is not None and self.micro_batch is not None:
            weight = piece.samples / piece.batch / self.accumulate
        if weight == 1.0 and self.scaling.scaler is None:
            return gradients

        return tuple(None if each is None else self.scaling.scale(each * weight) for each in gradients)

    def _put_on(self, model):
        import memfit_levers
        from memfit_levers.blocks import blocks

        self.model = weakref.ref(model)
        optimizers = memfit_levers.innermost(list(self.session.optimizers))
        whole = models.together(self.session.torch, model, optimizers)
        self.target = memfit_levers.Target(whole, optimizers, undoes=False, computes=not self.session.virtual)
        self.equipped.update(optimizers)
        self._apply(optimizers, None)
        if self.target.scales and not self.autocast:
            self.scaling.scaler = self.session.torch.amp.GradScaler("cuda")
        if self.target.preparations:
            memfit_levers.prepared(self.target)
        if self.measures:
            self.blocks.measure(whole, blocks(whole), dict(self.levers))

    def _apply(self, optimizers, only):
        import memfit_levers

        self.target.optimizers = optimizers
        of_optimizers, of_data = self._of("OPTIMIZER"), self._of("DATA")
        for name, value in memfit_levers.ordered(self.levers):
            if (only is not None and name not in only) or (name in of_optimizers and not optimizers):
                continue
            if name in of_data:
                continue
            try:
                memfit_levers.apply_one(self.target, name, value)
            except Exception as error:
                self._refuse(name, error)

    def _refuse(self, name, error):
        why = error if isinstance(error, str) else getattr(error, "why", f"{type(error).__name__}: {error}")
        channel.send("refused", lever=name, why=str(why))

    # What is learnt

    def tell(self):
        """At the end: what the training is."""
        if self.arriving is None:
            for name in sorted(self._of("DATA")):
                self._refuse(name, NO_LOADER)
        optimizers = list(self.session.optimizers)
        if not optimizers and not self.seen:
            self.seen, self.largest = self.seen_idle, self.largest_idle
        channel.send("training", **telling.training(self, optimizers))
