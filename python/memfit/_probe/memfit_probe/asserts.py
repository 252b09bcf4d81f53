"""Recognises conditions that hold in a correct script: of `assert` statements, those before an error that the
script or a library raises, and some of libraries.
"""

import dis
import functools
import linecache

# Conditions of libraries that hold while a training makes progress: the end of the file's path, and the
# line. L-BFGS keeps a step and a change of the gradient for each time that the first one holds; its line
# search ends where the second one does. An adaptive solver goes on where a step's error is small.
PROGRESS = (
    ("/torch/optim/lbfgs.py", "if ys > 1e-10:"),
    ("/torch/optim/lbfgs.py", "if abs(gtd_new) <= -c2 * gtd:"),
    ("/torchdiffeq/_impl/rk_common.py", "if accept_step:"),
)

# Names of the instruction that begins to raise an `AssertionError`, and of its argument from Python 3.14 on.
RAISES = ("LOAD_ASSERTION_ERROR",)
CONSTANT = "LOAD_COMMON_CONSTANT"
# Instructions between a value, the jump that tests it, and what follows. A call that runs often is made by
# the instruction before `CALL` in Python 3.11.
BETWEEN = ("CACHE", "TO_BOOL", "NOT_TAKEN", "EXTENDED_ARG", "PRECALL")
# Functions that test what they are given, and return the truth.
TESTS = ("all", "any", "bool", "isfinite", "isinf", "isnan")
# The instruction that raises an exception, ends of the names of those that tell an error, and beginnings of
# the names of instructions that leave the block before.
RAISE, ERRORS = "RAISE_VARARGS", ("Error", "Exception")
LEAVES = ("POP_JUMP", "JUMP", "RETURN", "FOR_ITER", "SEND", "YIELD", "END_FOR")
# Instructions of a block that are looked through for its `raise`.
BLOCK = 200
# Calls through which the truth of a value is returned.
RETURNS = 4
# Beginnings of the names of instructions that end a statement, or a part of a condition.
ENDS = ("STORE", "POP_TOP", "POP_JUMP", "RETURN", "RAISE", "RESUME")


# Settings of L-BFGS that end a step once nothing changes any more, as it seems where every loss is 0.
TOLERANCES = ("tolerance_grad", "tolerance_change")


def make_progress(torch):
    """Let L-BFGS take all iterations of a step, as it does in a training that makes progress."""
    original = torch.optim.LBFGS.step

    @functools.wraps(original)
    def step(self, closure):
        group = self.param_groups[0]
        kept = {name: group[name] for name in TOLERANCES}
        group.update(dict.fromkeys(TOLERANCES, -1.0))
        try:
            return original(self, closure)
        finally:
            group.update(kept)

    torch.optim.LBFGS.step = step


def holds(frame):
    """Return the truth value of the condition that a frame evaluates in a correct script, or `None`."""
    path = frame.f_code.co_filename
    for end, line in PROGRESS:
        if path.endswith(end) and linecache.getline(path, frame.f_lineno).strip() == line:
            return True
    truth = needed(frame.f_code, frame.f_lasti)
    for _ in range(RETURNS):
        if truth is not RETURNED or frame.f_back is None:
            break
        # A function returns the truth: its caller may test it.
        frame = frame.f_back
        truth = needed(frame.f_code, frame.f_lasti, is_caller=True)
    return None if truth is RETURNED else truth


# Stands for the truth of a value that a function returns as it is.
RETURNED = "returned"


@functools.lru_cache(maxsize=1024)
def needed(code, offset, is_caller=False):
    """Return the truth value with which the `assert` at this offset holds, or with which no error is raised;
    `RETURNED` if a function returns it, and `None` otherwise. The frame of a caller is at its call.
    """
    whole = [each for each in dis.get_instructions(code) if each.opname not in BETWEEN]
    after = [each for each in whole if each.offset >= offset]
    before = whole[: len(whole) - len(after)]
    if after and after[0].opname.startswith("CALL") and (is_caller or _tests(before)):
        # `assert all(… for …)`: the function tests each element, and the jump tests its result.
        after = after[1:]
    if after and after[0].opname == "RETURN_VALUE":
        return RETURNED
    if len(after) < 2 or "POP_JUMP" not in after[0].opname:
        return None
    if not after[0].opname.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    # The value with which it jumps.
    jump = after[0].opname.endswith("IF_TRUE")
    target = [each for each in after if each.offset >= after[0].argval]
    for following, truth in ((after[1:], jump), (target, not jump)):
        if following and (_raises(following[0]) or _raises_error(following)):
            return truth
    return None


def _raises_error(block):
    """Return `True` if a block of instructions ends with a `raise` of what is named as an error."""
    named = False
    for each in block[:BLOCK]:
        if each.opname == RAISE:
            return named
        if each.opname.startswith(LEAVES):
            return False
        if each.opname.startswith(("STORE", "POP_TOP")):
            # Another statement begins.
            named = False
        elif each.opname.startswith("LOAD_"):
            named |= isinstance(each.argval, str) and each.argval.endswith(ERRORS)
    return False


def _tests(before):
    """Return `True` if the instructions before a call load a function that tests truth."""
    for each in reversed(before):
        if each.opname.startswith(ENDS):
            return False
        if each.opname.startswith("LOAD_") and each.argval in TESTS:
            return True
    return False


def _raises(instruction):
    return instruction.opname in RAISES or (
        instruction.opname == CONSTANT and "AssertionError" in instruction.argrepr
    )
