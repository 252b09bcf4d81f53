//! Plan file: versioned TOML that people can read and edit.

use std::path::{Path, PathBuf};
use std::{fs, io};

use memfit_vocabulary::{Lever, Parallel};
use serde::Deserialize;

use crate::plan::Plan;

mod write;

/// Version of the format.
pub const VERSION: u64 = 1;

/// Maximum size of a plan file.
pub const MAX_BYTES: u64 = 1 << 20;

/// Error while a plan file is read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Reading or writing failed.
    #[error("cannot {what} the plan `{}`", path.display())]
    Io {
        /// Attempted operation.
        what: &'static str,
        /// File.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The file is too large for a plan.
    #[error("`{}` has {bytes} bytes, which is too large for a plan", path.display())]
    TooLong {
        /// File.
        path: PathBuf,
        /// Size.
        bytes: u64,
    },
    /// The file is not TOML, or not a plan.
    #[error("`{}` is not a plan", path.display())]
    Syntax {
        /// File.
        path: PathBuf,
        /// Cause, with the line.
        source: Box<toml::de::Error>,
    },
    /// The file was written by a later version of memfit.
    #[error("`{}` has version {found} of the plan's format, and this memfit reads version {VERSION}", path.display())]
    Version {
        /// File.
        path: PathBuf,
        /// Version found.
        found: u64,
    },
    /// Unknown lever.
    #[error("`{}` names the lever `{name}`, which this memfit does not know", path.display())]
    Lever {
        /// File.
        path: PathBuf,
        /// Name.
        name: String,
    },
    /// A number that must not be zero.
    #[error("`{}` has `{key} = 0`, but it must be at least 1", path.display())]
    Zero {
        /// File.
        path: PathBuf,
        /// Key.
        key: &'static str,
    },
    /// A lever that a plan gives by a key of its own.
    #[error("the plan `{}` has a lever `micro-batch`, which does nothing there", path.display())]
    MicroBatch {
        /// File.
        path: PathBuf,
    },
    /// Incompatible levers, or a duplicate.
    #[error("the plan `{}` cannot be applied: {why}", path.display())]
    Conflict {
        /// File.
        path: PathBuf,
        /// Levers and reason.
        why: String,
    },
}

impl PlanError {
    /// Advice for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Io { what: "read", .. } => {
                "`memfit plan --gpu NAME -o memfit.plan.toml -- python train.py` makes a plan"
            }
            Self::Io { .. } => "does the folder exist, and is it writable?",
            Self::TooLong { .. } | Self::Syntax { .. } => {
                "docs/plan.md shows what a plan looks like; `memfit plan` writes one"
            }
            Self::Version { .. } | Self::Lever { .. } => {
                "it may be from a newer memfit: install that version, or make a new plan with `memfit plan`"
            }
            Self::Zero { .. } => "remove the line to have no limit",
            Self::MicroBatch { .. } => "write `micro_batch = SAMPLES` above the first `[[lever]]` instead",
            Self::Conflict { .. } => "keep one of the two; docs/distributed.md lists the keys of [parallel]",
        }
    }
}

/// Fields that are checked first.
#[derive(Deserialize)]
struct Heading {
    version: Option<u64>,
    #[serde(default)]
    lever: Vec<Name>,
}

#[derive(Deserialize)]
struct Name {
    name: Option<String>,
}

impl Plan {
    /// Reads a plan file.
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        let io = |source| PlanError::Io { what: "read", path: path.to_owned(), source };
        let bytes = fs::metadata(path).map_err(io)?.len();
        if bytes > MAX_BYTES {
            return Err(PlanError::TooLong { path: path.to_owned(), bytes });
        }
        Self::parse(&fs::read_to_string(path).map_err(io)?, path)
    }

    /// Parses a plan; `path` is used in errors.
    pub fn parse(text: &str, path: &Path) -> Result<Self, PlanError> {
        let path = || path.to_owned();
        let syntax = |source| PlanError::Syntax { path: path(), source: Box::new(source) };
        // Version and names are checked first, so that a later version's plan is reported as such and not as
        // invalid.
        let heading: Heading = toml::from_str(text).map_err(syntax)?;
        if let Some(found) = heading.version.filter(|found| *found != VERSION) {
            return Err(PlanError::Version { path: path(), found });
        }
        let mut names = heading.lever.into_iter().filter_map(|lever| lever.name);
        if let Some(name) = names.find(|name| Lever::from_name(name).is_none()) {
            return Err(PlanError::Lever { path: path(), name });
        }
        let mut table: toml::Table = toml::from_str(text).map_err(syntax)?;
        table.remove("version");
        let plan: Self = table.try_into().map_err(syntax)?;
        plan.check(path())?;
        Ok(plan)
    }

    fn check(&self, path: PathBuf) -> Result<(), PlanError> {
        let numbers = [
            ("micro_batch", self.micro_batch),
            ("micro_batches_per_step", self.micro_batches_per_step),
            ("accumulate", Some(self.accumulate)),
        ];
        if let Some((key, _)) = numbers.into_iter().find(|(_, number)| *number == Some(0)) {
            return Err(PlanError::Zero { path, key });
        }
        if let Some(why) = self.parallel.as_ref().and_then(Parallel::conflict) {
            return Err(PlanError::Conflict { path, why });
        }
        let levers: Vec<Lever> = self.levers.iter().map(|setting| setting.lever).collect();
        if levers.contains(&Lever::MicroBatch) {
            return Err(PlanError::MicroBatch { path });
        }
        match Lever::conflict(&levers) {
            Some(why) => Err(PlanError::Conflict { path, why }),
            None => Ok(()),
        }
    }

    /// Writes the plan to a file.
    pub fn write(&self, path: &Path) -> Result<(), PlanError> {
        fs::write(path, self.to_text()).map_err(|source| PlanError::Io {
            what: "write",
            path: path.to_owned(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use memfit_vocabulary::{Framework, Label, Value};

    use super::*;
    use crate::{Expected, MadeFor, Setting, sha256};

    fn plan() -> Plan {
        Plan {
            micro_batch: Some(16),
            micro_batches_per_step: Some(4),
            accumulate: 1,
            parallel: None,
            levers: vec![
                Setting { lever: Lever::FusedOptimizer, value: Value::default(), label: Label::Rounding },
                Setting {
                    lever: Lever::Checkpointing,
                    value: Value::Names(vec!["layers.0".into(), "layers.\"x\"".into()]),
                    label: Label::Exact,
                },
            ],
            made_for: MadeFor {
                memfit: "0.1.0".into(),
                torch: Some("2.15.0+cu132".into()),
                gpu: "Tesla T4".into(),
                capacity: 15_642_329_088,
                count: 1,
                nodes: None,
                links: Vec::new(),
                command: vec!["python".into(), "train.py".into(), "--out=C:\\x".into()],
                batch: Some(64),
                own_accumulation: 2,
                batch_names: vec!["batch_size".into()],
                models: vec!["judge".into()],
                framework: None,
                block_classes: Vec::new(),
                inference: false,
                script: Some("train.py".into()),
                script_sha256: Some(sha256(b"import torch")),
            },
            expected: Some(Expected {
                allocated: 12_000_000_000,
                reserved: 13_000_000_000,
                device: 13_500_000_000,
                device_upper: 13_800_000_000,
                step_ms: Some(321.5),
            }),
        }
    }

    fn read(text: &str) -> Result<Plan, PlanError> {
        Plan::parse(text, Path::new("memfit.plan.toml"))
    }

    #[test]
    fn written_plans_parse_back() {
        for plan in [plan(), Plan::as_is()] {
            assert_eq!(read(&plan.to_text()).unwrap(), plan);
        }
    }

    #[test]
    fn default_settings_are_not_written() {
        let written = plan().to_text();
        let mut usual = plan();
        usual.made_for = MadeFor {
            own_accumulation: 1,
            batch: None,
            torch: None,
            batch_names: Vec::new(),
            models: Vec::new(),
            script: None,
            script_sha256: None,
            ..usual.made_for
        };
        usual.expected = None;
        let text = usual.to_text();
        for key in [
            "own_accumulation =",
            "\nbatch =",
            "torch =",
            "batch_names =",
            "models =",
            "script =",
            "step_ms =",
        ] {
            assert!(written.contains(key) && !text.contains(key), "{key}: {text}");
        }
        assert!(["inference =", "nodes =", "links ="].iter().all(|key| !written.contains(key)));
        usual.made_for.inference = true;
        // None is as good as one.
        usual.made_for.own_accumulation = 0;
        assert!(usual.to_text().contains("inference = true"));
        assert_eq!(read(&usual.to_text()).unwrap(), usual);
    }

    #[test]
    fn a_parallel_plan_is_written_and_read_again() {
        let mut plan = plan();
        plan.made_for.nodes = Some(4);
        plan.made_for.count = 8;
        plan.made_for.links = vec!["pcie".to_owned(), "ib-400".to_owned()];
        plan.parallel = Some(Parallel { replicate: 4, shard: 8, ..Parallel::default() });
        plan.made_for.framework = Some(Framework::Transformers);
        plan.made_for.block_classes = vec!["Block".to_owned()];
        let text = plan.to_text();
        assert_eq!(read(&text).unwrap(), plan);
        insta::assert_snapshot!(text.split("[[lever]]").next().unwrap());
        // A hand-written table needs only what differs.
        let short = read("[parallel]\nshard = 8\n").unwrap().parallel.unwrap();
        assert_eq!(short, Parallel { shard: 8, ..Parallel::default() });
        let why = |text: &str| match read(text) {
            Err(PlanError::Conflict { why, .. }) => why,
            other => panic!("{other:?}"),
        };
        assert!(why("[parallel]\nshard = 0").contains("at least 1"));
        assert!(why("[parallel]\noffload = true").contains("needs `shard`"));
        assert!(matches!(read("[parallel]\nshards = 8"), Err(PlanError::Syntax { .. })));
    }

    #[test]
    fn a_person_can_read_it() {
        insta::assert_snapshot!(plan().to_text());
    }

    #[test]
    fn a_person_can_write_it() {
        let plan = read(
            "micro_batch = 8\n[[lever]]\nname = \"checkpointing\"\nvalue = [\"h.0\"]\nlabel = \"exact\"\n",
        )
        .unwrap();
        assert_eq!((plan.micro_batch, plan.accumulate), (Some(8), 1));
        assert!(plan.moves(Lever::Checkpointing) && !plan.moves(Lever::Sdpa));
        assert_eq!(plan.label(), Label::Exact);
    }

    #[test]
    fn mistakes_are_told_apart() {
        let error = |text: &str| read(text).unwrap_err();
        assert!(matches!(error("version = 2\nnew = 1"), PlanError::Version { found: 2, .. }));
        assert!(
            matches!(error("[[lever]]\nname = \"time-travel\"\nlabel = \"exact\""), PlanError::Lever { name, .. } if name == "time-travel")
        );
        assert!(matches!(error("micro_batch = 0"), PlanError::Zero { key: "micro_batch", .. }));
        assert!(matches!(error("micro_batches = 4"), PlanError::Syntax { .. }));
        assert!(matches!(error("micro_batch = -1"), PlanError::Syntax { .. }));
        assert!(matches!(error("= what"), PlanError::Syntax { .. }));
        let lever = "[[lever]]\nname = \"sdpa\"\nlabel = \"rounding\"\n";
        assert!(matches!(error(&lever.repeat(2)), PlanError::Conflict { .. }));
        let micro_batch = "[[lever]]\nname = \"micro-batch\"\nvalue = 2\nlabel = \"rounding\"\n";
        assert!(matches!(error(micro_batch), PlanError::MicroBatch { .. }));
        let folder = tempfile::tempdir().unwrap();
        let missing = Plan::read(&folder.path().join("none.toml")).unwrap_err();
        assert!(matches!(missing, PlanError::Io { what: "read", .. }));
        let long = folder.path().join("long.toml");
        std::fs::write(&long, vec![b'#'; MAX_BYTES as usize + 1]).unwrap();
        assert!(matches!(Plan::read(&long).unwrap_err(), PlanError::TooLong { .. }));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_reader_fall(text in ".{0,200}") {
            let _ = read(&text);
        }

        #[test]
        fn names_of_any_kind_survive_the_file(names in proptest::collection::vec(".{0,12}", 0..4)) {
            let mut plan = plan();
            plan.made_for.command.clone_from(&names);
            plan.levers[1].value = Value::Names(names);
            proptest::prop_assert_eq!(read(&plan.to_text()).unwrap(), plan);
        }
    }
}
