"""Tensor parallelism: pairs of linear layers whose matrices are divided over ranks.

The first layer of a pair is divided by columns (outputs), the second by rows (inputs): between the two, each
rank has a slice of the activations, and the sum after the second is the only exchange. In attention and in
gated MLPs, several layers share the first place.

Inside the module that holds a pair, everything is a DTensor, so the code between the layers may be any:
DTensor knows of each operation which slice of the result a rank has, and exchanges what an operation needs
whole. A pair that was chosen badly therefore costs time and memory, but never changes a result.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from .degrees import ParallelError


@dataclass
class Region:
    """A module that computes with DTensors: the holder of a pair of linear layers."""

    name: str
    columns: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)

    @property
    def plan(self) -> dict[str, Any]:
        """The styles of `parallelize_module`. An input that is not a DTensor is whole on each rank."""
        column = {
            name: ColwiseParallel(input_layouts=Replicate(), use_local_output=False) for name in self.columns
        }
        row = {
            name: RowwiseParallel(
                input_layouts=Replicate(), output_layouts=Replicate(), use_local_output=False
            )
            for name in self.rows
        }
        return {**column, **row}


def find_regions(model: nn.Module, blocks: list[str], degree: int) -> list[Region]:
    """Return the regions of a model: those of its own tensor-parallel plan (Transformers), or else those that
    follow from the shapes of the linear layers of its blocks. Raises `ParallelError` if there are none.
    """
    known = dict(model.named_modules())
    own = _plan_of_model(model)
    found: list[Region] = []
    reasons: list[str] = []
    for block in blocks:
        for holder, linears in _holders(block, known[block]):
            region, why = _from_plan(holder, linears, own) if own else _from_shapes(holder, linears)
            why = why or _refusal(known[holder], region, linears, degree)
            if why:
                reasons.append(f"`{holder}`: {why}")
            else:
                found.append(region)
    if not found:
        if not blocks:
            why = "the model has no repeated blocks"
        else:
            why = "; ".join(reasons[:2]) or f"`{blocks[0]}` has no two linear layers in one module"
        raise ParallelError(
            f"tensor parallelism cannot be applied: {why}",
            "set `shard` instead of `tensor` in the plan file's table `[parallel]`, or call `parallelize_module` "
            "in the script",
        )
    return found


def _holders(block: str, module: nn.Module) -> Iterator[tuple[str, dict[str, nn.Linear]]]:
    """Yield the modules of a block that hold linear layers themselves, with these by their names in it."""
    for path, each in module.named_modules():
        linears = {name: child for name, child in each.named_children() if type(child) is nn.Linear}
        if linears:
            yield ".".join(part for part in (block, path) if part), linears


def _from_shapes(holder: str, linears: Mapping[str, nn.Linear]) -> tuple[Region, str | None]:
    """Derive pairs from shapes: layers that take the width of the residual stream, and the layer after them
    that goes back to it.
    """
    region = Region(holder)
    why = "it has one linear layer, and a pair needs two"
    for names in _segments(linears):
        *first, last = names
        width = linears[names[0]].in_features
        odd = next((name for name in first if linears[name].in_features != width), None)
        if not first:
            continue
        if odd is not None:
            why = f"`{odd}` takes {linears[odd].in_features} values and `{first[0]}` {width}, so they do not form a pair"
        elif linears[last].out_features != width:
            why = f"`{last}` returns {linears[last].out_features} values, and `{first[0]}` takes {width}"
        elif all(linears[name].out_features != linears[last].in_features for name in first):
            why = (
                f"`{last}` takes {linears[last].in_features} values, and no layer before it returns as many "
                "(query, key and value in one matrix cannot be divided by heads)"
            )
        else:
            region.columns += first
            region.rows.append(last)
    return region, None if region.rows else why


def _segments(linears: Mapping[str, nn.Linear]) -> Iterator[list[str]]:
    """Divide a module's layers into segments, for example `q, k, v, o | gate, up, down`. A segment ends with
    the layer that returns the width that its first layer takes. If several layers in a row return that width
    (as query, key, value and output do), it ends with the last of them. What remains is the last segment.
    """
    names = list(linears)
    segment: list[str] = []
    for name, after in zip(names, [*names[1:], None], strict=True):
        segment.append(name)
        width = linears[segment[0]].in_features
        ends = linears[name].out_features == width and len(segment) > 1
        if after is None or (ends and linears[after].out_features != width):
            yield segment
            segment = []


def _from_plan(
    holder: str, linears: Mapping[str, nn.Linear], own: Mapping[str, str]
) -> tuple[Region, str | None]:
    """Take a pair from the model's own plan."""
    region = Region(holder)
    for name in linears:
        style = own.get(_wildcard(f"{holder}.{name}"))
        if style == "colwise":
            region.columns.append(name)
        elif style == "rowwise":
            region.rows.append(name)
    if not (region.columns and region.rows):
        return region, "the model's tensor-parallel plan divides no pair of its layers"
    return region, None


def _refusal(module: nn.Module, region: Region, linears: Mapping[str, nn.Linear], degree: int) -> str | None:
    """Return why the matrices of a region cannot be divided evenly."""
    divided = [(name, "out_features") for name in region.columns]
    divided += [(name, "in_features") for name in region.rows]
    for name, dimension in divided:
        size = getattr(linears[name], dimension)
        if size % degree:
            return f"`{name}` has {dimension}={size}, which {degree} ranks cannot divide equally"
    if any(isinstance(each, nn.MultiheadAttention) for each in module.modules()):
        return "it contains `nn.MultiheadAttention`, which keeps query, key and value in one matrix"
    return None


def _plan_of_model(model: nn.Module) -> dict[str, str]:
    """Return the tensor-parallel plan that a Transformers model brings along, by wildcard names."""
    plan = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None)
    return dict(plan) if isinstance(plan, Mapping) else {}


def _wildcard(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def divide(model: nn.Module, regions: list[Region], mesh: DeviceMesh) -> None:
    """Divide the matrices of all regions over the ranks of a mesh."""
    shared = _shared_parameters(model)
    known = dict(model.named_modules())
    for region in regions:
        module = known[region.name]
        tied = next((name for name, each in module.named_parameters() if each in shared), None)
        if tied is not None:
            raise ParallelError(
                f"tensor parallelism cannot be applied: `{region.name}.{tied}` is shared with another layer"
            )
    for region in regions:
        parallelize_module(known[region.name], mesh, region.plan)
    names = {region.name for region in regions}
    for region in regions:
        parts = region.name.split(".")
        if any(".".join(parts[:length]) in names for length in range(len(parts))):
            # It lies in another region.
            continue
        module = known[region.name]
        # Parameters that are not divided are the same on all ranks, and take part in DTensor's operations.
        distribute_module(module, mesh)
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(complete)
        module.register_forward_pre_hook(_enter(mesh), with_kwargs=True)
        module.register_forward_hook(_leave)
        if mesh.device_type == "cpu":
            _use_math_attention(module)
    _treat_tensors_as_replicated()


def _shared_parameters(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters that have several names."""
    seen: set[nn.Parameter] = set()
    shared: set[nn.Parameter] = set()
    for _, parameter in model.named_parameters(remove_duplicate=False):
        (shared if parameter in seen else seen).add(parameter)
    return shared


def _treat_tensors_as_replicated() -> None:
    """Let DTensor take plain tensors (masks, positions, rotary tables) as replicated, also in the backward
    pass: all ranks of a group see the same samples.
    """
    DTensor._op_dispatcher._allow_implicit_replication = True


def _use_math_attention(module: nn.Module) -> None:
    """Compute attention from single operations: DTensor knows the GPUs' fused kernels, but not the CPU's."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    inner = module.forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return inner(*args, **kwargs)

    module.forward = forward


def _enter(mesh: DeviceMesh) -> Any:
    replicated = [Replicate()]

    def enter(_module: nn.Module, args: Any, kwargs: Any) -> Any:
        def convert(value: Any) -> Any:
            if (
                isinstance(value, torch.Tensor)
                and not isinstance(value, DTensor)
                and value.is_floating_point()
            ):
                return DTensor.from_local(value, mesh, replicated, run_check=False)
            return value

        return _map(convert, args), _map(convert, kwargs)

    return enter


def _leave(_module: nn.Module, _args: Any, output: Any) -> Any:
    def convert(value: Any) -> Any:
        if not isinstance(value, DTensor):
            return value
        whole = [Replicate()] * value.device_mesh.ndim
        return value.redistribute(placements=whole).to_local(grad_placements=whole)

    return _map(convert, output)


def _map(function: Any, value: Any) -> Any:
    """Apply a function to the tensors of nested tuples, lists and dictionaries; others are unchanged."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if type(value) in (tuple, list):
        return type(value)(_map(function, each) for each in value)
    if isinstance(value, dict):
        for key in value:
            value[key] = _map(function, value[key])
    return value


def complete(parameter: torch.Tensor) -> None:
    """Give a gradient the placements of its parameter. For a replicated parameter, each rank's gradient may
    be only a part of the sum.
    """
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)


__all__ = ["Region", "Shard", "complete", "divide", "find_regions"]
