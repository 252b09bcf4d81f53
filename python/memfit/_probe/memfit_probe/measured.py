"""Measures the saved activations and the time of each repeated block of a model."""

import functools

from . import facts

# With these levers, module hooks may be inside of compiled code.
OF_COMPILED = frozenset(("compile", "activation-budget"))


class Blocks:
    """The measured blocks, in the order of their first forward passes."""

    def __init__(self, session):
        self.session = session
        self.forget()

    def forget(self):
        """Reset the state."""
        self.blocks = {}
        self.kinds = {}
        self.marks = {}

    def measure(self, model, names, levers):
        """Measure each forward pass of these blocks. If the plan compiles anything, only blocks compiled
        separately are measured, from outside: inside a graph, hooks would break it.
        """
        watch, known = self.session.watch, dict(model.named_modules())
        if watch is None:
            return
        device = next((parameter.device.index or 0 for parameter in model.parameters()), 0)

        def now():
            clock = watch.clock()
            return watch.stats(device).allocated, sum(clock["busy"]) if clock else 0

        for name in names:

            def before(_module, _args, name=name):
                if self.session.torch.is_grad_enabled():
                    self.marks[name] = now()

            def after(_module, _args, output, name=name):
                begin = self.marks.pop(name, None)
                if begin is None:
                    return
                kept, busy = now()
                # Keep the last measurement: the first ones may include warm-up.
                self.blocks[name] = (kept - begin[0], busy - begin[1], facts.output_bytes(output))

            module = known[name]
            self.kinds[name] = type(module).__name__
            if module._compiled_call_impl is not None:
                module._compiled_call_impl = self._around(module, before, after)
            elif OF_COMPILED.isdisjoint(levers):
                module.register_forward_pre_hook(before)
                module.register_forward_hook(after)

    def _around(self, module, before, after):
        """Wrap a module's compiled call with the measurement."""
        compiled, is_compiling = module._compiled_call_impl, self.session.torch.compiler.is_compiling

        @functools.wraps(compiled)
        def _call_impl(*args, **kwargs):
            if is_compiling():
                return compiled(*args, **kwargs)
            before(module, args)
            output = compiled(*args, **kwargs)
            after(module, args, output)
            return output

        return _call_impl

    def classes(self):
        """Return the names of the blocks' classes."""
        return sorted({self.kinds[name] for name in self.blocks})

    def as_fields(self):
        """Return the results as a field of the message."""
        return [
            {"name": name, "kept": max(0, kept), "busy_ns": busy, "output": output}
            for name, (kept, busy, output) in self.blocks.items()
        ]
