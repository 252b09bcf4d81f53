//! A computation whose whole result is too large is done in parts, each reduced before the next.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("by-parts", Label::Rounding);
