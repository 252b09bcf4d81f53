"""What blocks of memory are for, told by the tensors that own them.

A note counts for the whole life of the block that holds the tensor, so it may come late: gradients are noted
when the optimizer is about to use them, its state once it is made. Where memory has run out, and at the end,
everything is gone through once more.
"""

import gc

from . import copies
from . import watch as codes
from .identity import ByIdentity

# An optimizer's state stays where it is once it is made; it is looked at again at these of its steps.
LOOKS = frozenset((1, 2, 3, 8, 64, 512, 4096))
# Of nested arguments, so many values are looked at.
MAX_VALUES = 256


class Notes:
    """Finds tensors' owners and tells the watcher library."""

    def __init__(self, session):
        self.session = session
        torch = session.torch
        self.tensor = torch.Tensor
        self.plain = frozenset((torch.Tensor, torch.nn.Parameter))
        # Whether some parameters are shards, of which whole ones are made for each call.
        self.sharded = False
        self._owner_of = {}
        self._looked = ByIdentity()
        self._roots = ByIdentity()

    def addresses(self, tensor):
        """Where a tensor's memory is, on CUDA devices: one address, or several for one that is made of
        several.
        """
        if type(tensor) in self.plain:
            return (tensor.data_ptr(),) if tensor.is_cuda else ()
        local = getattr(tensor, "_local_tensor", None)
        if local is not None:
            return self.addresses(local)
        flatten = getattr(tensor, "__tensor_flatten__", None)
        try:
            if flatten is not None:
                parts = [getattr(tensor, name) for name in flatten()[0]]
                return tuple(address for part in parts for address in self.addresses(part))
            return (tensor.data_ptr(),) if tensor.is_cuda else ()
        except Exception:
            # Tensors without memory of their own (fake ones, wrappers of transforms) say so by failing.
            return ()

    def tell(self, category, owned):
        """Notes `(tensor, number of its owner's name)` pairs."""
        found, owners = [], []
        for tensor, owner in owned:
            for address in self.addresses(tensor):
                found.append(address)
                owners.append(owner)
        self.session.watch.note(found, category, owners)

    # Modules

    def module(self, root):
        """The outermost module is called: its parameters and buffers, on its first calls."""
        calls = self._roots.put(root, self._roots.get(root, 0) + 1)
        if calls <= 2 or self.sharded:
            self.all_of(root)

    def all_of(self, root):
        """Parameters, their gradients and buffers of a module and all in it."""
        self.all_of_each(root.modules())

    def all_of_each(self, modules):
        """Parameters, their gradients and buffers of modules, without what is in them."""
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
        self.tell(codes.PARAMETERS, parameters)
        self.tell(codes.BUFFERS, buffers)
        self.tell(codes.GRADIENTS, gradients)
        if not self.sharded and any(hasattr(parameter, "_local_tensor") for parameter, _ in parameters):
            self.sharded = True

    def copies(self):
        """Copies of the parameters of all modules that were called outermost."""
        copies.note(self, self._roots.things())

    def owned_like(self, tensors, parameters):
        """Pairs of tensors and the owners of parameters, one for one."""
        owner_of = self._owner_of
        return [(each, owner_of.get(id(like), 0)) for each, like in zip(tensors, parameters, strict=True)]

    def own_parameters(self, module):
        """Whole parameters that were made from shards for this call."""
        try:
            owner = self.session.modules.number_of(module)
            own = [(parameter, owner) for parameter in module._parameters.values() if parameter is not None]
            if own:
                self.tell(codes.PARAMETERS, own)
        except Exception as error:
            self.session.remark("probe-label", error, what="note a module")

    def inputs(self, arguments):
        """CUDA tensors among the outermost module's arguments, unless another module computed them."""
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
        self.tell(codes.INPUTS, found)

    # Optimizers

    def gradients(self, optimizer):
        """What an optimizer is about to use."""
        owner_of = self._owner_of
        self.tell(
            codes.GRADIENTS,
            [
                (parameter.grad, owner_of.get(id(parameter), 0))
                for group in optimizer.param_groups
                for parameter in group["params"]
                if parameter.grad is not None
            ],
        )

    def optimizer_state(self, optimizer, always=False):
        """What an optimizer keeps from step to step."""
        looked = self._looked.put(optimizer, self._looked.get(optimizer, 0) + 1)
        if not always and looked not in LOOKS:
            return
        owner_of, tensor = self._owner_of, self.tensor
        owned = []
        for parameter, state in optimizer.state.items():
            owner = owner_of.get(id(parameter), 0)
            values = state.values() if isinstance(state, dict) else (state,)
            owned.extend((value, owner) for value in values if isinstance(value, tensor))
        self.tell(codes.OPTIMIZER_STATE, owned)

    # Everything

    def everything(self):
        """Goes through all that is known: memory has run out, or this is the end."""
        session = self.session
        # Also those that were never called: a teacher that waits, an average of the weights.
        module_class = session.torch.nn.Module
        self.all_of_each([each for each in gc.get_objects() if issubclass(type(each), module_class)])
        for optimizer in list(session.optimizers):
            owner_of = self._owner_of
            parameters = [
                (parameter, owner_of.get(id(parameter), 0))
                for group in optimizer.param_groups
                for parameter in group["params"]
            ]
            self.tell(codes.PARAMETERS, parameters)
            self.gradients(optimizer)
            self.optimizer_state(optimizer, always=True)
