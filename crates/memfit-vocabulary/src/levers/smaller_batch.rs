//! Fewer samples in each step.

use crate::{Declaration, Harm, Label};

pub(super) const LEVER: Declaration =
    Declaration { harm: Harm::Rule, ..Declaration::advice("smaller-batch", Label::ChangesTraining) };
