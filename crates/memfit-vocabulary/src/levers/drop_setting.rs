//! An allocator setting is removed.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("drop-setting", Label::Exact);
