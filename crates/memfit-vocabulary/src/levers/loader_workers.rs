//! How many processes load, and how far ahead.

use crate::{Declaration, Docs, Label, Stage};

pub(super) const LEVER: Declaration = Declaration {
    brief: "the loader's processes, and how far ahead they load",
    docs: Docs::new("`workers=4,prefetch=2,pin=true`", "the loader's processes, through `step.over(loader)`"),
    ..Declaration::new("loader-workers", Stage::Data, Label::Exact)
};
