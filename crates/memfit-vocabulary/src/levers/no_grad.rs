//! No graph is recorded where no backward comes.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("no-grad", Label::Exact);
