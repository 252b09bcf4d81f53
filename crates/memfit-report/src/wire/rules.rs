//! Output of `memfit rule`.

use serde::Serialize;

/// Entry of a rule in the list.
#[derive(Clone, Debug, Serialize)]
pub struct RuleEntry {
    /// Name of the rule.
    pub name: String,
    /// `error`, `warning` or `note`.
    pub severity: String,
    /// `safe`, `unsafe`, or none.
    pub fix: Option<String>,
    /// `true` if the rule is on by default.
    pub on: bool,
    /// Purpose in one sentence.
    pub summary: String,
}

/// All rules.
#[derive(Clone, Debug, Serialize)]
pub struct RuleList {
    /// [`schema::RULES`](super::schema::RULES).
    pub schema: &'static str,
    /// By name.
    pub rules: Vec<RuleEntry>,
}

/// A rule's page.
#[derive(Clone, Debug, Serialize)]
pub struct RuleReport {
    /// [`schema::RULE`](super::schema::RULE).
    pub schema: &'static str,
    /// The rule.
    pub rule: RuleEntry,
    /// In Markdown.
    pub page: String,
}

impl RuleList {
    /// Creates a list.
    pub fn new(rules: Vec<RuleEntry>) -> Self {
        Self { schema: super::schema::RULES, rules }
    }
}

impl RuleReport {
    /// Creates a page.
    pub fn new(rule: RuleEntry, page: String) -> Self {
        Self { schema: super::schema::RULE, rule, page }
    }
}
