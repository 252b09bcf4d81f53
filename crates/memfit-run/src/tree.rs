//! The processes that belong to a run.
//!
//! A process belongs to the run if it descends from the command, or has the run directory in its initial
//! environment. Each test alone misses some: a daemon loses its parent, and a program may clear its
//! environment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use memfit_channel::RunDir;
use memfit_channel::env::RUN_DIR;
use memfit_channel::proc::{self, Stat};

/// All visible processes of the machine.
pub(crate) fn all_processes() -> BTreeMap<u32, Stat> {
    proc::pids().into_iter().filter_map(|pid| Some((pid, Stat::read(pid).ok()?))).collect()
}

/// Returns `true` if a process exists and has not ended.
pub(crate) fn is_running(pid: u32) -> bool {
    Stat::read(pid).is_ok_and(|stat| !stat.ended)
}

/// The process `root` and its descendants among `all`.
pub(crate) fn descendants(all: &BTreeMap<u32, Stat>, root: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::from([root]);
    // Process ids wrap around, so a child's may be smaller: repeat until nothing is added.
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

/// Run directory in the environment that a process was started with; `None` for another user's process.
pub(crate) fn process_run_dir(pid: u32) -> Option<PathBuf> {
    proc::variable(pid, RUN_DIR).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Processes that were started with the run directory in their environment.
pub(crate) fn with_run_dir(run_dir: &RunDir) -> BTreeSet<u32> {
    let is_marked = |pid: &u32| process_run_dir(*pid).is_some_and(|path| path == run_dir.path());
    proc::pids().into_iter().filter(is_marked).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_in_any_order_of_ids() {
        let entry = |parent| Stat { parent, ended: false, ticks: 0, start: 0 };
        let all =
            BTreeMap::from([(1, entry(0)), (50, entry(90)), (90, entry(10)), (10, entry(1)), (60, entry(1))]);
        assert_eq!(descendants(&all, 10), BTreeSet::from([10, 50, 90]));
        assert_eq!(descendants(&all, 999), BTreeSet::new());
    }

    #[test]
    fn this_process_is_there() {
        let all = all_processes();
        assert!(all.contains_key(&std::process::id()));
        assert!(descendants(&all, std::process::id()).contains(&std::process::id()));
    }
}
