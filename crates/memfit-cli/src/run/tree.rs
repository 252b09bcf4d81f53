//! Which processes belong to a run.
//!
//! A process belongs to it if it descends from the command, or has the run directory in the environment that it was
//! started with. Either alone misses some: a daemon loses its parent, a program may clear its environment.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use memfit_link::RunDir;
use memfit_link::env::RUN_DIR;

/// One process as `/proc` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its parent.
    pub(super) parent: u32,
    /// Whether it has ended and only waits to be reaped.
    pub(super) zombie: bool,
    /// Processor time that it used, in clock ticks.
    pub(super) ticks: u64,
}

/// All processes of the machine that can be seen.
pub(super) fn all() -> BTreeMap<u32, Entry> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| {
            let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, parse_stat(&stat)?))
        })
        .collect()
}

/// Whether a process is there and has not ended.
pub(super) fn is_running(pid: u32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    parse_stat(&stat).is_some_and(|entry| !entry.zombie)
}

/// A line of `/proc/PID/stat`. The name in parentheses may itself hold spaces and parentheses.
fn parse_stat(line: &[u8]) -> Option<Entry> {
    let end = line.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(line.get(end + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Entry {
        zombie: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        ticks: number(11)? + number(12)?,
    })
}

/// The processes among `all` that descend from `root`, and itself.
pub(super) fn descendants(all: &BTreeMap<u32, Entry>, root: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::from([root]);
    // Process ids wrap around, so a child's may be the smaller one: go on until nothing is added.
    loop {
        let before = found.len();
        found.extend(
            all.iter()
                .filter(|(_, entry)| found.contains(&entry.parent))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if found.len() == before {
            found.retain(|pid| all.contains_key(pid));
            return found;
        }
    }
}

/// The run directory that a process was started with, if it was. Those of other users cannot be read.
pub(super) fn run_dir_of(pid: u32) -> Option<PathBuf> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let path =
        variables.find_map(|variable| variable.strip_prefix(RUN_DIR.as_bytes())?.strip_prefix(b"="))?;
    (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(path)))
}

/// The processes that were started with the run directory in their environment.
pub(super) fn marked(run_dir: &RunDir) -> BTreeSet<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeSet::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| run_dir_of(*pid).is_some_and(|path| path == run_dir.path()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let line = b"42 (a) b (c) S 7 42 42 0 -1 4194304 1 2 3 4 10 5 0 0 20 0 1 0 100 0 0";
        assert_eq!(parse_stat(line), Some(Entry { parent: 7, zombie: false, ticks: 15 }));
        assert_eq!(parse_stat(b"42 (x"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn descendants_are_found_in_any_order_of_ids() {
        let entry = |parent| Entry { parent, zombie: false, ticks: 0 };
        let all =
            BTreeMap::from([(1, entry(0)), (50, entry(90)), (90, entry(10)), (10, entry(1)), (60, entry(1))]);
        assert_eq!(descendants(&all, 10), BTreeSet::from([10, 50, 90]));
        assert_eq!(descendants(&all, 999), BTreeSet::new());
    }

    #[test]
    fn this_process_is_there() {
        let all = all();
        assert!(all.contains_key(&std::process::id()));
        assert!(descendants(&all, std::process::id()).contains(&std::process::id()));
    }
}
