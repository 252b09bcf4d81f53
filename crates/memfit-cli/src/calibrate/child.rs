//! The measuring process: an embedded script in the user's interpreter. It prints one fact per line as JSON,
//! and waits at each stage for a line on standard input.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use memfit_run::RunError;
use serde::Deserialize;

use crate::CliError;

/// The script that runs in the user's interpreter.
const SCRIPT: &str = include_str!("../../../../python/memfit/_measure/gpu.py");
/// Maximum length of a line; the script's are shorter.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// `MASTER_PORT` of the ranks.
const PORT: &str = "29511";

/// A line of the process's output.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Fact {
    /// The process waits while memfit reads the GPU's memory use.
    Stage {
        /// Name of the stage.
        name: String,
        /// Bytes that PyTorch's allocator has reserved.
        reserved: u64,
    },
    /// The GPU.
    Gpu(GpuFact),
    /// Repeated timings of one kind of work.
    Sample(Sample),
    /// A quantity that could not be measured.
    NotMeasured {
        /// The quantity.
        what: String,
        /// The reason.
        why: String,
    },
    /// The last line: all measurements are done.
    End,
}

/// PyTorch's description of the GPU.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct GpuFact {
    /// The name reported by the driver.
    pub(super) name: String,
    /// Total memory.
    pub(super) memory: u64,
    /// Number of GPUs.
    pub(super) count: u32,
    /// `torch.__version__`.
    pub(super) torch: String,
    /// `torch.version.cuda`.
    pub(super) cuda: String,
}

/// Repeated timings of one kind of work.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Sample {
    /// Name of the work.
    pub(super) name: String,
    /// Amount of work: operations, bytes.
    pub(super) amount: f64,
    /// Duration of each repetition.
    pub(super) nanoseconds: Vec<f64>,
}

/// A measuring process.
#[derive(Debug)]
pub(super) struct Measuring {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stdin: Option<ChildStdin>,
    errors: tempfile::NamedTempFile,
}

impl Measuring {
    /// Starts a process that measures a single GPU.
    pub(super) fn one_gpu(python: &Path) -> Result<Self, CliError> {
        Self::start(python, |command| command)
    }

    /// Starts one of several ranks.
    pub(super) fn rank(python: &Path, rank: u32, of: u32) -> Result<Self, CliError> {
        Self::start(python, |command| {
            command
                .arg("--ranks")
                .env("RANK", rank.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .env("WORLD_SIZE", of.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", PORT)
        })
    }

    fn start(python: &Path, with: impl FnOnce(&mut Command) -> &mut Command) -> Result<Self, CliError> {
        let temporary = std::env::temp_dir();
        let errors = tempfile::NamedTempFile::new().map_err(CliError::io("make a file in", temporary))?;
        let stderr = errors.reopen().map_err(CliError::io("open", errors.path()))?;
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        // NVML numbers GPUs in this order.
        command.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        let failed = |source| RunError::Start { program: python.to_owned(), source };
        let mut child = with(&mut command).spawn().map_err(failed)?;
        let broken = || CliError::Measuring { said: "its pipes are missing".to_owned() };
        let (stdout, stdin) = (child.stdout.take().ok_or_else(broken)?, child.stdin.take());
        Ok(Self { child, stdout: BufReader::new(stdout), stdin, errors })
    }

    /// Returns the next fact, or `None` at the end. Skips other output.
    pub(super) fn next(&mut self) -> Result<Option<Fact>, CliError> {
        loop {
            let mut line = String::new();
            let read = (&mut self.stdout).take(MAX_LINE_BYTES).read_line(&mut line);
            if !matches!(read, Ok(bytes) if bytes > 0) {
                return self.end().map(|()| None);
            }
            if let Ok(fact) = serde_json::from_str(&line) {
                return Ok(Some(fact));
            }
        }
    }

    /// Lets the process continue after a stage.
    pub(super) fn go_on(&mut self) {
        // If the process has ended, `next` returns its error.
        let _ended = self.stdin.as_mut().map(|stdin| stdin.write_all(b"\n").and_then(|()| stdin.flush()));
    }

    fn end(&mut self) -> Result<(), CliError> {
        let status = self.child.wait();
        if matches!(&status, Ok(status) if status.success()) {
            return Ok(());
        }
        let text = std::fs::read_to_string(self.errors.path()).unwrap_or_default();
        let last = text.lines().map(str::trim).rfind(|line| !line.is_empty());
        let said = last.map_or_else(|| format!("it ended with {status:?}"), str::to_owned);
        Err(CliError::Measuring { said })
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        // After an error here, the process may still run or wait at a stage.
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_as_facts() {
        for (line, fact) in [
            (
                r#"{"kind": "stage", "name": "context", "reserved": 2097152}"#,
                Fact::Stage { name: "context".to_owned(), reserved: 2 << 20 },
            ),
            (
                r#"{"kind": "sample", "name": "fp16", "amount": 2e9, "nanoseconds": [1.5, 2]}"#,
                Fact::Sample(Sample { name: "fp16".to_owned(), amount: 2e9, nanoseconds: vec![1.5, 2.0] }),
            ),
            (
                r#"{"kind": "not_measured", "what": "rate of fp8", "why": "RuntimeError: no"}"#,
                Fact::NotMeasured { what: "rate of fp8".to_owned(), why: "RuntimeError: no".to_owned() },
            ),
            (r#"{"kind": "end"}"#, Fact::End),
        ] {
            assert_eq!(serde_json::from_str::<Fact>(line).unwrap(), fact);
        }
    }

    #[test]
    fn the_error_is_the_last_line_on_stderr() {
        let mut measuring = Measuring::one_gpu(Path::new("/bin/false")).unwrap();
        assert!(matches!(measuring.next(), Err(CliError::Measuring { .. })));
    }

    #[test]
    fn a_dropped_process_is_killed() {
        let started = std::time::Instant::now();
        let mut command = Command::new("sleep");
        command.arg("1000").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdout, stdin) = (child.stdout.take().unwrap(), child.stdin.take());
        let errors = tempfile::NamedTempFile::new().unwrap();
        drop(Measuring { child, stdout: BufReader::new(stdout), stdin, errors });
        assert!(started.elapsed().as_secs() < 500);
    }
}
