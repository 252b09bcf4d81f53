//! Tensors that are collected over steps are detached and moved to the host.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("keep-on-cpu", Label::Exact);
