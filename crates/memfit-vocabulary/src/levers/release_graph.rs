//! The graph is released after the backward pass.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("release-graph", Label::Exact);
