"""What each repeated block of a model keeps for the backward, and how long it takes, as it was measured."""

from . import facts


class Blocks:
    """The blocks that were measured, in the order of their first forwards."""

    def __init__(self, session):
        self.session = session
        self.forget()

    def forget(self):
        """Nothing has been measured yet."""
        self.blocks = {}
        self.marks = {}

    def measure(self, model, names):
        """From now on, at each of their forwards."""
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

            known[name].register_forward_pre_hook(before)
            known[name].register_forward_hook(after)

    def tell(self):
        """As a field of the message."""
        return [
            {"name": name, "kept": max(0, kept), "busy_ns": busy, "output": output}
            for name, (kept, busy, output) in self.blocks.items()
        ]
