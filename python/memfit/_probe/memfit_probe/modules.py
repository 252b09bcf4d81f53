"""Attributes memory to modules: scopes in the forward pass, labels of autograd nodes in the backward pass.

Global forward hooks open and close a scope in the watcher library at each module's call. For the backward
pass, the autograd node of a module's output gets a pre-hook that labels its thread. (Full backward hooks
would be simpler, but break models with in-place operations.) Under `torch.compile` the hooks trace to
nothing, so they neither break graphs nor see inside them: memory of a compiled module is labelled with that
module as a whole.
"""

import functools
import sys
import weakref

from . import handles
from . import watch as codes

# Wrapper modules whose names carry no information.
WRAPPERS = frozenset(("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
# Maximum number of tensors in a module's output that get a label.
MAX_OUTPUTS = 8


class Modules:
    """Names of modules, and the hooks that track the running call."""

    def __init__(self, session):
        self.session = session
        self.known = {}
        self.crowded = 10_000
        self.hooks = {}
        self.named_root = None
        self.labelled = None
        self.open = []
        # Prevents subclasses that stand in for other tensors from being materialised by inspection.
        self.as_they_are = session.torch._C.DisableTorchFunctionSubclass

    def forget(self):
        """Reset the state in a forked child: name numbers belong to the parent's log."""
        self.known.clear()
        self.hooks.clear()
        self.open.clear()
        self.named_root = None

    def arm(self):
        torch, watch, notes = self.session.torch, self.session.watch, self.session.notes
        is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
        known, meet, label = self.known, self._meet, self._label
        begins, ends, as_they_are = self._outermost_begins, self._outermost_ends, self.as_they_are
        enter, leave, tensor = watch.enter, watch.exit, torch.Tensor

        def before(module, args):
            if is_compiling():
                return
            entry = known.get(id(module))
            number = entry[1] if entry is not None and entry[0]() is module else meet(module)
            if enter(number) == 0:
                begins(module, args)

        def after(module, args, output):
            if is_compiling():
                return
            if leave() == 0:
                ends(module, output)
            if notes.sharded:
                notes.own_parameters(module)
            if is_grad_enabled():
                if type(output) is tensor:
                    node = output.grad_fn
                    if node is not None:
                        label(node, module)
                elif output is not None:
                    with as_they_are():
                        self._label_all(output, module)

        torch.nn.modules.module.register_module_forward_pre_hook(before)
        torch.nn.modules.module.register_module_forward_hook(after, always_call=True)
        self._arm_compiled(before, after)

    def _arm_compiled(self, before, after):
        """Run the hooks around a module that is compiled in place, because they trace to nothing inside."""
        module_class, is_compiling = self.session.torch.nn.Module, self.session.torch.compiler.is_compiling
        original = module_class.compile

        def around(module, compiled):
            # Has torch's name for this call, by which such a call is found on the stack.
            @functools.wraps(compiled)
            def _call_impl(*args, **kwargs):
                if is_compiling():
                    return compiled(*args, **kwargs)
                before(module, args)
                output = None
                try:
                    output = compiled(*args, **kwargs)
                    return output
                finally:
                    after(module, args, output)

            return _call_impl

        @functools.wraps(original)
        def compile_in_place(module, *args, **kwargs):
            result = original(module, *args, **kwargs)
            module._compiled_call_impl = around(module, module._compiled_call_impl)
            return result

        module_class.compile = compile_in_place

    # Names

    def _meet(self, module):
        """Return the number of a module's name on its first call. On an outermost call, name its
        whole tree.
        """
        try:
            if not self.session.watch.depth():
                self._name_tree(module)
            entry = self.known.get(id(module))
            if entry is None or entry[0]() is not module:
                self._name(module, type(module).__name__)
            return self.known[id(module)][1]
        except Exception as error:
            self.session.remark("probe-label", error, what="name a module")
            return 0

    def _name(self, module, name):
        if len(self.known) >= self.crowded:
            # Some modules exist for one call only, such as DataParallel's replicas.
            for key in [key for key, (module_of, _) in self.known.items() if module_of() is None]:
                del self.known[key]
            self.crowded = max(10_000, 2 * len(self.known))
        number = self.session.text(name)
        self.known[id(module)] = (weakref.ref(module), number)
        return number

    def _name_tree(self, root):
        kind = type(root)
        prefix = ""
        if next(root.children(), None) is not None:
            root_before = self.named_root() if self.named_root is not None else None
            if root_before is None:
                self.named_root = weakref.ref(root)
            else:
                # Two models of one class get the script's names for them.
                prefix = (handles.name_of(root) or kind.__name__) + "."
        named = self.session.torch.nn.Module.named_modules(root)
        for path, module in named:
            entry = self.known.get(id(module))
            if entry is not None and entry[0]() is module:
                continue
            parts = [part for part in path.split(".") if part not in WRAPPERS]
            self._name(module, prefix + ".".join(parts) if parts and parts[0] else _bare_name(module))

    def number_of(self, module):
        """Return the number of a module's name, or 0."""
        entry = self.known.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else 0

    # Outermost calls

    def _outermost_begins(self, module, args):
        session = self.session
        try:
            before = session.watch.current_phase()
            if before == codes.BACKWARD:
                # A checkpoint's recomputation is part of the backward pass, on any thread.
                return
            arguments = (args, _caller_kwargs())
            if next(module.parameters(), None) is None:
                # A loss module: its inputs are targets. A data transform has no parameters either, and begins
                # no forward pass.
                if before == codes.FORWARD:
                    with self.as_they_are():
                        session.notes.inputs(arguments)
                return
            session.watch.phase(codes.FORWARD)
            self.open.append(before)
            session.notes.module(module)
            with self.as_they_are():
                session.notes.inputs(arguments)
                if session.torch.jit.is_tracing():
                    # No pass of a training or an evaluation, and its sizes are tensors.
                    return
                session.passes.called(module, arguments)
                if session.planned is not None:
                    session.planned.saw(arguments)
            session.forward_began(module)
        except Exception as error:
            session.remark("probe-failed", error, where="in a forward pass")

    def _outermost_ends(self, module, output):
        session = self.session
        try:
            if not self.open:
                return
            before = self.open.pop()
            if output is not None and not session.torch.jit.is_tracing():
                session.forward_ended(module, output)
            # With gradients, the loss that follows belongs to the forward pass; within a step (forward pass
            # in a closure) the step continues.
            if not session.torch.is_grad_enabled():
                session.watch.phase(before if before == codes.OPTIMIZER else codes.OTHER)
        except Exception as error:
            session.remark("probe-failed", error, where="in a forward pass")

    # Labels for the backward pass

    def _label(self, node, module):
        number = self.number_of(module)
        if not number:
            return
        try:
            sequence = node._sequence_nr()
            # An enclosing module that returns the same tensor must not replace the label.
            if sequence == self.labelled:
                return
            self.labelled = sequence
            hook = self.hooks.get(number)
            if hook is None:
                hook = self.hooks[number] = self._hook(number)
            node.register_prehook(hook)
        except Exception as error:
            self.session.remark("probe-label", error, what="label a backward node")

    def _hook(self, number):
        set_node = self.session.watch.node

        def hook(_gradients):
            set_node(number)

        return hook

    def _label_all(self, output, module):
        tensor = self.session.torch.Tensor
        left = MAX_OUTPUTS
        waiting = [output]
        while waiting and left:
            value = waiting.pop()
            if isinstance(value, tensor):
                left -= 1
                if value.grad_fn is not None:
                    self._label(value.grad_fn, module)
            elif isinstance(value, (tuple, list)):
                waiting.extend(value[:MAX_OUTPUTS])
            elif isinstance(value, dict):
                waiting.extend(list(value.values())[:MAX_OUTPUTS])


def _bare_name(module):
    """Return the class of a module without a name, looking through wrappers."""
    inner = module
    for _ in range(8):
        within = next((child for name, child in inner.named_children() if name in WRAPPERS), None)
        if within is None:
            break
        inner = within
    return type(inner).__name__


def _caller_kwargs():
    """Return the keyword arguments of the current module call, which torch does not pass to global hooks."""
    frame = sys._getframe(1)
    for _ in range(6):
        if frame is None:
            return None
        if frame.f_code.co_name == "_call_impl":
            return handles.variables(frame).get("kwargs")
        frame = frame.f_back
    return None
