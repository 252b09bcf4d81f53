//! `memfit.doctor/1`: the installed software, and whether memfit works with it.

use serde::{Deserialize, Serialize};

use super::schema;

/// State of the installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// [`schema::DOCTOR`].
    pub schema: String,
    /// `true` if `memfit run` would work.
    pub ready: bool,
    /// The individual checks.
    pub checks: Vec<Check>,
}

impl DoctorReport {
    /// Creates the report of these checks; `ready` if none is `broken`.
    pub fn new(checks: Vec<Check>) -> Self {
        let ready = checks.iter().all(|check| check.health != Health::Broken);
        Self { schema: schema::DOCTOR.to_owned(), ready, checks }
    }
}

/// Check of one component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The component.
    pub name: String,
    /// State.
    pub health: Health,
    /// Version, path or other finding.
    pub found: String,
    /// Advice.
    pub hint: Option<String>,
}

/// State of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Usable.
    Good,
    /// Missing, but needed only for some features.
    Absent,
    /// Prevents `memfit run` from working.
    Broken,
}
