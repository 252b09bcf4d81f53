"""Attributes blocks of memory to the tensors that own them.

A note is valid for the whole life of a block, so it may come late: gradients are noted before the optimizer
uses them, optimizer state once it is created. After an out-of-memory error, and at the end, everything is
visited once more.
"""

from . import alive, copies, optimizer_state, sparse
from . import watch as codes
from .holdings import plain
from .identity import ByIdentity

# Optimizer state keeps its memory; it is checked again at these steps.
STEPS_TO_CHECK = frozenset((1, 2, 3, 8, 64, 512, 4096))
# Maximum number of values checked in nested arguments.
MAX_VALUES = 256


class Notes:
    """Finds the owners of tensors and reports them to the watcher library."""

    def __init__(self, session):
        self.session = session
        torch = session.torch
        self.tensor = torch.Tensor
        self.plain = frozenset((torch.Tensor, torch.nn.Parameter))
        self.strided = torch.strided
        # Set if some parameters are shards, which are gathered for each call.
        self.sharded = False
        self._owner_of = {}
        self._looked = ByIdentity()
        self._roots = ByIdentity()

    def addresses(self, tensor):
        """Return the CUDA addresses of a tensor's memory: one, or several if it consists of several."""
        if type(tensor) in self.plain:
            if not tensor.is_cuda:
                return ()
            if tensor.layout is self.strided:
                return (tensor.data_ptr(),)
            indices, values = sparse.parts(tensor)
            return tuple(part.data_ptr() for part in (*indices, values))
        local = getattr(tensor, "_local_tensor", None)
        if local is not None:
            return self.addresses(local)
        try:
            if hasattr(tensor, "__tensor_flatten__"):
                return tuple(address for part in plain(tensor) for address in self.addresses(part))
            return (tensor.data_ptr(),) if tensor.is_cuda else ()
        except Exception:
            # Tensors without memory (fake tensors, wrappers of transforms) raise an error.
            return ()

    def note_owners(self, category, owned):
        """Note pairs of a tensor and the number of its owner's name."""
        found, owners = [], []
        for tensor, owner in owned:
            for address in self.addresses(tensor):
                found.append(address)
                owners.append(owner)
        self.session.watch.note(found, category, owners)

    # Modules

    def module(self, root):
        """Note the parameters and buffers of an outermost module, on its first calls."""
        calls = self._roots.store(root, self._roots.get(root, 0) + 1)
        if calls <= 2 or self.sharded:
            self.all_of(root)

    def all_of(self, root):
        """Note parameters, gradients and buffers of a module and its submodules."""
        self.all_of_each(root.modules())

    def all_of_each(self, modules):
        """Note parameters, gradients and buffers of modules without their submodules."""
        number_of, owner_of = self.session.modules.number_of, self._owner_of
        parameters, buffers, gradients = [], [], []
        for module in modules:
            owner = number_of(module)
            # A module whose initialization has not begun has neither.
            for parameter in getattr(module, "_parameters", {}).values():
                if parameter is None:
                    continue
                owner_of[id(parameter)] = owner
                parameters.append((parameter, owner))
                if parameter.is_leaf and parameter.grad is not None:
                    gradients.append((parameter.grad, owner))
            buffers.extend(
                (buffer, owner) for buffer in getattr(module, "_buffers", {}).values() if buffer is not None
            )
        self.note_owners(codes.PARAMETERS, parameters)
        self.note_owners(codes.BUFFERS, buffers)
        self.note_owners(codes.GRADIENTS, gradients)
        if not self.sharded and any(hasattr(parameter, "_local_tensor") for parameter, _ in parameters):
            self.sharded = True

    def roots(self):
        """Return the outermost modules."""
        return self._roots.things()

    def copies(self):
        """Note copies of the parameters of all outermost modules."""
        copies.note(self, self._roots.things())

    def owned_like(self, tensors, parameters):
        """Pair tensors with the owners of parameters."""
        owner_of = self._owner_of
        return [(each, owner_of.get(id(like), 0)) for each, like in zip(tensors, parameters, strict=True)]

    def own_parameters(self, module):
        """Note parameters that were gathered from shards for this call."""
        try:
            owner = self.session.modules.number_of(module)
            own = [(parameter, owner) for parameter in module._parameters.values() if parameter is not None]
            if own:
                self.note_owners(codes.PARAMETERS, own)
        except Exception as error:
            self.session.remark("probe-label", error, what="note a module")

    def inputs(self, arguments):
        """Note CUDA tensors among the outermost module's arguments, unless another module computed them."""
        found, waiting = [], [arguments]
        for _ in range(MAX_VALUES):
            if not waiting:
                break
            value = waiting.pop()
            if isinstance(value, self.tensor):
                if value.grad_fn is None:
                    found.append((value, 0))
            elif isinstance(value, (tuple, list)):
                waiting.extend(value)
            elif isinstance(value, dict):
                waiting.extend(value.values())
        self.note_owners(codes.INPUTS, found)

    # Optimizers

    def gradients(self, optimizer):
        """Note the gradients that an optimizer is about to use."""
        owner_of = self._owner_of
        self.note_owners(
            codes.GRADIENTS,
            [
                (parameter.grad, owner_of.get(id(parameter), 0))
                for group in optimizer.param_groups
                for parameter in group["params"]
                if parameter.grad is not None
            ],
        )

    def optimizer_state(self, optimizer, always=False):
        """Note an optimizer's state."""
        looked = self._looked.store(optimizer, self._looked.get(optimizer, 0) + 1)
        if not always and looked not in STEPS_TO_CHECK:
            return
        owner_of = self._owner_of
        owned = [
            (value, owner_of.get(id(parameter), 0)) for parameter, value in optimizer_state.tensors(optimizer)
        ]
        self.note_owners(codes.OPTIMIZER_STATE, owned)

    # Everything

    def everything(self):
        """Visit everything known, after an out-of-memory error or at the end."""
        session = self.session
        # Includes modules that were never called, such as a teacher or averaged weights.
        self.all_of_each(alive.modules(session.torch.nn.Module))
        for optimizer in list(session.optimizers):
            owner_of = self._owner_of
            parameters = [
                (parameter, owner_of.get(id(parameter), 0))
                for group in optimizer.param_groups
                for parameter in group["params"]
            ]
            self.note_owners(codes.PARAMETERS, parameters)
            self.gradients(optimizer)
            self.optimizer_state(optimizer, always=True)
        copies.note_states(self, self._roots.things())
