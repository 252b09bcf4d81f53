//! Setting of a lever.

use memfit_vocabulary::{Label, Lever, Value};
use serde::{Deserialize, Serialize};

/// Lever with its value and its effect on training results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Lever.
    #[serde(rename = "name")]
    pub lever: Lever,
    /// Value; `true` for a lever that is on or off.
    #[serde(default)]
    pub value: Value,
    /// Effect on training results.
    pub label: Label,
}
