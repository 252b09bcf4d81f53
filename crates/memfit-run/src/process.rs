//! Starts the command, and ends all its processes.

#![allow(unsafe_code, reason = "processes are started, watched and ended by system calls")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::unix::process::CommandExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command as StdCommand, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use memfit_channel::RunDir;

use crate::environment::Command;
use crate::stage::Stage;
use crate::{RunError, tree};

/// Maximum time for killed processes to disappear.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time for processes to say where they are. One that is stopped says nothing.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// First process of a run.
#[derive(Debug)]
pub(crate) enum Running {
    /// Child process that memfit started.
    Child(Child),
    /// Adopted process, forked by one that memfit started.
    Fork(u32),
}

impl Running {
    /// Process id.
    pub(crate) fn id(&self) -> u32 {
        match self {
            Self::Child(child) => child.id(),
            Self::Fork(pid) => *pid,
        }
    }

    /// Exit status, if it has ended.
    pub(crate) fn try_wait(&mut self) -> Option<ExitStatus> {
        match self {
            Self::Child(child) => child.try_wait().ok().flatten(),
            Self::Fork(pid) => adopted(*pid),
        }
    }

    /// Waits for its end.
    fn wait(&mut self) {
        match self {
            Self::Child(child) => {
                let _status = child.wait();
            }
            Self::Fork(pid) => {
                let _status = adopted(*pid);
            }
        }
    }
}

/// Exit status of an adopted process, if it has ended. If another process has reaped it, success is assumed.
fn adopted(pid: u32) -> Option<ExitStatus> {
    let pid = libc::pid_t::try_from(pid).ok()?;
    let mut status = 0;
    // SAFETY: `status` is a local variable that the call may write.
    match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
        0 => None,
        found if found == pid => Some(ExitStatus::from_raw(status)),
        // Not adopted yet: its parent is about to end.
        _ if std::path::Path::new(&format!("/proc/{pid}")).exists() => None,
        _ => Some(ExitStatus::from_raw(0)),
    }
}

/// Starts the command in a new session, with its output in the run directory.
pub(crate) fn start(command: &Command, stage: &Stage) -> Result<Child, RunError> {
    let create = |path: std::path::PathBuf| File::create(&path).map_err(RunError::io("write", path));
    let stdout = create(stage.run_dir().stdout())?;
    let stderr = create(stage.run_dir().stderr())?;
    let mut child = StdCommand::new(&command.program);
    child.args(&command.args).stdout(stdout).stderr(stderr);
    // A script in a new session cannot read the terminal; piped input is meant for it.
    if io::stdin().is_terminal() {
        child.stdin(Stdio::null());
    }
    for (name, value) in stage.environment() {
        match value {
            Some(value) => child.env(name, value),
            None => child.env_remove(name),
        };
    }
    child.envs(stage.library_environment());
    // SAFETY: between fork and exec only `setsid` is called, which is async-signal-safe.
    unsafe {
        child.pre_exec(|| if libc::setsid() == -1 { Err(io::Error::last_os_error()) } else { Ok(()) });
    }
    child.spawn().map_err(|source| RunError::Start { program: command.program.clone(), source })
}

/// Makes memfit the parent of orphaned descendants, so that they can be found and reaped.
pub(crate) fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    // SAFETY: sets a flag of this process; a kernel that does not know it returns an error, which changes
    // nothing.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    }
}

/// Kills a process.
pub(crate) fn kill(pid: u32) {
    send(pid, libc::SIGKILL);
}

fn send(pid: u32, signal: libc::c_int) {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return };
    // SAFETY: `pid` is positive, so it denotes one process and never a group.
    unsafe {
        libc::kill(pid, signal);
    }
}

/// Asks all processes of a run that is to be ended for the line of Python that they are at, and waits for the
/// answers, which are files in the run directory.
pub(crate) fn ask_where(child: &Running, run_dir: &RunDir) {
    let all = tree::all_processes();
    let mut alive = tree::descendants(&all, child.id());
    alive.extend(tree::with_run_dir(run_dir));
    let mut asked: Vec<u32> = run_dir.crash_pids().unwrap_or_default();
    asked.retain(|pid| alive.contains(pid) && all.get(pid).is_some_and(|process| !process.ended));
    asked.iter().copied().for_each(|pid| send(pid, where_signal()));
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let answered = |pid: &u32| std::fs::metadata(run_dir.crash(*pid)).is_ok_and(|file| file.len() > 0);
    while !asked.iter().all(answered) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Signal that the probe answers with the line of Python.
#[cfg(target_os = "linux")]
fn where_signal() -> libc::c_int {
    libc::SIGRTMAX() - 6
}

/// Scripts run in a container where the system is another one: nobody has to be asked here.
#[cfg(not(target_os = "linux"))]
fn where_signal() -> libc::c_int {
    0
}

/// Reaps an adopted process.
fn reap(pid: u32) {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return };
    // SAFETY: a null status is allowed; for a process that is not a child, the call returns an error.
    unsafe {
        libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG);
    }
}

/// Ends all processes of the run, and returns when they are gone.
pub(crate) fn end_all(child: &mut Running, run_dir: &RunDir) {
    let mut known = BTreeSet::new();
    let deadline = Instant::now() + KILL_TIMEOUT;
    loop {
        let all = tree::all_processes();
        // Orphans have become children of memfit, so known processes are remembered.
        known.append(&mut tree::descendants(&all, child.id()));
        known.append(&mut tree::with_run_dir(run_dir));
        known.retain(|pid| all.contains_key(pid));
        let running: Vec<u32> = known.iter().copied().filter(|pid| !all[pid].ended).collect();
        running.iter().copied().for_each(kill);
        let _status = child.try_wait();
        known.iter().copied().filter(|pid| *pid != child.id() && all[pid].ended).for_each(reap);
        if running.is_empty() || Instant::now() > deadline {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait();
}
