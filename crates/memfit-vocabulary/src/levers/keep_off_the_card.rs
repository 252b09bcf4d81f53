//! What is kept over steps is kept without its graph, and not on the card.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("keep-off-the-card", Label::Exact);
