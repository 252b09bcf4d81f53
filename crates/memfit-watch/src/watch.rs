//! State of the watcher: one log, the current phase and step, and each device's counters.

#![allow(unsafe_code, reason = "functions of PyTorch are interposed")]

use std::{
    process, ptr,
    sync::{
        Once,
        atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    thread,
};

use memfit_channel::{
    RunDir,
    events::{DEFAULT_CAP, Event, EventContext, SegmentChange, Writer},
};

use crate::labels;

/// Maximum devices with counters; PyTorch itself supports at most 120, a machine has at most 16.
pub const DEVICES: usize = 64;

/// State of a device's allocator, as returned by [`crate::api::memfit_watch_stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Stats {
    /// Bytes in blocks now.
    pub allocated: u64,
    /// Bytes in segments now.
    pub reserved: u64,
    /// Peak bytes in blocks since the window began.
    pub peak_allocated: u64,
    /// Peak bytes in segments since the window began.
    pub peak_reserved: u64,
    /// Number of blocks handed out so far.
    pub allocs: u64,
    /// Number of blocks freed so far.
    pub frees: u64,
    /// Number of failed requests.
    pub ooms: u64,
}

#[derive(Default)]
struct Counters {
    allocated: AtomicU64,
    reserved: AtomicU64,
    peak_allocated: AtomicU64,
    peak_reserved: AtomicU64,
    allocs: AtomicU64,
    frees: AtomicU64,
    ooms: AtomicU64,
}

/// An event of PyTorch's allocator.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Index of the device.
    pub device: u8,
    /// Address of the block.
    pub address: u64,
    /// Size of the block; negative if it was freed.
    pub bytes: i64,
    /// Bytes in blocks, after the event.
    pub allocated: u64,
    /// Bytes in segments, after the event.
    pub reserved: u64,
}

/// A change of a segment, as passed to [`crate::api::memfit_watch_segment`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// Start address.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Handle of the stream.
    pub stream: u64,
    /// Time in microseconds.
    pub time_us: u64,
    /// Number of the stack; 0 for none.
    pub stack: u32,
    /// Code of a `memfit_channel::events::SegmentChange`.
    pub change: u8,
}

/// The watcher of one process.
pub struct Watch {
    log: Writer,
    phase: AtomicU8,
    phase_changes: AtomicU32,
    step: AtomicU32,
    devices: [Counters; DEVICES],
    /// `true` once PyTorch's own allocator has reported a block; other reports are then ignored.
    pytorch_reports: AtomicBool,
}

impl Watch {
    /// Creates a watcher that writes to `log`.
    pub fn new(log: Writer) -> Self {
        Self {
            log,
            phase: AtomicU8::new(0),
            phase_changes: AtomicU32::new(1),
            step: AtomicU32::new(0),
            devices: std::array::from_fn(|_| Counters::default()),
            pytorch_reports: AtomicBool::new(false),
        }
    }

    /// Watcher of this process, if it belongs to a run. The log is created on first use, and again after a
    /// fork.
    pub fn get() -> Option<&'static Self> {
        loop {
            match STATE.load(Ordering::Acquire) {
                // SAFETY: in this state the pointer was set by `start` from a leaked box and is never freed.
                READY => return unsafe { CURRENT.load(Ordering::Acquire).as_ref() },
                OFF => return None,
                UNKNOWN => start(),
                _ => thread::yield_now(),
            }
        }
    }

    /// Context of an event of a device that happens now on this thread.
    fn context(&self, device: u8) -> EventContext {
        EventContext {
            device,
            phase: self.phase.load(Ordering::Relaxed),
            thread: labels::thread(),
            module: labels::module(self.phase_changes.load(Ordering::Relaxed)),
            step: self.step.load(Ordering::Relaxed),
        }
    }

    /// Records a block that the allocator handed out or took back.
    pub fn report(&self, report: &Report) {
        self.pytorch_reports.store(true, Ordering::Relaxed);
        self.enter_block(report);
    }

    /// Does the same for a block reported by the device, for programs whose blocks come directly from it.
    pub fn report_of_device(&self, report: &Report) {
        if !self.pytorch_reports.load(Ordering::Relaxed) {
            self.enter_block(report);
        }
    }

    fn enter_block(&self, report: &Report) {
        let Report { address, allocated, reserved, .. } = *report;
        let (place, bytes, gone) =
            (self.context(report.device), report.bytes.unsigned_abs(), report.bytes < 0);
        self.log.push(&if gone {
            Event::Free { place, address, bytes, allocated, reserved }
        } else {
            Event::Alloc { place, address, bytes, allocated, reserved }
        });
        let Some(counters) = self.devices.get(usize::from(report.device)) else { return };
        counters.allocated.store(report.allocated, Ordering::Relaxed);
        counters.reserved.store(report.reserved, Ordering::Relaxed);
        counters.peak_allocated.fetch_max(report.allocated, Ordering::Relaxed);
        counters.peak_reserved.fetch_max(report.reserved, Ordering::Relaxed);
        let count = if gone { &counters.frees } else { &counters.allocs };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the allocator could not serve a request of `report.bytes`.
    pub fn out_of_memory(&self, report: &Report) {
        self.log.push(&Event::Oom {
            place: self.context(report.device),
            bytes: u64::try_from(report.bytes).unwrap_or(0),
            allocated: report.allocated,
            reserved: report.reserved,
        });
        if let Some(counters) = self.devices.get(usize::from(report.device)) {
            counters.ooms.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Enters a phase; returns the previous one.
    pub fn phase(&self, phase: u8) -> u8 {
        let before = self.phase.swap(phase, Ordering::Relaxed);
        if before != phase {
            self.phase_changes.fetch_add(1, Ordering::Relaxed);
            self.log.push(&Event::Phase { place: self.context(0) });
        }
        before
    }

    /// Current phase of the process.
    pub fn current_phase(&self) -> u8 {
        self.phase.load(Ordering::Relaxed)
    }

    /// Records that `step` optimizer steps are complete.
    pub fn step(&self, step: u32) {
        self.step.store(step, Ordering::Relaxed);
        self.log.push(&Event::Step { step });
    }

    /// Begins a module's call on this thread; returns the number of calls that were open before it.
    pub fn enter(&self, module: u32) -> usize {
        let before = labels::depth();
        labels::enter(module);
        self.log.push(&Event::ScopeEnter { place: self.context(0) });
        before
    }

    /// Ends the innermost module call of this thread; returns the number of calls that are still open.
    pub fn exit(&self) -> usize {
        let place = self.context(0);
        if labels::exit().is_some() {
            self.log.push(&Event::ScopeExit { place });
        }
        labels::depth()
    }

    /// Sets the module of the backward node that runs on this thread.
    pub fn node(&self, module: u32) {
        labels::set_node(module, self.phase_changes.load(Ordering::Relaxed));
    }

    /// Innermost module that this thread works for; 0 for none.
    pub fn module(&self) -> u32 {
        labels::module(self.phase_changes.load(Ordering::Relaxed))
    }

    /// Assigns a category to the blocks that contain these addresses; `owners` has each one's name, or is
    /// empty.
    pub fn note(&self, addresses: &[u64], category: u8, owners: &[u32]) {
        let owners = owners.iter().copied().chain(std::iter::repeat(0));
        let known = addresses.iter().zip(owners).filter(|(address, _)| **address != 0);
        self.log.push_all(known.map(|(&address, owner)| Event::Note { address, category, owner }));
    }

    /// Records the requested sizes of blocks on a device: for its allocations from number `first` on, or, if
    /// `first` is 0, for the blocks that are live at these addresses.
    pub fn requested(&self, device: u8, first: u64, addresses: &[u64], bytes: &[i64]) {
        let blocks = (0..).zip(addresses.iter().zip(bytes));
        self.log.push_all(blocks.filter_map(|(index, (&address, &bytes))| {
            let number = if first == 0 { 0 } else { first.saturating_add(index) };
            Some(Event::Requested { device, number, address, bytes: u64::try_from(bytes).ok()? })
        }));
    }

    /// Assigns a number to a text.
    pub fn text(&self, id: u32, text: &[u8]) {
        self.log.push_text(id, text);
    }

    /// Assigns a number to a frame; its function and file are text numbers.
    pub fn frame(&self, id: u32, name: u32, file: u32, line: u32) {
        self.log.push(&Event::Frame { id, name, file, line });
    }

    /// Assigns a number to a stack.
    pub fn stack(&self, id: u32, frames: &[u32]) {
        self.log.push_stack(id, frames);
    }

    /// Records the stacks, streams and times of a device's allocations from number `first` on.
    pub fn traced(&self, device: u8, first: u64, stacks: &[u32], streams: &[u64], times: &[u64]) {
        let blocks = (first..).zip(stacks.iter().zip(streams).zip(times));
        self.log.push_all(blocks.map(|(number, ((&stack, &stream), &time_us))| Event::Traced {
            device,
            number,
            stack,
            stream,
            time_us,
        }));
    }

    /// Records a change of a device's segment, after its allocation with this number.
    pub fn segment(&self, device: u8, number: u64, segment: &Segment) {
        let Segment { address, bytes, stream, time_us, stack, change } = *segment;
        // A change that this build does not know is unknown to readers, too.
        let Some(change) = SegmentChange::from_code(change) else { return };
        self.log.push(&Event::Segment { device, change, number, address, bytes, stack, stream, time_us });
    }

    /// Counters of a device.
    pub fn stats(&self, device: usize) -> Option<Stats> {
        let counters = self.devices.get(device)?;
        Some(Stats {
            allocated: counters.allocated.load(Ordering::Relaxed),
            reserved: counters.reserved.load(Ordering::Relaxed),
            peak_allocated: counters.peak_allocated.load(Ordering::Relaxed),
            peak_reserved: counters.peak_reserved.load(Ordering::Relaxed),
            allocs: counters.allocs.load(Ordering::Relaxed),
            frees: counters.frees.load(Ordering::Relaxed),
            ooms: counters.ooms.load(Ordering::Relaxed),
        })
    }

    /// Begins a new window for a device's peaks.
    pub fn reset_window(&self, device: usize) {
        if let Some(counters) = self.devices.get(device) {
            counters.peak_allocated.store(counters.allocated.load(Ordering::Relaxed), Ordering::Relaxed);
            counters.peak_reserved.store(counters.reserved.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

const UNKNOWN: u8 = 0;
const STARTING: u8 = 1;
const READY: u8 = 2;
const OFF: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static CURRENT: AtomicPtr<Watch> = AtomicPtr::new(ptr::null_mut());
static AT_FORK: Once = Once::new();

/// Starts this process's watcher, or records that there is no run. Another thread may be doing so already.
fn start() {
    if STATE.compare_exchange(UNKNOWN, STARTING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return;
    }
    let log = RunDir::from_env().and_then(|run_dir| {
        let pid = process::id();
        // A log that cannot be written must not keep the script from running; the runner reports that it is
        // missing.
        Writer::create(&run_dir.events(pid), pid, DEFAULT_CAP).ok()
    });
    let Some(log) = log else {
        STATE.store(OFF, Ordering::Release);
        return;
    };
    AT_FORK.call_once(|| {
        // SAFETY: registers a handler that only stores to atomics.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
    // Leaked on purpose: the allocator may call until the very end of the process.
    CURRENT.store(Box::into_raw(Box::new(Watch::new(log))), Ordering::Release);
    STATE.store(READY, Ordering::Release);
}

/// Resets the state in a forked child, which must not write to the parent's log.
extern "C" fn forked() {
    CURRENT.store(ptr::null_mut(), Ordering::Release);
    STATE.store(UNKNOWN, Ordering::Release);
}
