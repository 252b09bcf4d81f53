//! The allocator's settings as a whole.

use crate::{Declaration, Docs, Label, Stage};

pub(super) const LEVER: Declaration = Declaration {
    docs: Docs::new("text", "the environment; too late once CUDA runs, and said so"),
    ..Declaration::new("allocator-settings", Stage::Environment, Label::Exact)
};
