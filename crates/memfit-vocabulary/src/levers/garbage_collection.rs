//! Unused cached memory is released.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("garbage-collection", Label::Exact);
