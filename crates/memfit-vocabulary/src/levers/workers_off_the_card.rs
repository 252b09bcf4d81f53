//! Loader workers do not use the GPU.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("workers-off-the-card", Label::Exact);
