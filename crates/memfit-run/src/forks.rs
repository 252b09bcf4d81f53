//! A process of the script that is prepared once and forked for each run.
//!
//! Importing torch and building a model takes seconds; a step on the virtual device takes milliseconds. The
//! script runs until it first needs the device. Each run then continues from that point in a forked child
//! with its own run directory. memfit adopts the children, and watches and ends them like processes that it
//! started itself.

#![allow(unsafe_code, reason = "processes are started, watched and ended by system calls")]

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memfit_channel::{Planned, ValuePolicy};
use memfit_devices::Device;

use crate::environment::Command;
use crate::keeper::Keeper;
use crate::preflight::Torch;
use crate::process::{self, Running};
use crate::stage::{Changes, Stage};
use crate::{Card, Home, Interrupt, Request, RunError};

/// Polling interval for reports.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum duration of a fork.
const FORK_TIMEOUT: Duration = Duration::from_mins(1);

/// The process that is forked for each run.
#[derive(Debug)]
pub(crate) struct Server {
    /// The process. The lock ensures that it forks one child at a time.
    child: Mutex<Running>,
    stage: Stage,
    requests: File,
    /// The GPU whose properties the script may have read before the fork.
    device: Option<Device>,
    _keeper: Keeper,
}

impl Server {
    /// Returns `true` if a run on another GPU can continue from here: all GPU properties that the script has
    /// read so far are the same there, and so is the way in which pages of the host count.
    pub(crate) fn stands_for(&self, device: &Device) -> bool {
        let Some(own) = &self.device else { return true };
        if own.shares_host_memory() != device.shares_host_memory() {
            return false;
        }
        let asked = std::fs::read_to_string(self.stage.run_dir().asked()).unwrap_or_default();
        asked.lines().all(|fact| is_shared(fact, own, device))
    }

    /// Starts the command and waits until it can be forked. Returns `None` if it cannot: it may train in
    /// several processes, or end without using a device.
    pub(crate) fn start(
        request: &Request,
        command: &Command,
        torch: Option<&Torch>,
        home: &Home,
    ) -> Result<Option<Self>, RunError> {
        let planned = Some(Planned { serves: true, ..Planned::default() });
        let request = Request { planned, ..request.clone() };
        let stage = Stage::set_up(&request, torch, ValuePolicy::UPPER, &Changes::default(), home)?;
        let requests = stage.run_dir().requests();
        make_pipe(&requests)?;
        let interrupt = Interrupt::listen();
        process::adopt_orphans();
        let keeper = Keeper::start(stage.run_dir(), false)
            .map_err(RunError::io("start a keeper for the run in", stage.run_dir().path()))?;
        let mut child = Running::Child(process::start(command, &stage)?);
        let started = Instant::now();
        loop {
            let ended = child.try_wait().is_some();
            let said = std::fs::read_to_string(stage.run_dir().forks()).unwrap_or_default();
            if said == "ready" {
                break;
            }
            let late = request.timeout.is_some_and(|timeout| started.elapsed() >= timeout);
            if ended || late || !said.is_empty() || interrupt.happened() {
                process::end_all(&mut child, stage.run_dir());
                if interrupt.happened() {
                    return Err(RunError::Interrupted);
                }
                return Ok(None);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let requests =
            OpenOptions::new().write(true).open(&requests).map_err(RunError::io("write to", &requests))?;
        let device = match &request.card {
            Card::Virtual(device, _) => Some((**device).clone()),
            Card::Local(_) => None,
        };
        Ok(Some(Self { child: Mutex::new(child), stage, requests, device, _keeper: keeper }))
    }

    /// Forks the server for the run in `stage`; `None` if it does not answer.
    pub(crate) fn fork(&self, stage: &Stage) -> Option<Running> {
        let mut child = self.child();
        let mut line = stage.run_dir().path().as_os_str().as_bytes().to_vec();
        line.push(b'\n');
        (&self.requests).write_all(&line).ok()?;
        let asked = Instant::now();
        while asked.elapsed() < FORK_TIMEOUT {
            if let Some(pid) =
                std::fs::read_to_string(stage.run_dir().forks()).ok().and_then(|text| text.parse().ok())
            {
                return Some(Running::Fork(pid));
            }
            if child.try_wait().is_some() {
                return None;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        None
    }

    fn child(&self) -> MutexGuard<'_, Running> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        process::end_all(&mut self.child(), self.stage.run_dir());
    }
}

/// Returns `true` if a GPU property, by the probe's name for it, is the same on both.
fn is_shared(fact: &str, one: &Device, other: &Device) -> bool {
    let has_bf16 = |device: &Device| device.compute_capability.major >= 8;
    match fact {
        "name" => one.name == other.name,
        "capability" => one.compute_capability == other.compute_capability,
        "memory" => one.memory == other.memory,
        "bf16" => has_bf16(one) == has_bf16(other),
        _ => false,
    }
}

/// Creates a named pipe.
fn make_pipe(path: &Path) -> Result<(), RunError> {
    let mut name = path.as_os_str().as_bytes().to_vec();
    name.push(0);
    // SAFETY: the name ends with NUL and is read only during the call.
    let made = unsafe { libc::mkfifo(name.as_ptr().cast(), 0o600) };
    if made == 0 { Ok(()) } else { Err(RunError::io("make the pipe", path)(std::io::Error::last_os_error())) }
}
