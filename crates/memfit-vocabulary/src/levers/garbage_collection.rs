//! Idle cached memory is given back.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("garbage-collection", Label::Exact);
