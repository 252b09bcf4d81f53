//! Examples whose findings a rewrite changes, with the reason. The numbers are those of the examples.

/// Why a finding does not hold.
pub(crate) type Exception = (&'static str, &'static str, usize, &'static str);

/// The rewrite takes from the example what the finding is about.
const OTHER_CODE: &str = "the rewrite leaves out the loss function, or the literal that the finding is about";
/// A function or method may be called from elsewhere, and in another order.
const CALLED_ELSEWHERE: &str = "what a function or method does is not tied to the loop that calls it";
/// Only names tell what something is.
const ONLY_NAMES: &str = "only the name tells what the value is";
/// Values that are not followed so far.
const NOT_FOLLOWED: &str = "the value is not followed through this many steps";

/// Findings that are missed after a rewrite.
pub(crate) const MISSED: &[Exception] = &[
    ("autocast-without-scaler", "in a class", 1, CALLED_ELSEWHERE),
    ("autocast-without-scaler", "loss from a function", 1, CALLED_ELSEWHERE),
    ("backward-on-no-grad-loss", "defaultdict of lists", 1, NOT_FOLLOWED),
    ("backward-on-no-grad-loss", "loss from a function", 1, NOT_FOLLOWED),
    ("backward-on-no-grad-loss", "outputs[\"loss\"]", 1, OTHER_CODE),
    ("backward-on-no-grad-loss", "temporaries", 1, NOT_FOLLOWED),
    ("deepcopy-model-on-device", "list of tuples", 1, NOT_FOLLOWED),
    ("device-tensor-in-container", "list of tuples", 1, NOT_FOLLOWED),
    ("device-tensor-in-container", "temporaries", 1, NOT_FOLLOWED),
    ("eval-without-no-grad", "in main", 1, CALLED_ELSEWHERE),
    ("float-before-transfer", "numbers of a dictionary", 1, OTHER_CODE),
    ("float-before-transfer", "numbers of args", 1, OTHER_CODE),
    ("float-before-transfer", "temporaries", 2, NOT_FOLLOWED),
    ("gradients-for-nothing", "loss from a function", 1, CALLED_ELSEWHERE),
    ("gradients-for-nothing", "named tqdm", 1, OTHER_CODE),
    ("gradients-for-nothing", "outputs[\"loss\"]", 1, NOT_FOLLOWED),
    ("gradients-for-nothing", "sum in a defaultdict", 2, NOT_FOLLOWED),
    ("gradients-for-nothing", "temporaries", 1, NOT_FOLLOWED),
    ("loss-parameters-untrained", "loss with logits", 1, OTHER_CODE),
    ("loss-parameters-untrained", "outputs.loss", 1, OTHER_CODE),
    ("loss-parameters-untrained", "outputs[\"loss\"]", 1, OTHER_CODE),
    ("optimizer-before-replacement", "temporaries", 1, NOT_FOLLOWED),
    ("recurrent-state-not-detached", "list of tuples", 1, OTHER_CODE),
    ("softmax-before-cross-entropy", "annotations", 1, NOT_FOLLOWED),
    ("stale-window-index", "in a class", 1, CALLED_ELSEWHERE),
    ("stale-window-index", "sum in a defaultdict", 1, NOT_FOLLOWED),
    ("stale-window-index", "sum in a dictionary", 1, NOT_FOLLOWED),
    ("state-dict-alias", "temporaries", 1, NOT_FOLLOWED),
    ("tensor-running-loss", "annotations", 1, NOT_FOLLOWED),
    ("tensor-running-loss", "every few steps", 1, OTHER_CODE),
    ("tensor-running-loss", "list of tuples", 1, NOT_FOLLOWED),
    ("tensor-running-loss", "loss from a function", 2, CALLED_ELSEWHERE),
    ("tensor-running-loss", "loss in a dictionary", 3, NOT_FOLLOWED),
    ("tensor-running-loss", "other attributes", 1, OTHER_CODE),
    ("tensor-running-loss", "other names", 2, ONLY_NAMES),
    ("tensor-running-loss", "step in a function", 1, CALLED_ELSEWHERE),
    ("tensor-running-loss", "temporaries", 3, NOT_FOLLOWED),
    ("unscaled-accumulation", "loss from a function", 2, CALLED_ELSEWHERE),
    ("unscaled-accumulation", "numbers of a dictionary", 1, OTHER_CODE),
    ("unscaled-accumulation", "numbers of args", 1, OTHER_CODE),
    ("zero-grad-inside-window", "loss from a function", 1, CALLED_ELSEWHERE),
];

/// Findings that only a rewrite brings.
pub(crate) const ADDED: &[Exception] = &[
    ("eval-without-no-grad", "in a class", 1, CALLED_ELSEWHERE),
    ("gradients-for-nothing", "loss from a function", 1, CALLED_ELSEWHERE),
    ("gradients-for-nothing", "temporaries", 2, NOT_FOLLOWED),
    ("unscaled-accumulation", "loss with logits", 1, OTHER_CODE),
    ("unscaled-accumulation", "outputs.loss", 1, OTHER_CODE),
    ("unscaled-accumulation", "outputs[\"loss\"]", 1, OTHER_CODE),
    ("zero-grad-to-zero", "keywords", 1, OTHER_CODE),
];

/// Findings that are missed after a function has moved to another file.
pub(crate) const MISSED_IN_FILES: &[Exception] = &[
    ("autocast-without-scaler", "loss in another file", 1, CALLED_ELSEWHERE),
    ("backward-on-no-grad-loss", "loss in another file", 1, NOT_FOLLOWED),
    ("gradients-for-nothing", "loss in another file", 9, CALLED_ELSEWHERE),
    ("late-zero-grad", "loss in another file", 3, CALLED_ELSEWHERE),
    ("loss-parameters-untrained", "loss in another file", 1, CALLED_ELSEWHERE),
    ("reentrant-checkpoint-without-gradients", "loss in another file", 1, CALLED_ELSEWHERE),
    ("scaler-with-bfloat16", "loss in another file", 1, CALLED_ELSEWHERE),
    ("tensor-running-loss", "loss in another file", 2, CALLED_ELSEWHERE),
    ("tensor-running-loss", "step in another file", 1, NOT_FOLLOWED),
    ("unscaled-accumulation", "loss in another file", 2, CALLED_ELSEWHERE),
    ("zero-grad-inside-window", "loss in another file", 2, CALLED_ELSEWHERE),
];

/// Findings that only such a move brings.
pub(crate) const ADDED_IN_FILES: &[Exception] = &[
    ("optimizer-in-loop", "loss in another file", 2, CALLED_ELSEWHERE),
    ("optimizer-in-loop", "step in another file", 1, CALLED_ELSEWHERE),
    ("unscaled-accumulation", "loss in another file", 2, CALLED_ELSEWHERE),
];
