"""Lets one process represent one rank of many, without waiting for the other ranks, which do not exist.

Groups of the `nccl` backend are PyTorch's own, on the virtual device's NCCL: their streams and memory are as
with all ranks. Only the store in which ranks meet is replaced. Gloo would connect to every rank, so its
groups are PyTorch's fake ones.
"""

import functools
import os
import sys

from . import channel, imports

# Keeps the store alive: torch only references its C++ part, which needs the Python object.
_kept = []
# The value of keys that another rank would have written; as long as an NCCL id, the only one that is checked.
UNWRITTEN = bytes(128)


def place():
    """Return the rank of this process and the number of ranks, or None."""
    rank, _, size = os.environ.get("MEMFIT_LONE_RANK", "").partition("/")
    return (int(rank), int(size)) if rank.isdigit() and size.isdigit() else None


def arm():
    """Activate it before the script runs and torch is imported."""
    known = place()
    if known is None:
        return
    # A launcher has set these for its own processes.
    os.environ["RANK"], os.environ["WORLD_SIZE"] = (str(number) for number in known)
    imports.after("torch.distributed.distributed_c10d", functools.partial(stand_in, *known))


def stand_in(rank, size, c10d, per_machine=None):
    """Replace what would wait for other ranks. `per_machine` places the ranks of each group."""
    before = dict(vars(c10d))
    init = c10d.init_process_group

    @functools.wraps(init)
    def init_process_group(backend=None, *_, timeout=None, group_name="", pg_options=None, **others):
        # The store and the rank replace these; with a bound device, groups would be made by splitting others,
        # and the parts of other ranks are unknown.
        for name in ("init_method", "world_size", "rank", "store", "device_id"):
            others.pop(name, None)
        channel.remark("lone-rank", rank=rank, size=size)
        others |= {"timeout": timeout, "group_name": group_name, "pg_options": pg_options}
        return init(backend, store=_store(c10d, per_machine), rank=rank, world_size=size, **others)

    c10d.init_process_group = init_process_group
    if hasattr(c10d, "_get_split_source"):
        c10d._get_split_source = lambda *_: None
    if hasattr(c10d, "split_group"):
        c10d.split_group = _split(c10d, rank)
    if hasattr(c10d, "ProcessGroupGloo"):
        c10d.ProcessGroupGloo = _fake()
    # Objects from other ranks stay as the caller passed them.
    for name, source in (("broadcast_object_list", 1), ("scatter_object_list", 2), ("recv_object_list", 1)):
        if hasattr(c10d, name):
            setattr(c10d, name, _unless_another_speaks(getattr(c10d, name), source, rank))
    if hasattr(c10d, "monitored_barrier"):
        c10d.monitored_barrier = lambda *args, **kwargs: None
    _replace_imported(c10d, before)


def _replace_imported(c10d, before):
    """Replace the references of modules that were imported earlier."""
    changed = {
        name: value for name, value in vars(c10d).items() if name in before and before[name] is not value
    }
    for path, module in list(sys.modules.items()):
        if module is c10d or not path.startswith("torch.distributed"):
            continue
        for name, value in changed.items():
            if vars(module).get(name) is before[name]:
                setattr(module, name, value)


def _unless_another_speaks(function, position, rank):
    """Run a function on objects only if this rank is the source."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        source = kwargs.get("src", args[position] if len(args) > position else 0)
        return function(*args, **kwargs) if source == rank else source

    return call


def _split(c10d, rank):
    """Create the parts of a group as new groups, since NCCL's split asks every rank for its part."""

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
        """Replaces Gloo's groups."""

        def __new__(cls, store, rank, size, *_, **__):
            from torch._C._distributed_c10d import FakeProcessGroup

            make = getattr(FakeProcessGroup, "_create_internal", FakeProcessGroup)
            try:
                return make(rank, size, FakeProcessGroup.Options())
            except (AttributeError, TypeError):  # Older versions take no options.
                return make(rank, size)

    return Gloo


def _place_group(c10d, key, per_machine):
    """State how many ranks of a group share a machine, for the duration of its collectives: a communicator is
    created right after its id was written to, or read from, the group's part of the store.
    """
    if not per_machine:
        return
    names = str(key).split("/")
    for group, name in list(c10d._world.pg_names.items()):
        if name in names:
            ranks = c10d._world.pg_group_ranks.get(group) or ()
            machine = int(os.environ["RANK"]) // per_machine
            together = sum(1 for rank in ranks if rank // per_machine == machine)
            os.environ["MEMFIT_GROUP_PER_MACHINE"] = str(max(together, 1))
            return


def _store(c10d, per_machine):
    class LoneStore(c10d.Store):
        """A store in which no other rank writes, and which never waits."""

        def __init__(self):
            super().__init__()
            self.values = {}

        def set(self, key, value):
            _place_group(c10d, key, per_machine)
            self.values[key] = _bytes(value)

        def get(self, key):
            _place_group(c10d, key, per_machine)
            return self.values.get(key, UNWRITTEN)

        def add(self, key, amount):
            total = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(total).encode()
            return total

        def compare_set(self, key, expected, desired):
            # Like PyTorch's store: a missing key is set if an empty value was expected.
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

        # Names under which torch's C++ code calls these two.
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
