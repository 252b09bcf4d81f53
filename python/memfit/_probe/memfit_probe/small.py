"""Computes small tensors that follow from uploaded data on the host as well.

The virtual GPU runs no kernels. If all inputs of an operator on the GPU are small and known, PyTorch's CPU
kernel runs on copies of them, and the result is reported to the device. So sizes that a script computes from
lengths, labels and masks are exact, whatever the operator. Results of operators that are not covered here
stay unknown, which is safe.

Scripts that compile are left alone from there on, because the compiler inspects the functions themselves.
"""

import contextlib
import functools
import sys
import threading

from . import device, groups, imports, sequences

# Maximum number of elements of a tensor that is followed: integers, and other types.
MAX_INTEGERS = 1 << 16
MAX_OTHERS = 1 << 12
# The most frequent operators of networks. The device follows their effect on small tensors, or it never
# matters.
BUSY = frozenset(
    [
        "add",
        "add_",
        "sub",
        "sub_",
        "mul",
        "mul_",
        "div",
        "div_",
        "addcmul",
        "addcmul_",
        "addcdiv",
        "addcdiv_",
        "lerp",
        "lerp_",
        "matmul",
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "addbmm",
        "einsum",
        "conv1d",
        "conv2d",
        "conv3d",
        "convolution",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "batch_norm",
        "layer_norm",
        "group_norm",
        "instance_norm",
        "rms_norm",
        "relu",
        "relu_",
        "sigmoid",
        "tanh",
        "softmax",
        "log_softmax",
        "embedding",
        "embedding_bag",
        "scaled_dot_product_attention",
        "cross_entropy_loss",
        "nll_loss",
        "clone",
        "contiguous",
        "copy_",
        "to",
        "type_as",
        "detach",
        "detach_",
        "requires_grad_",
        "zero_",
        "fill_",
        "cuda",
        "cpu",
        "float",
        "double",
        "half",
        "bfloat16",
        "long",
        "int",
        "bool",
        "short",
        "char",
        "backward",
        "record_stream",
        "set_",
        "resize_",
        "resize_as_",
        "pin_memory",
        "item",
        "tolist",
        "is_nonzero",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
        "max_pool2d",
        "avg_pool2d",
        "adaptive_avg_pool2d",
        "rsqrt",
        "mean",
        "cat",
        "stack",
    ]
)
# Operators with random or uninitialised results.
DRAWN = ("rand", "bernoulli", "multinomial", "normal", "poisson", "exponential", "geometric", "cauchy")
DRAWN += ("uniform", "dropout", "rrelu", "binomial", "dirichlet", "gamma", "empty", "new_", "resize")
# Python operators, and functions without an operator of the same name.
OPERATORS = ("__lshift__", "__rshift__", "__pow__", "__rpow__", "__and__", "__or__", "__xor__", "__mod__")
OPERATORS += ("__floordiv__", "__rfloordiv__")
FUNCTIONS = ("unique", "unique_consecutive", "cartesian_prod", "combinations", "block_diag", "meshgrid")
# Operators whose result has a computed size.
SIZED = frozenset(("nonzero", "argwhere", "masked_select", "where", "unique", "unique_consecutive"))
UNIQUE = ("unique", "unique_consecutive")
# Position of `dim` among the arguments of `unique`.
UNIQUE_DIM = 4
# Arguments that set where the result is created, or its source of randomness.
OTHER_ARGUMENTS = frozenset(("device", "generator", "out"))


def arm(session):
    """Activate it when the script uses CUDA, until it compiles."""
    known = device.find()
    if known is not None:
        groups.arm(session, known)
        small = Small(session, known)
        session.torch.cuda._lazy_call(small.arm)


class Small:
    """The operators that are followed."""

    def __init__(self, session, known):
        self.session = session
        self.torch = session.torch
        self.known = known
        self.under_way = threading.local()
        self.replaced = []
        self.left = False

    def arm(self):
        self._begin()
        # The compiler caches functions by identity.
        imports.around("torch._dynamo", self._pause, self._resume)
        imports.before_compiling(self.leave)

    def _begin(self):
        torch = self.torch
        functions = torch._C._VariableFunctions
        for name in {*dir(functions), *FUNCTIONS}:
            if hasattr(torch, name) and (name in FUNCTIONS or self._is_followed(name)):
                self._replace(torch, name)
        for name in {*dir(torch._C.TensorBase), *OPERATORS}:
            # Attributes are not operators.
            if callable(getattr(torch.Tensor, name)) and (name in OPERATORS or self._is_followed(name)):
                self._replace(torch.Tensor, name)
        self._replace_indexing()
        self._forget_functions()

    def _replace(self, owner, name):
        original = getattr(owner, name)
        self.replaced.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, self._following(name, original))

    def _replace_indexing(self):
        """Follow indexing by tensors, which copies; other indexing returns a view."""
        if not sequences.avoidable():
            return
        tensor, original = self.torch.Tensor, self.torch.Tensor.__getitem__
        following = self._following("__getitem__", original)

        @functools.wraps(original)
        def call(self, index):
            kind = type(index)
            if kind is tensor or (kind is tuple and any(type(each) is tensor for each in index)):
                return following(self, index)
            return original(self, index)

        self.replaced.append((tensor, "__getitem__", vars(tensor).get("__getitem__")))
        tensor.__getitem__ = call
        sequences.avoid(tensor)
        if "__init_subclass__" not in vars(tensor):
            self.replaced.append((tensor, "__init_subclass__", None))
            tensor.__init_subclass__ = sequences.avoiding(tensor)

    def _is_followed(self, name):
        """Return `True` if an operator of this name creates new tensors from others, deterministically."""
        if name.startswith("_") or name in BUSY or any(part in name for part in DRAWN):
            return False
        for schema in self.torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
            makes = any("Tensor" in str(returned.type) for returned in schema.returns)
            views = any(
                returned.alias_info and not returned.alias_info.is_write for returned in schema.returns
            )
            reads = any("Tensor" in str(each.type) and not each.kwarg_only for each in schema.arguments)
            if makes and reads and not views:
                return True
        return False

    def leave(self):
        """Restore all functions."""
        self.left = True
        self._pause()

    def _resume(self):
        if not self.left:
            self._begin()

    def _pause(self):
        for owner, name, original in self.replaced:
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self.replaced.clear()
        if sequences.avoidable():
            sequences.avoid(self.torch.Tensor)
        self._forget_functions()

    def _forget_functions(self):
        """Clear the caches in which TorchScript and Dynamo find operators by function identity."""
        with contextlib.suppress(AttributeError):
            self.torch.jit._builtins._builtin_table = None
        rules = sys.modules.get("torch._dynamo.trace_rules")
        for kept in list(vars(rules).values()) if rules is not None else ():
            if hasattr(kept, "cache_clear"):
                kept.cache_clear()
            elif hasattr(kept, "function_ids"):
                kept.function_ids = None

    def _following(self, name, original):
        tensor, under_way, follow = self.torch.Tensor, self.under_way, self._follow

        @functools.wraps(original)
        def call(*args, **kwargs):
            for first in args:
                if type(first) in (list, tuple) and first:
                    first = first[0]
                if type(first) is tensor:
                    break
            else:
                return original(*args, **kwargs)
            if not first.is_cuda or self.left or hasattr(under_way, "name"):
                return original(*args, **kwargs)
            if first.numel() <= MAX_INTEGERS:
                return follow(name, original, args, kwargs)
            return (
                self._search(original, first, args, kwargs) if name == "unique" else original(*args, **kwargs)
            )

        return call

    def _search(self, original, tensor, args, kwargs):
        """Run an operator that finds the different elements of a large tensor. Integers whose least and
        greatest are known have no more than lie between them.
        """
        is_integer = not tensor.is_floating_point() and not tensor.is_complex()
        # With a dimension, rows are compared.
        is_by_element = kwargs.get("dim") is None and len(args) < UNIQUE_DIM
        if is_integer and is_by_element and not self.session.is_compiling():
            size = tensor.element_size()
            self.known.search(tensor.data_ptr(), device.extent(tensor) * size, size)
        try:
            return original(*args, **kwargs)
        finally:
            self.known.search(0, 0, 0)

    def _follow(self, name, original, args, kwargs):
        """Run an operator, and report its result to the device if it can be computed."""
        known, under_way = self.known, self.under_way
        under_way.name = name
        try:
            expected = None
            twins = self._twins(args, kwargs)
            size = self._repeats(args, kwargs) if name == "repeat_interleave" else None
            if twins is not None and name in SIZED:
                expected = self._compute(original, twins)
                size = self._size(expected, args, kwargs)
            known.expect(-1 if size is None else size)
            try:
                result = original(*args, **kwargs)
            finally:
                known.expect(-1)
            if expected is None and twins is not None and self._is_short(result):
                expected = self._compute(original, twins)
        finally:
            del under_way.name
        if twins is None and name in UNIQUE:
            groups.mark(result)
        if expected is not None and not self._tell(result, expected):
            # The result on the GPU has another shape, so any use of it is a guess.
            known.assumed(b"unknown-integer")
        return result

    # On the host

    def _compute(self, original, twins):
        """Run the operator on the host; None if the host's kernel refuses it."""
        try:
            with self.torch.no_grad():
                return original(*twins[0], **twins[1])
        except Exception:
            return None

    def _twins(self, args, kwargs):
        """Return copies of the arguments on the host, or None if they are unknown."""
        torch = self.torch
        if (
            self.session.is_compiling()
            or not OTHER_ARGUMENTS.isdisjoint(kwargs)
            or torch._C._get_tracing_state() is not None
            or torch._C._len_torch_dispatch_stack()
        ):
            return None
        try:
            twins = self._twin(args), {key: self._twin(each) for key, each in kwargs.items()}
        except LookupError:
            return None
        except Exception as error:
            self.session.remark("probe-failed", error, where="while computing a small tensor")
            return None
        return None if torch.cuda.is_current_stream_capturing() else twins

    def _twin(self, value):
        """Return a copy of a value on the host. Raises LookupError if it is unknown."""
        torch = self.torch
        if isinstance(value, (list, tuple)):
            made = [self._twin(each) for each in value]
            return made if type(value) is list else tuple(made)
        if not isinstance(value, torch.Tensor):
            return value
        if type(value) is not torch.Tensor or torch._C._functorch.is_functorch_wrapped_tensor(value):
            raise LookupError
        if not value.is_cuda:
            return value.detach().clone()
        if not self._is_small(value) or value.requires_grad:
            raise LookupError
        if value.numel() == 0:
            return torch.empty(value.shape, dtype=value.dtype, device="cpu")
        extent = device.extent(value)
        if extent > 4 * MAX_INTEGERS:
            raise LookupError
        content = torch.empty(extent, dtype=value.dtype, device="cpu")
        if not self.known.contents(value.data_ptr(), content.nbytes, content.data_ptr()):
            raise LookupError
        return content.as_strided(value.shape, value.stride())

    def _is_small(self, tensor):
        if tensor.layout is not self.torch.strided or tensor.is_conj() or tensor.is_neg():
            return False
        integers = not (tensor.is_floating_point() or tensor.is_complex())
        return tensor.numel() <= (MAX_INTEGERS if integers else MAX_OTHERS)

    def _size(self, expected, args, kwargs):
        """Return the computed size of this result."""
        if expected is None:
            return None
        first = expected[0] if isinstance(expected, (list, tuple)) else expected
        return first.shape[kwargs.get("dim") or 0] if first.dim() else None

    def _repeats(self, args, kwargs):
        """Return the sum of the repeats, if they are known."""
        repeats = kwargs.get("repeats", args[min(1, len(args) - 1)])
        twins = self._twins((repeats,), {}) if isinstance(repeats, self.torch.Tensor) else None
        return None if twins is None or repeats.numel() < 2 else int(twins[0][0].sum())

    def _is_short(self, result):
        """Return `True` if a result is small enough to compute on the host."""
        if isinstance(result, (list, tuple)):
            return all(map(self._is_short, result))
        return not isinstance(result, self.torch.Tensor) or result.numel() <= MAX_INTEGERS

    # On the GPU

    def _tell(self, result, expected):
        """Report the contents of a result to the device; return False if it has another shape."""
        if isinstance(expected, (list, tuple)):
            same = isinstance(result, (list, tuple)) and len(result) == len(expected)
            return same and all(self._tell(one, other) for one, other in zip(result, expected, strict=True))
        torch = self.torch
        if not isinstance(expected, torch.Tensor):
            return True
        if not isinstance(result, torch.Tensor) or result.shape != expected.shape:
            return False
        if (
            type(result) is torch.Tensor
            and result.is_cuda
            and result.dtype == expected.dtype
            and result.numel() > 0
            and self._is_small(result)
        ):
            self._write(result, expected)
        return True

    def _write(self, result, expected):
        torch = self.torch
        with torch.no_grad():
            if result.is_contiguous():
                content = expected.detach().resolve_conj().resolve_neg().contiguous()
            else:
                if device.extent(result) != result.numel():
                    return
                content = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device="cpu")
                content.copy_(expected.detach())
        self.known.computed(result.data_ptr(), result.nbytes, content.data_ptr())
