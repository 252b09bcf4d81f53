//! The other program ends first, or runs elsewhere.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("end-other-process", Label::Exact);
