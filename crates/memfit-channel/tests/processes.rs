//! Tests of the ledger between processes: they share a device, and a killed process releases its memory.
//!
//! Each child is this test program itself; an environment variable selects its part.

#![allow(unsafe_code, reason = "the tests fork and kill processes")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use memfit_channel::{CardSetup, Ledger, LedgerView, Outside, RunDir, Setup, TallyKind};
use memfit_devices::{Bytes, Catalogue, Interval, Overhead};

const ROLE: &str = "MEMFIT_TEST_ROLE";
const MIB: u64 = 1 << 20;

struct Run(PathBuf);

impl Run {
    fn new(name: &str, capacity: u64) -> Self {
        let path = env::temp_dir().join(format!("memfit-processes-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let device = Catalogue::builtin().unwrap().find("t4").unwrap().clone();
        let card = CardSetup::new(device.with_memory(Bytes::new(capacity)), Overhead::default());
        let setup = Setup::new(vec![card]);
        setup.write(&RunDir::new(&path)).unwrap();
        Self(path)
    }

    fn dir(&self) -> RunDir {
        RunDir::new(&self.0)
    }

    fn open(&self) -> Ledger {
        open(&self.dir())
    }

    fn child(&self, role: &str) -> Peer {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(memfit_channel::env::RUN_DIR, &self.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Peer { child, input, output }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open(run_dir: &RunDir) -> Ledger {
    Ledger::open(run_dir, &Setup::read(run_dir).unwrap(), None).unwrap()
}

struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// Waits until the child prints this word, skipping the test harness's own lines.
    fn expect(&mut self, word: &str) {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if line.trim_end().ends_with(word) {
                return;
            }
            line.clear();
        }
        panic!("the child ended without saying {word}");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn finish(mut self) {
        drop(self.input);
        self.output.read_to_string(&mut String::new()).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

fn say(word: &str) {
    let mut output = std::io::stdout();
    writeln!(output, "\n{word}").and_then(|()| output.flush()).unwrap();
}

fn wait_for_the_end_of_input() {
    std::io::stdin().read_to_string(&mut String::new()).unwrap();
}

/// Not a test: the child processes of the tests below.
#[test]
#[ignore = "child process of the other tests"]
fn child() {
    let role = env::var(ROLE).unwrap();
    let run_dir = RunDir::from_env().unwrap();
    let ledger = open(&run_dir);
    match role.as_str() {
        "hold" => {
            let (low, typical) = (Bytes::ZERO, Bytes::from_mib(1));
            let context = Interval { low, typical, high: Bytes::from_mib(2) };
            ledger.book(0, Outside::Context, context).unwrap();
            ledger.allocate(0, 50 * MIB).unwrap();
            ledger.pin(7 * MIB).unwrap();
            ledger.count(TallyKind::Note, "held");
            say("ready");
            wait_for_the_end_of_input();
        }
        "churn" => {
            say("ready");
            let mut held = Vec::new();
            for round in 0..2000u64 {
                let bytes = (round * 31 + u64::from(std::process::id())) % (20 * MIB);
                match ledger.allocate(0, bytes) {
                    Ok(()) => held.push(bytes),
                    Err(_) => held.drain(..).for_each(|bytes| ledger.release(0, bytes)),
                }
            }
            for bytes in held {
                ledger.release(0, bytes);
            }
        }
        "churn for ever" => {
            say("ready");
            loop {
                if ledger.allocate(0, MIB).is_ok() {
                    ledger.release(0, MIB);
                }
            }
        }
        other => panic!("no role {other}"),
    }
}

#[test]
fn two_processes_share_a_card() {
    let run = Run::new("share", 100 * MIB);
    let mut peer = run.child("hold");
    peer.expect("ready");
    let ledger = run.open();
    assert_eq!(ledger.free(0), Ok((48 * MIB, 100 * MIB)));
    assert!(ledger.allocate(0, 49 * MIB).is_err());
    ledger.allocate(0, 48 * MIB).unwrap();
    let view = LedgerView::read(&run.dir()).unwrap().unwrap();
    assert_eq!((view.cards[0].used, view.cards[0].peak_device_upper), (98 * MIB, 100 * MIB));
    assert_eq!(view.processes.iter().filter(|process| process.alive).count(), 2);
    assert_eq!(view.tally[0].name, "held");
    peer.finish();
}

#[test]
fn a_killed_process_gives_back_what_it_held() {
    let run = Run::new("kill", 100 * MIB);
    let mut peer = run.child("hold");
    peer.expect("ready");
    let ledger = run.open();
    assert!(ledger.allocate(0, 90 * MIB).is_err());
    peer.kill();
    assert_eq!(LedgerView::read(&run.dir()).unwrap().unwrap().cards[0].used, 0, "a reader sees it at once");
    ledger.allocate(0, 90 * MIB).unwrap();
    let view = ledger.view();
    assert_eq!(view.cards[0].peak, 90 * MIB, "the two never held memory at the same time");
    let dead = view.processes.iter().find(|process| !process.alive).unwrap();
    assert_eq!((dead.shares[0].peak, dead.peak_pinned, dead.pinned), (50 * MIB, 7 * MIB, 0));
}

#[test]
fn concurrent_processes_keep_the_ledger_consistent() {
    let run = Run::new("churn", 100 * MIB);
    let ledger = run.open();
    let mut peers: Vec<Peer> = (0..4).map(|_| run.child("churn")).collect();
    for peer in &mut peers {
        peer.expect("ready");
    }
    for _ in 0..200 {
        let card = ledger.view().cards[0];
        assert!(card.used <= card.capacity, "{} of {}", card.used, card.capacity);
    }
    peers.into_iter().for_each(Peer::finish);
    let card = ledger.view().cards[0];
    assert_eq!(card.used, 0);
    assert!(card.peak <= card.capacity && card.peak > 50 * MIB);
}

/// Kills a process repeatedly in the middle of changes, often with the lock held.
#[test]
fn a_process_killed_in_the_midst_leaves_the_ledger_usable() {
    let run = Run::new("midst", 3 * MIB);
    let ledger = run.open();
    for _ in 0..20 {
        let mut peer = run.child("churn for ever");
        peer.expect("ready");
        peer.kill();
        ledger.allocate(0, 3 * MIB).unwrap();
        ledger.release(0, 3 * MIB);
    }
    let card = ledger.view().cards[0];
    assert_eq!((card.used, card.peak), (0, 3 * MIB));
}

/// Reads the ledger in a process that also writes it (as with NVML): closing its file must not release the
/// writer's lock.
#[test]
fn reading_does_not_drop_the_lock_of_the_same_process() {
    let run = Run::new("read", 100 * MIB);
    let ledger = run.open();
    let mut peer = run.child("churn");
    peer.expect("ready");
    std::thread::scope(|scope| {
        scope.spawn(|| (0..2000).for_each(|_| drop(LedgerView::read(&run.dir()).unwrap())));
        for _ in 0..5000 {
            if ledger.allocate(0, 30 * MIB).is_ok() {
                ledger.release(0, 30 * MIB);
            }
        }
    });
    peer.finish();
    let card = ledger.view().cards[0];
    assert_eq!(card.used, 0);
    assert!(card.peak <= card.capacity, "{} of {}", card.peak, card.capacity);
}

#[test]
fn a_forked_child_does_not_hold_its_parents_lock() {
    let run = Run::new("fork", 10 * MIB);
    let ledger = run.open();
    ledger.allocate(0, MIB).unwrap();
    // SAFETY: the child only makes system calls until it ends itself.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: no code of the parent runs in the child after this.
        unsafe {
            libc::pause();
            libc::_exit(0)
        }
    }
    ledger.allocate(0, MIB).unwrap();
    // SAFETY: the child is this process's.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    assert_eq!(ledger.view().cards[0].used, 2 * MIB, "the child's end takes nothing of the parent's");
    ledger.allocate(0, MIB).unwrap();
}
