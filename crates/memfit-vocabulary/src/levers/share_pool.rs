//! One pool for all captured graphs.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("share-pool", Label::Exact);
