//! What grows is made once, as large as it will be, and filled.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("preallocate", Label::Exact);
