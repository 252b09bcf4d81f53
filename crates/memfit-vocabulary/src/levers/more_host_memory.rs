//! More memory on the host, or a higher limit of the container or job.

use crate::{Declaration, Label};

pub(super) const LEVER: Declaration = Declaration::advice("more-host-memory", Label::Exact);
