"""Recognises the tests of `assert` statements, which hold in a correct script."""

import dis
import functools

# Names of the instruction that begins to raise an `AssertionError`, and of its argument from Python 3.14 on.
RAISES = ("LOAD_ASSERTION_ERROR",)
CONSTANT = "LOAD_COMMON_CONSTANT"
# Instructions between a value, the jump that tests it, and what follows.
BETWEEN = ("CACHE", "TO_BOOL", "NOT_TAKEN", "EXTENDED_ARG")


@functools.lru_cache(maxsize=1024)
def needed(code, offset):
    """Return the truth value with which the `assert` at this offset holds, or `None` if it is not one."""
    after = [
        each for each in dis.get_instructions(code) if each.offset >= offset and each.opname not in BETWEEN
    ]
    if len(after) < 2 or "POP_JUMP" not in after[0].opname:
        return None
    if not after[0].opname.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    # The value with which it jumps.
    jump = after[0].opname.endswith("IF_TRUE")
    if _raises(after[1]):
        return jump
    target = next((each for each in after if each.offset >= after[0].argval), None)
    return not jump if target is not None and _raises(target) else None


def _raises(instruction):
    return instruction.opname in RAISES or (
        instruction.opname == CONSTANT and "AssertionError" in instruction.argrepr
    )
