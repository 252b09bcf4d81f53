//! The findings of `memfit check` in formats for other programs: SARIF, GitHub annotations, GitLab and
//! JUnit reports. The texts for people are in [`crate::text`].

mod github;
mod gitlab;
mod junit;
mod sarif;

pub use github::github;
pub use gitlab::gitlab;
pub use junit::junit;
pub use sarif::{RuleInfo, sarif};
