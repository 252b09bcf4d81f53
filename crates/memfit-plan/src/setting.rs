//! One lever of a plan, and how far it is moved.

use memfit_vocabulary::{Label, Lever, Value};
use serde::{Deserialize, Serialize};

/// One lever, how far it is moved, and how far the training stays the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// The lever.
    #[serde(rename = "name")]
    pub lever: Lever,
    /// How far: `true` where it is only on or off.
    #[serde(default)]
    pub value: Value,
    /// What it does to the training.
    pub label: Label,
}
