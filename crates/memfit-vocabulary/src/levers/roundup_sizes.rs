//! Sizes are rounded up so that freed blocks can be reused.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("roundup-sizes", Label::Exact);
