//! Blocks above a size are not split.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("max-split-size", Label::Exact);
