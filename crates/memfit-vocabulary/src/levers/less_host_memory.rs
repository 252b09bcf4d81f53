//! Data and weights that are read as they are needed.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("less-host-memory", Label::Exact);
