//! PyTorch's launchers on one machine: the script, and the number of its processes.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use memfit_vocabulary::launcher_words;

use crate::environment::Command;

/// Options of `torchrun` without a value that do not affect a single process.
const FLAGS: &[&str] = &["standalone"];
/// Options with a value.
const VALUED: &[&str] = &[
    "nproc-per-node",
    "nnodes",
    "node-rank",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "master-addr",
    "master-port",
    "local-addr",
    "max-restarts",
    "monitor-interval",
    "start-method",
    "role",
    "log-dir",
    "redirects",
    "tee",
    "local-ranks-filter",
];

/// Processes of a script that a launcher starts on one machine.
#[derive(Clone, Debug)]
pub(crate) struct Launched {
    /// Command that starts one of them alone.
    pub(crate) alone: Command,
    /// Number of processes.
    pub(crate) processes: u32,
    /// Path of the script.
    pub(crate) script: PathBuf,
}

/// Parses a launcher's command. Returns `None` if it is not a launcher, or has an unknown option.
pub(crate) fn launched(command: &Command, cards: u32) -> Option<Launched> {
    let python = command.python.clone()?;
    let words = arguments(command)?;
    let mut words = words.iter();
    let mut processes = None;
    while let Some(word) = words.next() {
        let text = word.to_str()?;
        let Some(option) = text.strip_prefix("--") else {
            if text.starts_with('-') {
                return None;
            }
            let args: Vec<OsString> = std::iter::once(word).chain(words).cloned().collect();
            let script = PathBuf::from(word);
            let alone = Command { program: python.clone(), args, python: Some(python), skipped: None };
            return Some(Launched { alone, processes: processes?, script });
        };
        let (name, joined) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        // Underscores are an older spelling of the same options.
        let name = name.replace('_', "-");
        if joined.is_none() && FLAGS.contains(&name.as_str()) {
            continue;
        }
        if !VALUED.contains(&name.as_str()) {
            return None;
        }
        let value = match joined {
            Some(value) => value,
            None => words.next()?.to_str()?,
        };
        match name.as_str() {
            "nproc-per-node" => {
                processes = Some(match value {
                    "gpu" | "auto" => cards,
                    number => number.parse().ok()?,
                });
            }
            // Several machines, or a variable number of them, are not supported.
            "nnodes" if value != "1" && value != "1:1" => return None,
            _ => {}
        }
    }
    None
}

/// Arguments after the launcher's own name.
fn arguments(command: &Command) -> Option<&[OsString]> {
    let words: Vec<&OsStr> = std::iter::once(command.program.as_os_str())
        .chain(command.args.iter().map(OsString::as_os_str))
        .collect();
    launcher_words(&words).and_then(|before| command.args.get(before - 1..))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, wanted: Option<(u32, &str)>) {
        let mut words = line.split_whitespace().map(OsString::from);
        let program = PathBuf::from(words.next().unwrap());
        let command =
            Command { program, args: words.collect(), python: Some("/v/python".into()), skipped: None };
        let found = launched(&command, 4);
        let parsed = found.as_ref().map(|found| {
            assert_eq!(found.alone.program, PathBuf::from("/v/python"), "{line}");
            assert_eq!(found.alone.args.first().map(PathBuf::from), Some(found.script.clone()), "{line}");
            (found.processes, found.alone.words()[1..].join(" "))
        });
        assert_eq!(parsed, wanted.map(|(count, words)| (count, words.to_owned())), "{line}");
    }

    #[test]
    fn one_process_of_a_launcher_is_its_script_alone() {
        check("/v/bin/torchrun --nproc-per-node 2 train.py --epochs 3", Some((2, "train.py --epochs 3")));
        check("torchrun --standalone --nproc_per_node=gpu a/train.py", Some((4, "a/train.py")));
        check(
            "/v/python -m torch.distributed.run --nnodes 1 --nproc-per-node 8 t.py -m x",
            Some((8, "t.py -m x")),
        );
        check("torchrun --nnodes=1:4 --nproc-per-node 2 train.py", None);
        check("torchrun --nproc-per-node 2 -m package.train", None);
        check("torchrun --nproc-per-node 2 --no-python train.sh", None);
        check("torchrun --nproc-per-node many train.py", None);
        check("torchrun train.py", None);
        check("torchrun --nproc-per-node 2", None);
        check("/v/python train.py --nproc-per-node 2", None);
        check("accelerate launch train.py", None);
    }
}
