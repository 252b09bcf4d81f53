//! No graph is recorded if no backward pass follows.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("no-grad", Label::Exact);
