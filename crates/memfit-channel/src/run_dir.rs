//! Where things lie in a run directory.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use crate::env::RUN_DIR;

/// A run directory: every path in it has its name here and nowhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir(PathBuf);

/// The name of the mark of a file that the run made, by its device and inode.
pub fn made_mark(device: u64, inode: u64) -> String {
    format!("{device:x}-{inode:x}")
}

impl RunDir {
    /// The run directory at `path`, which must exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The run that this process belongs to, if it belongs to one.
    pub fn from_env() -> Option<Self> {
        env::var_os(RUN_DIR).filter(|path| !path.is_empty()).map(Self::new)
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The [`Setup`](crate::Setup), as JSON.
    pub fn setup(&self) -> PathBuf {
        self.0.join("setup.json")
    }

    /// What the probe does to the training, as JSON: see [`Planned`](crate::Planned). Not there where it only
    /// watches.
    pub fn plan(&self) -> PathBuf {
        self.0.join("plan.json")
    }

    /// What a process that forks for each run says: `ready`, or why it cannot; a fork says its process id.
    pub fn forks(&self) -> PathBuf {
        self.0.join("forks")
    }

    /// Which facts of the card it was told before it needed the card, one a line.
    pub fn asked(&self) -> PathBuf {
        self.0.join("asked")
    }

    /// The pipe on which it is asked for a fork: a line for each, with the run directory.
    pub fn requests(&self) -> PathBuf {
        self.0.join("requests")
    }

    /// The ledger's shared memory.
    pub fn ledger(&self) -> PathBuf {
        self.0.join("ledger")
    }

    /// The file that is locked while the ledger is changed. Nothing else may open it: see `LedgerLock`.
    pub(crate) fn ledger_lock(&self) -> PathBuf {
        self.0.join("ledger.lock")
    }

    /// The event log of a process.
    pub fn events(&self, pid: u32) -> PathBuf {
        self.0.join(format!("events-{pid}.bin"))
    }

    /// The messages of a process, one JSON object a line.
    pub fn messages(&self, pid: u32) -> PathBuf {
        self.0.join(format!("messages-{pid}.jsonl"))
    }

    /// A board on which the processes leave notes for one another.
    pub(crate) fn board(&self, name: u64) -> PathBuf {
        self.0.join(format!("board-{name:016x}"))
    }

    /// Is there once a process waits to be ended, so that nobody waits for it.
    pub fn finished(&self, pid: u32) -> PathBuf {
        self.0.join(format!("finished-{pid}"))
    }

    /// What the script wrote to its standard output.
    pub fn stdout(&self) -> PathBuf {
        self.0.join("stdout.txt")
    }

    /// What the script wrote to its standard error.
    pub fn stderr(&self) -> PathBuf {
        self.0.join("stderr.txt")
    }

    /// The folder with the Python probe, first on the script's `PYTHONPATH`.
    pub fn probe(&self) -> PathBuf {
        self.0.join("probe")
    }

    /// Source files that the run is to take as changed, as JSON: a path, and what stands there instead.
    /// Absent where none is.
    pub fn edits(&self) -> PathBuf {
        self.0.join("edits.json")
    }

    /// The layer in front of the user's files. Absent where a script's writes go to the disk as they are.
    pub fn overlay(&self) -> PathBuf {
        self.0.join("overlay")
    }

    /// Its files, at their own absolute paths.
    pub fn overlay_tree(&self) -> PathBuf {
        self.overlay().join("tree")
    }

    /// A mark for each file that the run made on the user's disk.
    pub fn overlay_made(&self) -> PathBuf {
        self.overlay().join("made")
    }

    /// Is there once a checkpoint has been led to the layer.
    pub fn saved_checkpoints(&self) -> PathBuf {
        self.overlay().join("saved")
    }

    /// Is there once a file of the user's has been kept from the script.
    pub fn kept_files(&self) -> PathBuf {
        self.overlay().join("kept")
    }

    /// The folder with the libraries under the names that the loader looks for.
    pub fn libraries(&self) -> PathBuf {
        self.0.join("lib")
    }

    /// The folder with the programs that stand in front of the machine's own.
    pub fn programs(&self) -> PathBuf {
        self.0.join("bin")
    }

    /// The process ids for which there is a file `prefix-PID.suffix`, in ascending order.
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

    /// The processes that left an event log.
    pub fn event_pids(&self) -> io::Result<Vec<u32>> {
        self.pids("events-", ".bin")
    }

    /// The processes that sent messages.
    pub fn message_pids(&self) -> io::Result<Vec<u32>> {
        self.pids("messages-", ".jsonl")
    }
}
