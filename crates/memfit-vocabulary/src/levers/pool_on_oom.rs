//! A memory pool lends its free memory to requests that would fail.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("pool-on-oom", Label::Exact);
