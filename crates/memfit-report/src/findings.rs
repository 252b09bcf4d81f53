//! What `memfit check` found, in the forms that other programs read: SARIF, annotations of GitHub, reports of
//! GitLab and JUnit. The forms for people are in [`crate::text`].

mod github;
mod gitlab;
mod junit;
mod sarif;

pub use github::github;
pub use gitlab::gitlab;
pub use junit::junit;
pub use sarif::{RuleInfo, sarif};
