//! Tensors that are collected over steps are detached and moved off the GPU.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("keep-off-the-card", Label::Exact);
