//! `memfit.doctor/1`: what is installed, and what would work.

use serde::{Deserialize, Serialize};

use super::schema;

/// State of the installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// [`schema::DOCTOR`].
    pub schema: String,
    /// `true` if `memfit run` would work.
    pub ready: bool,
    /// Each thing that was looked at.
    pub checks: Vec<Check>,
}

impl DoctorReport {
    /// A report of these checks: ready where nothing is broken.
    pub fn new(checks: Vec<Check>) -> Self {
        let ready = checks.iter().all(|check| check.health != Health::Broken);
        Self { schema: schema::DOCTOR.to_owned(), ready, checks }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The component.
    pub name: String,
    /// Its state.
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
    /// It will do.
    Good,
    /// It is not there, and only some things need it.
    Absent,
    /// `memfit run` will not work with it.
    Broken,
}
