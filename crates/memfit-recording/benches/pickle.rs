//! Benchmark of the snapshot reader against CPython's own `pickle.load` on the same file and core.
//!
//! `cargo bench -p memfit-recording --bench pickle -- [FILE…]`; without files, a snapshot is generated.

#![allow(clippy::print_stdout)] // Printing figures is what a benchmark is for.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;

use memfit_recording::{PickleLimits, Snapshot};

/// Number of rounds; the best counts.
const ROUNDS: u32 = 7;

/// Minimum number of bytes read in a round, since a thread's CPU time has a resolution of some milliseconds.
const MIN_BYTES_PER_ROUND: usize = 192 << 20;

/// CPU time of this thread in nanoseconds, which does not depend on the machine's load.
fn processor_time() -> u64 {
    let spent = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    spent.split(' ').next().and_then(|time| time.parse().ok()).unwrap_or_default()
}

fn ours(bytes: &[u8]) -> f64 {
    let times = MIN_BYTES_PER_ROUND.div_ceil(bytes.len().max(1));
    let best = (0..ROUNDS).map(|_| {
        let begun = processor_time();
        for _ in 0..times {
            let (snapshot, problems) =
                Snapshot::read(Cursor::new(bytes), PickleLimits::default()).expect("it is a snapshot");
            assert!(problems.is_empty(), "{problems:?}");
            drop(snapshot);
        }
        processor_time() - begun
    });
    best.min().unwrap_or_default() as f64 / 1e9 / times as f64
}

/// Peak memory in MiB of this process while it reads a file that was not in memory before.
fn peak_memory(file: &Path) -> Option<f64> {
    let reader = fs::File::open(file).expect("the file can be read");
    let snapshot = Snapshot::read(reader, PickleLimits::default()).expect("it is a snapshot");
    let status = fs::read_to_string("/proc/self/status").ok()?;
    drop(snapshot);
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = peak.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib / 1024.0)
}

/// Seconds of `pickle.load` in CPython, from memory too.
fn cpython_seconds(file: &Path) -> Option<f64> {
    let program = "import gc, io, pickle, sys, time\n\
        data = open(sys.argv[1], 'rb').read()\n\
        best = 1e9\n\
        for _ in range(int(sys.argv[2])):\n    \
            begun = time.process_time()\n    \
            value = pickle.load(io.BytesIO(data))\n    \
            best = min(best, time.process_time() - begun)\n    \
            del value\n    \
            gc.collect()\n\
        print(best)";
    let output =
        Command::new("python3").args(["-c", program]).arg(file).arg(ROUNDS.to_string()).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Generates a snapshot such as PyTorch writes: a few thousand call sites, stacks of some thirty frames.
fn generate_snapshot() -> Option<PathBuf> {
    let file = std::env::temp_dir().join(format!("memfit-bench-{}.pickle", std::process::id()));
    let program = "import pickle, random, sys\n\
        random.seed(1)\n\
        base = 0x7F0000000000\n\
        frames = [{'name': f'f{i}', 'filename': f'/home/someone/project/module_{i % 97}.py', 'line': i} for i in range(3000)]\n\
        stacks = [random.sample(frames, random.randrange(15, 45)) for _ in range(2000)]\n\
        trace = []\n\
        for i in range(150000):\n    \
            action = ('alloc', 'free_requested', 'free_completed')[i % 3]\n    \
            trace.append({'action': action, 'addr': base + i // 3 % 5000 * 512, 'size': 512, 'stream': 0,\n        \
                'time_us': 1757253255215904 + i, 'compile_context': 'N/A', 'user_metadata': '', 'frames': list(random.choice(stacks))})\n\
        pickle.dump({'segments': [], 'device_traces': [trace]}, open(sys.argv[1], 'wb'), protocol=4)";
    let generate_snapshot = Command::new("python3")
        .args(["-c", program])
        .arg(&file)
        .status()
        .is_ok_and(|status| status.success());
    generate_snapshot.then_some(file)
}

fn main() {
    let mut files: Vec<PathBuf> =
        std::env::args().skip(1).filter(|arg| arg != "--bench").map(PathBuf::from).collect();
    let temporary = if files.is_empty() { generate_snapshot() } else { None };
    files.extend(temporary.clone());
    // Measured first, before anything else has used memory.
    if let Some((file, peak)) = files.first().and_then(|file| Some((file, peak_memory(file)?))) {
        println!("{}: {peak:.0} MiB of memory at the most", file.display());
    }
    for file in &files {
        let bytes = fs::read(file).expect("the file can be read");
        let seconds = ours(&bytes);
        let size = bytes.len() as f64 / f64::from(1 << 20);
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        print!("{name}: {size:.1} MiB, {:.0} MiB/s", size / seconds);
        match cpython_seconds(file) {
            Some(cpython_seconds) => {
                println!(
                    ", pickle.load {:.0} MiB/s, ratio {:.1}",
                    size / cpython_seconds,
                    cpython_seconds / seconds
                );
            }
            None => println!(", no python3 to compare with"),
        }
    }
    if let Some(file) = temporary {
        let _ = fs::remove_file(file);
    }
}
