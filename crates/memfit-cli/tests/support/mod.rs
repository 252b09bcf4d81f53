//! A stand-in for a script: a process that joins a run like PyTorch on the virtual device, and plays the
//! requested part.
//!
//! The test program itself plays it: `memfit run -- TEST-PROGRAM --exact the_script --ignored`, with the part
//! in the environment.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use memfit_channel::ledger::{Ledger, Outside, TallyKind};
use memfit_channel::message::{Cause, DeviceStats, Done, Oom};
use memfit_channel::proc::Stat;
use memfit_channel::{Message, RunDir, Setup};
use tempfile::TempDir;

/// Environment variable with the part to play.
pub(crate) const PART: &str = "MEMFIT_TEST_PART";
/// Environment variable with the folder in which the stand-in writes its process ids.
pub(crate) const PIDS: &str = "MEMFIT_TEST_PIDS";

pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const MIB: u64 = 1 << 20;

/// A folder in which memfit runs, with libraries that do nothing.
pub(crate) struct Place {
    pub(crate) folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let libraries = folder.path().join("libraries");
        std::fs::create_dir(&libraries).unwrap();
        std::fs::create_dir(folder.path().join("pids")).unwrap();
        std::fs::create_dir(folder.path().join("tmp")).unwrap();
        let empty = folder.path().join("empty.c");
        std::fs::write(&empty, "").unwrap();
        let first = libraries.join("libcuda.so.1");
        let status = Command::new("cc").args(["-shared", "-o"]).arg(&first).arg(&empty).status().unwrap();
        assert!(status.success(), "cc made no library");
        for name in ["libnvidia-ml.so.1", "libmemfit_watch.so"] {
            std::fs::copy(&first, libraries.join(name)).unwrap();
        }
        Self { folder }
    }

    /// The command with an empty environment.
    pub(crate) fn memfit(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memfit"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("TMPDIR", self.folder.path().join("tmp"))
            .env("MEMFIT_LIBRARY_DIR", self.folder.path().join("libraries"))
            .env(PIDS, self.pids());
        command
    }

    /// `memfit run` of the stand-in with this part.
    pub(crate) fn run(&self, part: &str, options: &[&str]) -> Command {
        let script = std::env::current_exe().unwrap();
        let mut arguments = vec!["run", "--gpu", "rtx-4090", "--format", "json"];
        arguments.extend(options);
        arguments.extend(["--", script.to_str().unwrap()]);
        arguments.extend(["--exact", "the_script", "--ignored", "--nocapture", "--test-threads=1"]);
        let mut command = self.memfit(&arguments);
        command.env(PART, part);
        command
    }

    /// The same, run to its end; returns the report.
    pub(crate) fn report(&self, part: &str, options: &[&str]) -> (Output, serde_json::Value) {
        let output = self.run(part, options).output().unwrap();
        let report = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", text(&output.stdout) + &text(&output.stderr)));
        (output, report)
    }

    pub(crate) fn pids(&self) -> PathBuf {
        self.folder.path().join("pids")
    }

    /// The ids of the processes that the stand-in started.
    pub(crate) fn started(&self) -> Vec<u32> {
        std::fs::read_dir(self.pids())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
            .collect()
    }

    /// `true` if none of the run's files is left.
    pub(crate) fn is_clean(&self) -> bool {
        std::fs::read_dir(self.folder.path().join("tmp")).unwrap().next().is_none()
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `true` if a process exists and has not ended.
pub(crate) fn is_alive(pid: u32) -> bool {
    Stat::read(pid).is_ok_and(|stat| !stat.ended)
}

/// The stand-in's end of the channel.
pub(crate) struct Script {
    pub(crate) run_dir: RunDir,
    pub(crate) setup: Setup,
    pub(crate) ledger: Ledger,
    messages: File,
}

impl Script {
    pub(crate) fn join() -> Self {
        let run_dir = RunDir::from_env().expect("the stand-in runs under memfit");
        let setup = Setup::read(&run_dir).unwrap();
        let rank: Option<u32> = std::env::var("RANK").ok().map(|rank| rank.parse().unwrap());
        let world_size = std::env::var("WORLD_SIZE").ok().map(|size| size.parse().unwrap());
        let ledger = Ledger::open(&run_dir, &setup, rank).unwrap();
        let pid = std::process::id();
        let messages = File::create(run_dir.messages(pid)).unwrap();
        let mut script = Self { run_dir, setup, ledger, messages };
        let (python, executable) = ("3.11.7".to_owned(), "python".to_owned());
        let parent = Some(std::os::unix::process::parent_id());
        script.say(&Message::Hello { pid, parent, python, executable, rank, world_size });
        script.say(&Message::Torch { version: "2.15.0".into(), cuda: Some("13.2".into()), alloc_conf: None });
        note_pid();
        script
    }

    pub(crate) fn say(&mut self, message: &Message) {
        let mut line = serde_json::to_vec(message).unwrap();
        line.push(b'\n');
        self.messages.write_all(&line).unwrap();
    }

    pub(crate) fn garble(&mut self) {
        self.messages.write_all(b"{\"kind\": \"no such thing\"}\n\xff\xfe\n").unwrap();
    }

    /// Creates a context, loads libraries, and allocates `bytes` of the GPU's memory.
    pub(crate) fn allocate(&mut self, bytes: u64) {
        let overhead = &self.setup.cards[0].overhead;
        self.ledger.book(0, Outside::Context, overhead.context).unwrap();
        self.ledger.book(0, Outside::Libraries, overhead.libraries).unwrap();
        self.ledger.allocate(0, bytes).unwrap();
    }

    pub(crate) fn steps(&mut self, steps: std::ops::RangeInclusive<u64>) {
        for step in steps {
            self.say(&Message::Step { step, allocated: GIB, peak_allocated: 2 * GIB, clock: None });
        }
    }

    pub(crate) fn oom(&mut self, step: u64) {
        self.say(&Message::Oom(Oom {
            requested: 392 * MIB,
            device: 0,
            step,
            phase: "forward".into(),
            module: Some("layer3.5.conv2".into()),
            evaluation: false,
            stack: vec!["train.py:51 in main".into()],
        }));
        self.say(&Message::OomText { text: "CUDA out of memory. Tried to allocate 392.00 MiB.".into() });
    }

    pub(crate) fn uncaught(&mut self, r#type: &str, oom: bool) {
        self.say(&Message::Exception {
            r#type: r#type.into(),
            message: "it failed".into(),
            traceback: "Traceback (most recent call last):\n".into(),
            oom,
            cause: Cause::default(),
        });
    }

    pub(crate) fn done(&mut self, reason: &str, steps: u64) {
        let stats = DeviceStats { peak_allocated: 2 * GIB, peak_reserved: 3 * GIB, ..DeviceStats::default() };
        self.say(&Message::Done(Done {
            reason: reason.into(),
            steps,
            forward_only: false,
            evaluation: false,
            largest_batch: false,
            epoch_end: true,
            growth_per_step: Some(0),
            unmet: 0,
            held: false,
            feeding: None,
            asks_size: false,
            reduced: None,
            not_run: Vec::new(),
            devices: [(0, stats)].into(),
        }));
    }

    pub(crate) fn tally(&self, kind: TallyKind, name: &str) {
        self.ledger.count(kind, name);
    }
}

/// Writes this process's id to the folder that the test reads.
pub(crate) fn note_pid() {
    let folder = std::env::var_os(PIDS).expect("the test names a folder");
    std::fs::write(Path::new(&folder).join(std::process::id().to_string()), "").unwrap();
}

/// Waits for ever, like a process that has completed the requested steps.
pub(crate) fn wait() -> ! {
    loop {
        std::thread::park();
    }
}
