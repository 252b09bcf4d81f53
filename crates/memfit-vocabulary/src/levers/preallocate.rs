//! A growing tensor is allocated once in its final size.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("preallocate", Label::Exact);
