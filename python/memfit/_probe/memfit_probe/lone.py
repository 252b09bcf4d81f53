"""One process stands for one rank of many: the others are not there, and nobody waits for them.

Groups of the `nccl` backend are PyTorch's own, on the device's own NCCL: their streams, and what they keep
alive, are as with all ranks there. Only the store in which ranks meet is replaced. Gloo would connect to
every rank, so its groups are PyTorch's fake ones.
"""

import functools
import os

from . import channel, imports

# The store that was made: torch holds on to its C++ half alone, which is nothing without the other.
_kept = []
# What a rank reads that another would have written: as long as an id of NCCL's, which is the only thing that
# is looked at.
NOTHING = bytes(128)


def place():
    """The rank that this process stands for, and of how many; or None."""
    rank, _, size = os.environ.get("MEMFIT_LONE_RANK", "").partition("/")
    return (int(rank), int(size)) if rank.isdigit() and size.isdigit() else None


def arm():
    """Before the script runs, and before torch is imported."""
    known = place()
    if known is None:
        return
    # A launcher has set them for the processes that it started.
    os.environ["RANK"], os.environ["WORLD_SIZE"] = (str(number) for number in known)
    imports.after("torch.distributed.distributed_c10d", functools.partial(_stand_in, *known))


def _stand_in(rank, size, c10d):
    init = c10d.init_process_group

    @functools.wraps(init)
    def init_process_group(backend=None, *_, timeout=None, group_name="", pg_options=None, **others):
        # Where it is, and how it is reached, are the store's and the rank's; a bound device would make groups
        # by splitting others, of which nobody here knows the parts.
        for name in ("init_method", "world_size", "rank", "store", "device_id"):
            others.pop(name, None)
        channel.remark("lone-rank", rank=rank, size=size)
        others |= {"timeout": timeout, "group_name": group_name, "pg_options": pg_options}
        return init(backend, store=_store(c10d), rank=rank, world_size=size, **others)

    c10d.init_process_group = init_process_group
    if hasattr(c10d, "_get_split_source"):
        c10d._get_split_source = lambda *_: None
    if hasattr(c10d, "split_group"):
        c10d.split_group = _split(c10d, rank)
    if hasattr(c10d, "ProcessGroupGloo"):
        c10d.ProcessGroupGloo = _fake()
    # What other ranks would say is left as the caller has it.
    for name, source in (("broadcast_object_list", 1), ("scatter_object_list", 2), ("recv_object_list", 1)):
        if hasattr(c10d, name):
            setattr(c10d, name, _unless_another_speaks(getattr(c10d, name), source, rank))
    if hasattr(c10d, "monitored_barrier"):
        c10d.monitored_barrier = lambda *args, **kwargs: None


def _unless_another_speaks(function, position, rank):
    """A function of objects does what it does where this rank is the source, and else nothing."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        source = kwargs.get("src", args[position] if len(args) > position else 0)
        return function(*args, **kwargs) if source == rank else source

    return call


def _split(c10d, rank):
    """Parts of a group are made as groups of their own: NCCL's splitting would ask every rank which part it
    takes.
    """

    def split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None, **_):
        ranks = c10d.get_process_group_ranks(parent_pg or c10d.group.WORLD)
        parts = [[ranks[index] for index in part] for part in split_ranks or ()]
        mine = next((part for part in parts if rank in part), None)
        if mine is None:
            return c10d.GroupMember.NON_GROUP_MEMBER
        return c10d.new_group(mine, timeout=timeout, pg_options=pg_options, group_desc=group_desc)

    return split_group


def _fake():
    class Gloo:
        """In place of Gloo's groups."""

        def __new__(cls, store, rank, size, *_, **__):
            from torch._C._distributed_c10d import FakeProcessGroup

            make = getattr(FakeProcessGroup, "_create_internal", FakeProcessGroup)
            try:
                return make(rank, size, FakeProcessGroup.Options())
            except (AttributeError, TypeError):  # Older releases take no options.
                return make(rank, size)

    return Gloo


def _store(c10d):
    class LoneStore(c10d.Store):
        """A store in which nobody else writes, and nobody is waited for."""

        def __init__(self):
            super().__init__()
            self.values = {}

        def set(self, key, value):
            self.values[key] = _bytes(value)

        def get(self, key):
            return self.values.get(key, NOTHING)

        def add(self, key, amount):
            total = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(total).encode()
            return total

        def compare_set(self, key, expected, desired):
            # As PyTorch's own: what is not there is set where nothing was expected.
            if self.values.get(key, b"") == _bytes(expected):
                self.set(key, desired)
            return self.values.get(key, _bytes(expected))

        def check(self, keys):
            return all(key in self.values for key in keys)

        def wait(self, keys, timeout=None):
            pass

        def delete_key(self, key):
            return self.values.pop(key, None) is not None

        def num_keys(self):
            return len(self.values)

        # What torch looks these two up by from its C++ side.
        deleteKey = delete_key  # noqa: N815
        getNumKeys = num_keys  # noqa: N815

        def multi_get(self, keys):
            return [self.get(key) for key in keys]

        def multi_set(self, keys, values):
            for key, value in zip(keys, values, strict=True):
                self.set(key, value)

        def append(self, key, value):
            self.set(key, self.values.get(key, b"") + _bytes(value))

        def has_extended_api(self):
            return True

        def set_timeout(self, timeout):
            pass

        def clone(self):
            return self

    store = LoneStore()
    _kept.append(store)
    return store


def _bytes(value):
    return value.encode() if isinstance(value, str) else bytes(value)
