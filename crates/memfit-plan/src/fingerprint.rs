//! Comparison of the environment with the one that a plan was made for.

use memfit_vocabulary::format_size;
use std::fmt;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::plan::MadeFor;

/// Environment in which a plan is used; `None` for unknown values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// `torch.__version__`.
    pub torch: Option<String>,
    /// Name of the GPU.
    pub gpu: Option<String>,
    /// Memory of the GPU in bytes.
    pub capacity: Option<u64>,
    /// The SHA-256 of the script's text.
    pub script_sha256: Option<String>,
}

/// Difference from the environment that a plan was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// Another version of PyTorch.
    Torch {
        /// Version of the plan.
        made_for: String,
        /// Version here.
        here: String,
    },
    /// Another GPU.
    Gpu {
        /// Card of the plan.
        made_for: String,
        /// Card here.
        here: String,
    },
    /// Less memory.
    Smaller {
        /// Bytes of the plan.
        made_for: u64,
        /// Bytes here.
        here: u64,
    },
    /// The script has changed.
    Script {
        /// Script.
        script: String,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torch { made_for, here } => write!(
                formatter,
                "the plan was made with PyTorch {made_for}, and this is {here}: its peaks may differ; make a new one with `memfit plan`"
            ),
            Self::Gpu { made_for, here } => write!(
                formatter,
                "the plan was made for {made_for}, and this is {here}: make a new one with `memfit plan --gpu`"
            ),
            Self::Smaller { made_for, here } => write!(
                formatter,
                "the plan was made for a GPU with {}, and this one has {}: it may not fit",
                format_size(*made_for),
                format_size(*here)
            ),
            Self::Script { script } => write!(
                formatter,
                "`{script}` has changed since the plan was made: make a new plan with `memfit plan`"
            ),
        }
    }
}

impl MadeFor {
    /// Differences from an environment. Unknown values are skipped.
    pub fn differs(&self, here: &Here) -> Vec<Difference> {
        let mut found = Vec::new();
        if let (Some(made_for), Some(torch)) = (&self.torch, &here.torch)
            && public(made_for) != public(torch)
        {
            found.push(Difference::Torch { made_for: made_for.clone(), here: torch.clone() });
        }
        match (&here.gpu, here.capacity) {
            (Some(gpu), _) if !self.gpu.is_empty() && *gpu != self.gpu => {
                found.push(Difference::Gpu { made_for: self.gpu.clone(), here: gpu.clone() });
            }
            (_, Some(capacity)) if capacity < self.capacity => {
                found.push(Difference::Smaller { made_for: self.capacity, here: capacity });
            }
            _ => {}
        }
        if let (Some(made_for), Some(script)) = (&self.script_sha256, &here.script_sha256)
            && made_for != script
        {
            found.push(Difference::Script { script: self.script.clone().unwrap_or_default() });
        }
        found
    }
}

/// Version without the build suffix after `+`.
fn public(version: &str) -> &str {
    version.split('+').next().unwrap_or(version)
}

/// The SHA-256 of a text, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_matters_differs() {
        let made_for = MadeFor {
            torch: Some("2.15.0+cu132".into()),
            gpu: "Tesla T4".into(),
            capacity: 100,
            script: Some("train.py".into()),
            script_sha256: Some(sha256(b"print()")),
            ..MadeFor::default()
        };
        let here = |torch: &str, gpu: &str, capacity: u64, script: &[u8]| Here {
            torch: Some(torch.into()),
            gpu: Some(gpu.into()),
            capacity: Some(capacity),
            script_sha256: Some(sha256(script)),
        };
        assert_eq!(made_for.differs(&Here::default()), []);
        assert_eq!(made_for.differs(&here("2.15.0+cpu", "Tesla T4", 200, b"print()")), []);
        let all = made_for.differs(&here("2.11.0", "NVIDIA L4", 50, b"print(1)"));
        assert!(matches!(
            all.as_slice(),
            [Difference::Torch { .. }, Difference::Gpu { .. }, Difference::Script { .. }]
        ));
        let smaller = made_for.differs(&here("2.15.0", "Tesla T4", 50, b"print()"));
        assert!(matches!(smaller.as_slice(), [Difference::Smaller { made_for: 100, here: 50 }]));
        let told = Difference::Smaller { made_for: 24 << 30, here: 3 << 29 }.to_string();
        assert!(told.contains("with 24.00 GiB, and this one has 1.50 GiB"), "{told}");
    }

    #[test]
    fn the_sum_is_the_one_that_other_tools_print() {
        assert_eq!(sha256(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
