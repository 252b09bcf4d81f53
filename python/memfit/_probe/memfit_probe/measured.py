"""What each repeated block of a model keeps for the backward, and how long it takes, as it was measured."""

import functools

from . import facts

# Where one of these is on, hooks of modules may lie within what is compiled.
OF_COMPILED = frozenset(("compile", "activation-budget"))


class Blocks:
    """The blocks that were measured, in the order of their first forwards."""

    def __init__(self, session):
        self.session = session
        self.forget()

    def forget(self):
        """Nothing has been measured yet."""
        self.blocks = {}
        self.marks = {}

    def measure(self, model, names, levers):
        """From now on, at each of their forwards. Where the plan has something to do with compiling, those
        alone that are compiled one by one, and from outside: within a graph there is nothing to measure, and
        whoever looked would cut it in two.
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
                # The last measurement stays: the first ones may have warmed up.
                self.blocks[name] = (kept - begin[0], busy - begin[1], facts.output_bytes(output))

            module = known[name]
            if module._compiled_call_impl is not None:
                module._compiled_call_impl = self._around(module, before, after)
            elif OF_COMPILED.isdisjoint(levers):
                module.register_forward_pre_hook(before)
                module.register_forward_hook(after)

    def _around(self, module, before, after):
        """What a module was compiled to, measured."""
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

    def tell(self):
        """As a field of the message."""
        return [
            {"name": name, "kept": max(0, kept), "busy_ns": busy, "output": output}
            for name, (kept, busy, output) in self.blocks.items()
        ]
