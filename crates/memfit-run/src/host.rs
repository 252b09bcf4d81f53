//! Host memory of a run: resident memory, and `/dev/shm`.

#![allow(unsafe_code, reason = "processes are started, watched and ended by system calls")]

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

/// Interval of a repeated task, adapted so that the task uses a small share of one CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    least: Duration,
    most: Duration,
    interval: Duration,
    last: Option<Instant>,
}

impl Pace {
    /// Ratio of pause to work. Three tasks each have a `Pace`, so together they use a hundredth of one CPU.
    const REST_FACTOR: u32 = 300;

    /// Creates a pace whose interval stays between `least` and `most`, whatever the task costs.
    pub(crate) const fn new(least: Duration, most: Duration) -> Self {
        Self { least, most, interval: least, last: None }
    }

    /// Returns `true` if the task is due.
    pub(crate) fn is_due(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= self.interval)
    }

    /// Time until the task is due again.
    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    /// Runs the task, and adapts the interval to the CPU time that it takes.
    pub(crate) fn work<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = processor_time();
        let result = work();
        self.took(processor_time().saturating_sub(before));
        result
    }

    fn took(&mut self, cost: Duration) {
        self.interval = (cost * Self::REST_FACTOR).clamp(self.least, self.most);
        self.last = Some(Instant::now());
    }
}

/// CPU time of this thread.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer leads to a structure that the call may write.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Peaks of a run's processes on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostPeaks {
    /// Resident memory; shared pages are counted once.
    pub(crate) resident: u64,
    /// Growth of `/dev/shm`.
    pub(crate) shared_memory: u64,
}

/// Samples host memory at intervals.
#[derive(Debug)]
pub(crate) struct HostWatch {
    shm_before: u64,
    peaks: HostPeaks,
    proportional: Pace,
}

/// Interval for reading proportional set sizes, for which the kernel walks all pages of a process.
const PROPORTIONAL: Pace = Pace::new(Duration::from_millis(200), Duration::from_mins(5));

impl HostWatch {
    /// Starts watching, before the first process starts.
    pub(crate) fn start() -> Self {
        Self {
            shm_before: used_shared_memory().unwrap_or(0),
            peaks: HostPeaks::default(),
            proportional: PROPORTIONAL,
        }
    }

    /// Samples these processes; `whole` reads everything, whatever it costs.
    pub(crate) fn sample(&mut self, pids: &BTreeSet<u32>, whole: bool) {
        let memories: Vec<Memory> = pids.iter().filter_map(|pid| Memory::read(*pid)).collect();
        let together: u64 = match memories.as_slice() {
            [one] => one.resident,
            // Forked workers share most pages with their parent, so only proportional set sizes can be added
            // up.
            _ if whole || self.proportional.is_due() => {
                self.proportional.work(|| pids.iter().map(|pid| proportional(*pid).unwrap_or(0)).sum())
            }
            _ => 0,
        };
        // A process may have used more between two samples: the kernel records the peak of each process.
        let alone = memories.iter().map(|memory| memory.peak).max().unwrap_or(0);
        self.peaks.resident = self.peaks.resident.max(together).max(alone);
        let growth = used_shared_memory().unwrap_or(0).saturating_sub(self.shm_before);
        // Other programs use /dev/shm as well; at most the bytes that the run's processes have mapped belong
        // to the run.
        let mapped: u64 = memories.iter().map(|memory| memory.shared).sum();
        self.peaks.shared_memory = self.peaks.shared_memory.max(growth.min(mapped));
    }

    /// Peaks so far.
    pub(crate) fn peaks(&self) -> HostPeaks {
        self.peaks
    }
}

/// Contents of `/proc/PID/status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Memory {
    resident: u64,
    peak: u64,
    shared: u64,
}

impl Memory {
    fn read(pid: u32) -> Option<Self> {
        Some(Self::parse(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?))
    }

    fn parse(status: &str) -> Self {
        Self {
            resident: field(status, "VmRSS:"),
            peak: field(status, "VmHWM:"),
            shared: field(status, "RssShmem:"),
        }
    }
}

/// Current resident memory of a process.
pub(crate) fn resident(pid: u32) -> Option<u64> {
    Memory::read(pid).map(|memory| memory.resident)
}

fn proportional(pid: u32) -> Option<u64> {
    Some(field(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?, "Pss:"))
}

/// Parses the size in a line such as `VmRSS:     1234 kB`, where the kernel's kB are KiB.
fn field(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib << 10)
}

/// Resources of this machine that a data loader can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Number of CPUs.
    pub processors: u64,
    /// Free bytes of `/dev/shm`.
    pub shared_memory: u64,
    /// Bytes of available memory.
    pub memory: u64,
}

impl Machine {
    /// Resources of the machine that this process runs on.
    pub fn current() -> Self {
        let memory = fs::read_to_string("/proc/meminfo").map_or(0, |text| field(&text, "MemAvailable:"));
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        Self { processors, shared_memory: free_shared_memory().unwrap_or(0), memory }
    }
}

fn used_shared_memory() -> Option<u64> {
    let stat = shared_memory()?;
    Some(stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(stat.f_frsize))
}

/// Free bytes of `/dev/shm`.
pub fn free_shared_memory() -> Option<u64> {
    let stat = shared_memory()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Statistics of the file system at `/dev/shm`.
fn shared_memory() -> Option<rustix::fs::StatVfs> {
    rustix::fs::statvfs("/dev/shm").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_text_is_read() {
        let status = "Name:\tpython\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nRssShmem:\t 8 kB\n";
        let memory = Memory::parse(status);
        assert_eq!(memory, Memory { resident: 1 << 20, peak: 2 << 20, shared: 8 << 10 });
        assert_eq!(Memory::parse(""), Memory::default());
    }

    #[test]
    fn expensive_readings_are_taken_less_often() {
        let (least, most) = (Duration::from_millis(10), Duration::from_secs(9));
        let mut pace = Pace::new(least, most);
        assert!(pace.is_due(), "the first time is at once");
        for (cost, interval) in [
            (Duration::from_micros(1), least),
            (Duration::from_millis(10), Duration::from_secs(3)),
            (Duration::from_secs(1), most),
        ] {
            pace.took(cost);
            assert_eq!(pace.interval(), interval);
        }
        assert!(!pace.is_due());
    }

    #[test]
    fn this_process_is_seen() {
        let mut watch = HostWatch::start();
        watch.sample(&BTreeSet::from([std::process::id()]), false);
        assert!(watch.peaks().resident > 1 << 20);
    }
}
