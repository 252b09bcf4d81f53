//! Number of DataLoader workers and prefetched batches.

use crate::{Declaration, Docs, Label, Stage};

pub(super) const LEVER: Declaration = Declaration {
    brief: "DataLoader workers, prefetching and pinned memory",
    docs: Docs::new(
        "`workers=4,prefetch=2,pin=true`",
        "DataLoader workers, prefetching and pinned memory, through `step.over(loader)`",
    ),
    ..Declaration::new("loader-workers", Stage::Data, Label::Exact)
};
