"""Applies a plan to an unmodified script from outside.

The training loader's batches are divided into micro-batches; the optimizer steps, zeroes and clips gradients
only after the last micro-batch of a step, and each micro-batch's gradients are weighted by its samples;
levers are applied to the model at its first training forward pass. The facts that a plan needs about a
training (batch size, repeated blocks, their activations and time) are measured in every run, and sent at the
end.
"""

import contextlib
import os
import weakref

from . import channel, facts, first_call, gates, handles, inputs, measured, models, part, telling, trainers
from .cuts import Fetched, Pieces
from .rounds import Round, Scaling
from .spread import ByLibrary, Spread

NO_LOADER = "no batch came from a PyTorch DataLoader"


class Planned:
    """The changes to a script's training, and the facts about it."""

    def __init__(self, session, plan):
        self.session = session
        # Kept for all tries.
        self.inputs = inputs.Inputs(session)
        self.facts = facts.Facts(session)
        self.blocks = measured.Blocks(session)
        self.framework = ""
        self.read(plan)

    def read(self, plan):
        """Read a plan."""
        self.serves = bool(plan.get("serves"))
        self.micro_batch = plan.get("micro_batch")
        self.accumulate = plan.get("accumulate") or 1
        self.batch = plan.get("batch")
        self.by_name = bool(plan.get("by_name")) and bool(self.micro_batch) and bool(self.batch)
        self.own = plan.get("own_accumulation") or 1
        self.most = plan.get("most_pieces")
        self.levers = [(lever["name"], lever["value"]) for lever in plan.get("levers", ())]
        # This rank's place, if the training is spread over several.
        place = plan.get("parallel")
        self.library = ByLibrary(place) if place and place["library"] else None
        self.spread = Spread(place, dict(self.levers)["shard"]) if place and not self.library else None
        self.measures = bool(plan.get("measure"))
        # The part of the run whose peaks are reported: "training" from the levers on, or "inference", one
        # forward pass in the place of the training.
        self.part = plan.get("part")
        self._infers = False if self.part is not None else True if plan.get("infers") else None
        self.forget()

    @property
    def infers(self):
        """`True` if the script only runs inference, according to the plan or a lever that the user chose."""
        if self._infers is None:
            self._infers = any(lever.inference for lever in self._known_levers())
        return self._infers

    def _known_levers(self):
        """Return the plan's levers that are known."""
        if not self.levers:
            return []
        import memfit_levers

        return [lever for name, _ in self.levers if (lever := memfit_levers.known(name)) is not None]

    def _levers_of(self, stage):
        """Return the names of the plan's levers of a stage."""
        return frozenset(lever.name for lever in self._known_levers() if lever.stage.name == stage)

    def forget(self):
        """Reset the state."""
        self.target = None
        self.model = None
        self.around = None
        self.first = None
        self.arguments = None
        # Arguments of the call that is about to begin, and the peaks of the part.
        self.example = None
        self.peaks = None
        self.scaling = Scaling()
        self.fetched = Fetched()
        self.round = Round(self)
        self.steps = self.batches = self.forwards = 0
        self.seen = 0
        self.largest = 0
        # Samples seen by a model without an optimizer and without gradients.
        self.seen_idle = 0
        self.largest_idle = 0
        self.autocast = False
        self.clipped = False
        self.blocks.forget()
        self.inputs.sampled = ""
        self.loading = None
        self.equipped = weakref.WeakSet()
        self.arriving = None
        # Set when a backward pass begins with levers applied: they have seen a forward pass and a loss.
        self.went_back = False
        # Set if all micro-batches of a step run although only some were requested.
        self.whole_steps = False
        self.facts.forget()

    def arm(self):
        self.facts.arm()
        trainers.arm(self)
        self.arm_shards()
        first_call.arm(self)
        if not self.serves:
            self.set_environment()
            if self.by_name:
                handles.arm(self)
        gates.arm(self)

    def arm_shards(self):
        """Shard the model where the script would replicate it."""
        # A table is for a single-process script.
        if any(name == "shard" and not isinstance(value, dict) for name, value in self.levers):
            from memfit_parallel.replicas import instead_of_replicas

            instead_of_replicas(lambda: list(self.session.optimizers))

    def set_environment(self):
        """Set environment variables of levers that are read when the GPU is first used."""
        if self.levers:
            import memfit_levers

            os.environ.update(memfit_levers.environment(self.levers))

    def retune(self):
        """Make the script create smaller batches from now on."""
        if self.by_name:
            handles.set_to(self.batch, self.micro_batch)

    def pieces(self):
        """Return the number of micro-batches per batch if the script creates them itself."""
        batch = self.batch if self.spread is None else self.batch // self.spread.parallel.batches
        pieces = -(-batch // self.micro_batch)
        return min(pieces, self._max_pieces()) if self.most else pieces

    def _max_pieces(self):
        """Return the micro-batches to run in a rehearsal; the last step has one more, to measure its time."""
        return self.most + (self.session.steps.complete + 1 >= self.session.setup["steps"])

    def refuse_clipping(self):
        """Refuse `optimizer-in-backward` if gradients are clipped, since they are already freed then."""
        if self.target is not None and self.target.updates_in_backward:
            self._refuse("optimizer-in-backward", facts.CLIPPED)

    def holds(self, name):
        """Return `True` if a call belongs to a step with micro-batches left."""
        return self.round.held if name in ("zero_grad", "update") else not self.round.ends()

    # Batches

    def bounds(self, samples):
        """Return the start and end of each micro-batch."""
        size = self.micro_batch
        start, stop = self.share(samples)
        if not size or self.by_name or size >= stop - start or not self._trains():
            return [(start, stop)]
        pieces = [(begin, min(begin + size, stop)) for begin in range(start, stop, size)]
        return pieces[: self._max_pieces()] if self.most else pieces

    def share(self, samples):
        """Return the start and end of the part of a batch that this process trains on."""
        place = self.library or self.spread
        if place is None or self.by_name or not self._trains():
            return 0, samples
        return place.bounds(samples)

    def _trains(self):
        """Return `True` if this batch is for training, as far as known."""
        if self.infers:
            return True
        if not self.session.torch.is_grad_enabled():
            return False
        model = self.model() if self.model is not None else None
        return model is None or model.training

    def worst(self, dataset, sampler):
        """Return the largest items for a batch, if a try measures the maximum memory."""
        return self.inputs.worst(dataset, sampler) if self.measures and self._trains() else None

    def bucketed(self, sampler, dataset):
        """Replace a loader's batch sampler with one with batches of similar length, if planned."""
        value = dict(self.levers).get("length-buckets")
        if not value or not self._trains():
            return sampler
        from memfit_levers.buckets import together

        return together(sampler, dataset, value) or sampler

    def arrive(self, batch):
        """Apply the plan's changes to a batch from the loader."""
        self.facts.batch(batch, self._trains())
        if self.arriving is None:
            self.arriving = self._arriving()
        for change in self.arriving:
            batch = change(batch)
        return batch

    def _arriving(self):
        wanted = [(name, value) for name, value in self.levers if name in facts.ARRIVING]
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
        """Record a batch or micro-batch from a loader."""
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
        """Record that a loader is exhausted."""
        if self.loading is iterator:
            self.fetched.fetch(iterator, None)

    # Optimizers

    def appeared(self, optimizer):
        """Wrap the step and zero_grad of a new optimizer."""
        self.facts.appeared(optimizer)
        gates.arm_optimizer(self, optimizer)

    def step(self, optimizer, original, closure=None):
        """Handle an optimizer's step, which runs after the last micro-batch. A closure computes the loss and
        gradients of one micro-batch.
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
        """Count a step that is held back; with an optimizer, one called through a scaler."""
        if optimizer is not None:
            self.facts.counts(optimizer)
        self.round.asked()

    def equip(self, optimizer):
        """Apply levers to an optimizer that was created after the first forward pass."""
        if self.target is None:
            return
        import memfit_levers

        for inner in memfit_levers.innermost([optimizer]):
            if inner not in self.equipped:
                self.equipped.add(inner)
                self._apply([inner], self._levers_of("OPTIMIZER"))

    # Forward and backward

    def about_to_call(self, model):
        """Apply levers before the plan's model is called, if there are any."""
        if self.levers:
            self.autocast = self.session.torch.is_autocast_enabled("cuda")
            # On failure it is tried again, and reported, at the start of the forward pass.
            with contextlib.suppress(Exception):
                self.apply_levers(model)

    def meets(self, model):
        """Return `True` if a module that is about to be called is the model that the plan is for."""
        session = self.session
        if session.torch.compiler.is_compiling() or session.torch.jit.is_tracing():
            return False
        if session.watch is not None and session.watch.depth():
            return False
        self.facts.division.meets(model)
        # Data transforms are modules without parameters.
        return self.trains_on(model) and next(model.parameters(), None) is not None

    def trains_on(self, model):
        """Return `True` if the plan is for this model: one that trains, unlike a teacher or a frozen
        encoder.
        """
        if self.infers:
            return True
        if not (model.training and self.session.torch.is_grad_enabled()):
            return False
        groups = [group for optimizer in self.session.optimizers for group in optimizer.param_groups]
        trained = {id(parameter) for group in groups for parameter in group["params"]}
        return not trained or any(id(parameter) in trained for parameter in model.parameters())

    def forward_begins(self, model):
        """Handle the start of an outermost module's forward pass."""
        torch = self.session.torch
        self.facts.forward_begins(model)
        self.first = self.first or weakref.ref(model)
        self.autocast = self.autocast or torch.is_autocast_enabled("cuda")
        # Drop the reference: it may be the last one to a batch.
        arguments, self.arguments = self.arguments, None
        if self.target is None and self.trains_on(model):
            self.apply_levers(model)
        del arguments
        if model.training and torch.is_grad_enabled():
            self.forwards += self.model is not None and self.model() is model
            self.fetched.begin()
            self.round.piece_runs()
        if self.target is not None and self.around is None and self.target.contexts:
            self.around = contextlib.ExitStack()
            self.around.enter_context(self.target.around())

    def saw(self, arguments):
        """Record the arguments of an outermost module."""
        self.arguments = arguments if self.target is None else None
        self.facts.saw(arguments)
        idle = not self.session.torch.is_grad_enabled() and not self.infers
        if idle and self.session.optimizers:
            return
        name = "seen_idle" if idle else "seen"
        setattr(self, name, max(getattr(self, name), inputs.first_dimension(self.session.torch, arguments)))

    def forward_ends(self, _model):
        """Handle the end of the forward pass; with gradients, its loss follows."""
        self.facts.forward_ends()
        if not self.session.torch.is_grad_enabled():
            self.leave()

    def leave(self):
        """Leave the contexts of the forward pass and its loss."""
        around, self.around = self.around, None
        if around is not None:
            around.close()

    def seeds(self, gradients):
        """Return the initial gradients of a backward pass, weighted for a micro-batch and scaled."""
        self.facts.backward()
        self.went_back = self.target is not None
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

    def apply_levers(self, model):
        import memfit_levers
        from memfit_levers.blocks import blocks

        self.model = weakref.ref(model)
        optimizers = memfit_levers.innermost(list(self.session.optimizers))
        whole = models.together(self.session.torch, model, optimizers)
        self.target = memfit_levers.Target(
            whole, optimizers, undoes=False, computes=not self.session.virtual, example=self.example
        )
        self.equipped.update(optimizers)
        if self.spread is None:
            self._apply(optimizers, None)
        else:
            self.spread.apply(self, whole, optimizers)
        self.target.example = None
        if self.target.scales and not self.autocast:
            self.scaling.scaler = self.session.torch.amp.GradScaler("cuda")
        if self.target.preparations:
            memfit_levers.prepared(self.target)
        if self.part == "training":
            part.begin(self.session, whole)
        if self.measures:
            self.blocks.measure(whole, blocks(whole), dict(self.levers))

    def _apply(self, optimizers, only):
        import memfit_levers

        self.target.optimizers = optimizers
        of_optimizers, of_data = self._levers_of("OPTIMIZER"), self._levers_of("DATA")
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

    # Facts

    def send_facts(self):
        """Send the facts about the training at the end."""
        unapplied = sorted(self._levers_of("DATA")) if self.arriving is None else []
        if not (self.batches or self.by_name or self.infers) and 0 < (self.micro_batch or 0) < self.seen:
            unapplied.append("micro-batch")
        for name in unapplied:
            self._refuse(name, NO_LOADER)
        if self.target is not None and (self.went_back or self.infers):
            for (name, module), why in self.target.idle.items():
                # A module of several that is not called takes nothing from the others.
                if not module:
                    self._refuse(name, why)
        if self.part == "training" and self.target is not None:
            self.peaks = part.peaks(self.session)
        optimizers = list(self.session.optimizers)
        if not optimizers and not self.seen:
            self.seen, self.largest = self.seen_idle, self.largest_idle
        channel.send("training", **telling.training(self, optimizers))
