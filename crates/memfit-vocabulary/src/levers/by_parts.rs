//! A computation whose full result is too large is done in chunks, each reduced before the next.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("by-parts", Label::Rounding);
