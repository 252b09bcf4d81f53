//! Loader workers do not use the GPU.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("cpu-only-workers", Label::Exact);
