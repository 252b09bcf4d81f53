"""Attributes parameters that FSDP2 gathers from shards, before a call, in it, or for the backward pass."""

import functools

from . import imports
from . import watch as codes

# Modules that define the parameter group, by version.
HOMES = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.distributed._composable.fsdp._fsdp_param_group",
)


def arm(session):
    """Note the gathered parameters of a group."""
    if session.watch is None:
        return

    def gathers(module):
        group = getattr(module, "FSDPParamGroup", None)
        original = getattr(group, "wait_for_unshard", None)
        if original is None:
            return

        @functools.wraps(original)
        def wait_for_unshard(self, *args, **kwargs):
            result = original(self, *args, **kwargs)
            try:
                note_parameters(session, self)
            except Exception as error:
                session.remark("probe-label", error, what="note gathered parameters")
            return result

        group.wait_for_unshard = wait_for_unshard

    for home in HOMES:
        imports.after(home, gathers)


def note_parameters(session, group):
    """Note the full parameters of a group that FSDP2 has gathered."""
    number_of = session.modules.number_of
    # The buffer of the all-gather, and the parameter that is a view or a copy of it.
    owned = [
        (tensor, number_of(each._module_info.module))
        for each in group.fsdp_params
        for tensor in (*getattr(each, "all_gather_outputs", ()), getattr(each, "_unsharded_param", None))
        if tensor is not None and tensor.untyped_storage().size()
    ]
    session.notes.note_owners(codes.PARAMETERS, owned)
