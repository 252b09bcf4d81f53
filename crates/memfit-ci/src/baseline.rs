//! The file of a baseline: short TOML that can be reviewed in a diff.

use std::fmt::Write as _;

use memfit_devices::Bytes;
use memfit_report::wire::Peak;
use serde::Deserialize;

use crate::Measurement;

/// Schema version of the file.
const SCHEMA: &str = "memfit.baseline/1";

/// The file does not contain a baseline.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BaselineError {
    /// Not the file's shape.
    #[error("it is not a baseline: {0}")]
    Parse(#[from] Box<toml::de::Error>),
    /// The file has another schema version.
    #[error("it has the schema `{found}`, and this memfit reads `{SCHEMA}`")]
    Schema {
        /// The schema version in the file.
        found: String,
    },
}

/// File name of the baseline for a script on a GPU.
pub fn file_name(script: &str, gpu: &str) -> String {
    let plain = |text: &str| -> String {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        text.chars().map(|letter| if is_plain(letter) { letter } else { '-' }).collect()
    };
    format!("{}.{}.toml", plain(script), plain(gpu))
}

/// The schema alone, which is read first.
#[derive(Deserialize)]
struct Versioned {
    schema: String,
}

impl Measurement {
    /// Reads a baseline.
    pub fn from_toml(text: &str) -> Result<Self, BaselineError> {
        let Versioned { schema } = toml::from_str(text).map_err(Box::new)?;
        if schema != SCHEMA {
            return Err(BaselineError::Schema { found: schema });
        }
        Ok(toml::from_str(text).map_err(Box::new)?)
    }

    /// Writes a baseline. Sizes have a comment in binary units.
    pub fn to_toml(&self) -> String {
        let mut out =
            String::from("# Written by `memfit ci --accept`, which also updates it. Commit this file.\n");
        let quoted = |text: &str| toml::Value::from(text).to_string();
        let list = |words: &[String]| toml::Value::from(words.to_vec()).to_string();
        let _ = writeln!(out, "schema = {}", quoted(SCHEMA));
        let _ = writeln!(out, "script = {}", quoted(&self.script));
        let _ = writeln!(out, "gpu = {}", quoted(&self.gpu));
        let _ = writeln!(out, "command = {}", list(&self.command));
        let _ = writeln!(out, "steps = {}", self.steps);
        let _ = writeln!(out, "fits = {}", self.fits);
        let _ = writeln!(out, "memfit = {}", quoted(&self.memfit));
        if let Some(torch) = &self.torch {
            let _ = writeln!(out, "torch = {}", quoted(torch));
        }
        if let Some(batch) = self.largest_batch {
            let _ = writeln!(out, "largest-batch = {batch}");
        }
        if let Some(ms) = self.step_ms_estimate {
            let _ = writeln!(out, "step-ms-estimate = {ms:?}");
        }
        let mut sized = |key: &str, bytes: u64| {
            let _ = writeln!(out, "{key} = {bytes}  # {}", Bytes::new(bytes));
        };
        let Peak { allocated, reserved, device, device_upper } = self.peak;
        sized("\n[peak]\nallocated", allocated);
        sized("reserved", reserved);
        sized("device", device);
        sized("device_upper", device_upper);
        let mut heading = "\n[by-category]\n";
        for (category, bytes) in &self.by_category {
            sized(&format!("{heading}{category}"), *bytes);
            heading = "";
        }
        for module in &self.modules {
            sized(&format!("\n[[modules]]\nname = {}\nbytes", quoted(&module.name)), module.bytes);
        }
        for line in &self.lines {
            let _ = write!(out, "\n[[lines]]  # {}\n", Bytes::new(line.bytes()));
            let _ = writeln!(out, "file = {}", quoted(&line.file));
            let _ = writeln!(out, "line = {}", line.line);
            let _ = writeln!(out, "function = {}", quoted(&line.function));
            let _ = writeln!(out, "text = {}", quoted(&line.text));
            for (category, modules) in &line.holds {
                let held: Vec<String> =
                    modules.iter().map(|(name, bytes)| format!("{} = {bytes}", quoted(name))).collect();
                let _ = writeln!(out, "holds.{category} = {{ {} }}", held.join(", "));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{MeasuredLine, MeasuredModule};

    fn measured() -> Measurement {
        let holds = |name: &str| BTreeMap::from([(name.to_owned(), 300 << 20), (String::new(), 5)]);
        Measurement {
            script: "train \"it\"".into(),
            gpu: "t4:2".into(),
            command: vec!["python".into(), "a\\b\n.py".into()],
            steps: 3,
            fits: true,
            memfit: "0.1.0".into(),
            torch: Some("2.15.0+cu130".into()),
            largest_batch: Some(48),
            step_ms_estimate: Some(12.0),
            peak: Peak { allocated: 1 << 30, reserved: 2 << 30, device: 3 << 30, device_upper: 4 << 30 },
            by_category: BTreeMap::from([("activations".into(), 7), ("parameters".into(), 1 << 20)]),
            lines: vec![MeasuredLine {
                file: "src/a.py".into(),
                line: 12,
                function: "<module>".into(),
                text: "x = \"'\" + y".into(),
                holds: BTreeMap::from([
                    ("activations".into(), holds("a.\"b")),
                    ("inputs".into(), holds("c")),
                ]),
            }],
            modules: vec![MeasuredModule { name: "layer.0".into(), bytes: 9 }],
        }
    }

    #[test]
    fn a_baseline_reads_back_as_it_was_written() {
        let whole = measured();
        insta::assert_snapshot!(whole.to_toml());
        assert_eq!(Measurement::from_toml(&whole.to_toml()).unwrap(), whole);
        let bare = Measurement {
            torch: None,
            largest_batch: None,
            step_ms_estimate: None,
            by_category: BTreeMap::new(),
            lines: Vec::new(),
            modules: Vec::new(),
            ..whole
        };
        assert_eq!(Measurement::from_toml(&bare.to_toml()).unwrap(), bare);
    }

    #[test]
    fn other_files_are_refused() {
        let later = measured().to_toml().replace(SCHEMA, "memfit.baseline/2");
        let error = Measurement::from_toml(&later).unwrap_err();
        assert!(matches!(error, BaselineError::Schema { found } if found == "memfit.baseline/2"));
        for text in ["", "schema = 1", "schema = 'memfit.baseline/1'", "<<<<<<< HEAD"] {
            assert!(matches!(Measurement::from_toml(text), Err(BaselineError::Parse(_))), "{text}");
        }
    }

    #[test]
    fn a_files_name_has_nothing_of_a_path() {
        assert_eq!(file_name("train", "rtx-4090"), "train.rtx-4090.toml");
        assert_eq!(file_name("../my train", "t4:2"), "..-my-train.t4-2.toml");
    }
}
