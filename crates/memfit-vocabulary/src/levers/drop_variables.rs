//! Variables are deleted before the next step.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("drop-variables", Label::Exact);
