//! The findings of `memfit check` in machine-readable formats: SARIF, GitHub annotations, GitLab and JUnit
//! reports. The text output is in [`crate::text`].

mod github;
mod gitlab;
mod junit;
mod sarif;

pub use github::github;
pub use gitlab::gitlab;
pub use junit::junit;
pub use sarif::{RuleInfo, sarif};
