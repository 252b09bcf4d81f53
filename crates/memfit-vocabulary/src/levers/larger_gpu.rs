//! A GPU with more memory.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("larger-gpu", Label::Exact);
