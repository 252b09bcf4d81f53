//! Sizes are rounded so that freed blocks can be used again.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("roundup-sizes", Label::Exact);
