//! The allocator's settings as a whole.

use crate::{Declaration, Docs, Label, Stage};

pub(super) const LEVER: Declaration = Declaration {
    brief: "settings of the caching allocator",
    docs: Docs::new(
        "text",
        "sets `PYTORCH_ALLOC_CONF`, and `PYTORCH_CUDA_ALLOC_CONF` for PyTorch before 2.9, in the environment; warns if CUDA is already initialised",
    ),
    ..Declaration::new("allocator-settings", Stage::Environment, Label::Exact)
};
