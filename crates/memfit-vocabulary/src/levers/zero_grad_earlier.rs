//! Gradients are cleared before the next forward pass.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("zero-grad-earlier", Label::Exact);
