//! The graph is let go after the backward.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("release-graph", Label::Exact);
