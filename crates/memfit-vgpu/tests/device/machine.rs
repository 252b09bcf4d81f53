//! The run that the tests belong to.

#![allow(unsafe_code, reason = "the tests call as C callers do")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use memfit_channel::{CardSetup, LedgerView, RunDir, Setup};
use memfit_devices::{Bytes, Catalogue, Interval, Overhead};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const CARDS: i32 = 2;
pub(crate) const CAPACITY: u64 = 8 * GIB;
/// Upper bound of a context's memory.
pub(crate) const CONTEXT: u64 = 300 * MIB;
/// Memory of a communicator after its first all-reduce.
pub(crate) const COMMUNICATOR: u64 = 100 * MIB;

static CARD: Mutex<()> = Mutex::new(());

/// Creates a run directory with two devices of 8 GiB.
pub(crate) fn make_run(name: &str) -> PathBuf {
    let path = env::temp_dir().join(format!("memfit-device-{}-{name}", std::process::id()));
    // A killed test of a process with this id may have left its own.
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    let device = Catalogue::builtin().unwrap().find("rtx-4090").unwrap().clone();
    let mib = Bytes::from_mib;
    let overhead = Overhead {
        context: Interval { low: mib(100), typical: mib(200), high: Bytes::new(CONTEXT) },
        per_communicator: Interval { low: Bytes::ZERO, ..Interval::exact(Bytes::new(COMMUNICATOR)) },
        ..Overhead::default()
    };
    let card = CardSetup::new(device.with_memory(Bytes::new(CAPACITY)), overhead);
    let setup = Setup::new(vec![card; CARDS as usize]);
    setup.write(&RunDir::new(&path)).unwrap();
    path
}

/// Size of a page of the host.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: a query without side effects.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap()
}

/// The run that [`enter`] created, and the process that created it.
static SHARED: OnceLock<(u32, PathBuf)> = OnceLock::new();

/// Puts this process into a run, whose files are removed at its end.
pub(crate) fn enter() {
    SHARED.get_or_init(|| {
        let path = make_run("shared");
        // SAFETY: tests read the environment through the standard library only, which locks it; the handler
        // only removes files.
        unsafe {
            env::set_var(memfit_channel::env::RUN_DIR, &path);
            libc::atexit(remove_shared);
        }
        (std::process::id(), path)
    });
}

/// Removes the run's files, except in a forked child, whose run it is not.
extern "C" fn remove_shared() {
    if let Some((_, path)) = SHARED.get().filter(|(maker, _)| *maker == std::process::id()) {
        let _ = fs::remove_dir_all(path);
    }
}

/// Reserves the devices for one test: no other test allocates meanwhile.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    enter();
    CARD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ledger of the shared run.
pub(crate) fn ledger() -> LedgerView {
    let path = env::var_os(memfit_channel::env::RUN_DIR).unwrap();
    LedgerView::read(&RunDir::new(Path::new(&path))).unwrap().unwrap()
}
