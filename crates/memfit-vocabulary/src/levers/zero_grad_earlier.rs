//! Gradients are dropped before the next forward.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("zero-grad-earlier", Label::Exact);
