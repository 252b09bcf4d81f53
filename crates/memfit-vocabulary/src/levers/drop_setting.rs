//! An allocator setting is left out.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("drop-setting", Label::Exact);
