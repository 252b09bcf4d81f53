//! Paths in a run directory.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use crate::env::RUN_DIR;

/// A run directory. Every path in it is named here and nowhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir(PathBuf);

/// Name of the marker for a file that the run created, from its device and inode.
pub fn made_mark(device: u64, inode: u64) -> String {
    format!("{device:x}-{inode:x}")
}

impl RunDir {
    /// The run directory at `path`, which must exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Run directory of this process, if it belongs to a run.
    pub fn from_env() -> Option<Self> {
        env::var_os(RUN_DIR).filter(|path| !path.is_empty()).map(Self::new)
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The [`Setup`](crate::Setup), as JSON.
    pub fn setup(&self) -> PathBuf {
        self.0.join("setup.json")
    }

    /// Changes to the training by the probe, as JSON: see [`Planned`](crate::Planned). Absent if it only
    /// watches.
    pub fn plan(&self) -> PathBuf {
        self.0.join("plan.json")
    }

    /// Reports of a process that forks for each run: `ready`, or why it cannot; a fork writes its process id.
    pub fn forks(&self) -> PathBuf {
        self.0.join("forks")
    }

    /// File with the device properties that the script queried before it used the device, one per line.
    pub fn asked(&self) -> PathBuf {
        self.0.join("asked")
    }

    /// Pipe on which forks are requested: a line for each, with the run directory.
    pub fn requests(&self) -> PathBuf {
        self.0.join("requests")
    }

    /// The ledger's shared memory.
    pub fn ledger(&self) -> PathBuf {
        self.0.join("ledger")
    }

    /// File that is locked while the ledger changes. Nothing else may open it: see `LedgerLock`.
    pub(crate) fn ledger_lock(&self) -> PathBuf {
        self.0.join("ledger.lock")
    }

    /// Event log of a process.
    pub fn events(&self, pid: u32) -> PathBuf {
        self.0.join(format!("events-{pid}.bin"))
    }

    /// Messages of a process, one JSON object per line.
    pub fn messages(&self, pid: u32) -> PathBuf {
        self.0.join(format!("messages-{pid}.jsonl"))
    }

    /// Stack of a process's Python code when a signal ended it; empty otherwise.
    pub fn crash(&self, pid: u32) -> PathBuf {
        self.0.join(format!("crash-{pid}.txt"))
    }

    /// Board on which the processes post notes to each other.
    pub(crate) fn board(&self, name: u64) -> PathBuf {
        self.0.join(format!("board-{name:016x}"))
    }

    /// Exists once a process has completed its steps and waits to be ended, so that no other process waits
    /// for it.
    pub fn finished(&self, pid: u32) -> PathBuf {
        self.0.join(format!("finished-{pid}"))
    }

    /// Standard output of the script.
    pub fn stdout(&self) -> PathBuf {
        self.0.join("stdout.txt")
    }

    /// Standard error of the script.
    pub fn stderr(&self) -> PathBuf {
        self.0.join("stderr.txt")
    }

    /// Folder with the Python probe, first on the script's `PYTHONPATH`.
    pub fn probe(&self) -> PathBuf {
        self.0.join("probe")
    }

    /// Source files that the run treats as changed, as JSON: a path and the new contents. Absent if there are
    /// none.
    pub fn edits(&self) -> PathBuf {
        self.0.join("edits.json")
    }

    /// Overlay in front of the user's files. Absent if a script's writes go to the disk.
    pub fn overlay(&self) -> PathBuf {
        self.0.join("overlay")
    }

    /// Files of the overlay, at their own absolute paths.
    pub fn overlay_tree(&self) -> PathBuf {
        self.overlay().join("tree")
    }

    /// Markers for the files that the run created on the user's disk.
    pub fn overlay_made(&self) -> PathBuf {
        self.overlay().join("made")
    }

    /// Exists once a checkpoint was redirected to the overlay.
    pub fn saved_checkpoints(&self) -> PathBuf {
        self.overlay().join("saved")
    }

    /// Exists once the script has opened a redirected checkpoint to read it.
    pub fn read_back(&self) -> PathBuf {
        self.overlay().join("read")
    }

    /// Exists once a user's file was protected from the script.
    pub fn kept_files(&self) -> PathBuf {
        self.overlay().join("kept")
    }

    /// Folder with the libraries under the names that the loader looks for.
    pub fn libraries(&self) -> PathBuf {
        self.0.join("lib")
    }

    /// Folder with the programs that shadow the machine's own.
    pub fn programs(&self) -> PathBuf {
        self.0.join("bin")
    }

    /// Process ids for which there is a file `prefix-PID.suffix`, in ascending order.
    fn pids(&self, prefix: &str, suffix: &str) -> io::Result<Vec<u32>> {
        let mut pids: Vec<u32> = fs::read_dir(&self.0)?
            .filter_map(|entry| {
                let name = entry.ok()?.file_name().into_string().ok()?;
                name.strip_prefix(prefix)?.strip_suffix(suffix)?.parse().ok()
            })
            .collect();
        pids.sort_unstable();
        Ok(pids)
    }

    /// Processes that left an event log.
    pub fn event_pids(&self) -> io::Result<Vec<u32>> {
        self.pids("events-", ".bin")
    }

    /// Processes that would leave the stack of a crash.
    pub fn crash_pids(&self) -> io::Result<Vec<u32>> {
        self.pids("crash-", ".txt")
    }

    /// Processes that sent messages.
    pub fn message_pids(&self) -> io::Result<Vec<u32>> {
        self.pids("messages-", ".jsonl")
    }
}
