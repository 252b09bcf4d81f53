//! JPEGs at a quarter and an eighth of their size: libjpeg-turbo compared with the decoder in Rust.
//!
//! Makes the measurement in `measurements/jpeg-scales.md`, and prints it on stdout: CPU time of this thread,
//! the minimum of several rounds, since other load can only add to it.
//!
//!     cargo run --release -p memfit-loader --features turbo --example scales -- FILE.jpg…

#![expect(clippy::print_stdout, reason = "it is a command, and answers on its standard output")]
#![allow(unsafe_code, reason = "the clock of a thread is read through the system's call")]

use std::time::Duration;

use memfit_loader::{Backend, at_scale};

const TURNS: usize = 9;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("JPEG by {}\n", Backend::BEST.name());
    println!("| file | MB | scale | libjpeg-turbo, ms | Rust, ms | speed-up |");
    println!("|---|---|---|---|---|---|");
    let mut sums = [[Duration::ZERO; 2]; 2];
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path)?;
        let name = std::path::Path::new(&path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        for (by, sums) in [4, 8].into_iter().zip(&mut sums) {
            let Some(mine) = at_scale::in_rust(&bytes, by, usize::MAX) else {
                println!("| {name} | | 1/{by} | | not taken | |");
                continue;
            };
            let theirs = at_scale::by_library(&bytes, by, 3);
            assert!(theirs.as_ref() == Some(&mine), "{name} at 1/{by}: other pixels than the library's");
            let library = least(|| drop(at_scale::by_library(&bytes, by, 3)));
            let rust = least(|| drop(at_scale::in_rust(&bytes, by, usize::MAX)));
            row(&name, bytes.len() as f64 / 1e6, by, library, rust);
            sums[0] += library;
            sums[1] += rust;
        }
    }
    for (by, [library, rust]) in [4, 8].into_iter().zip(sums) {
        row("all", 0.0, by, library, rust);
    }
    Ok(())
}

fn row(name: &str, size: f64, by: usize, library: Duration, rust: Duration) {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let times = ms(library) / ms(rust).max(1e-9);
    let size = if size > 0.0 { format!("{size:.1}") } else { String::new() };
    println!("| {name} | {size} | 1/{by} | {:.1} | {:.1} | {times:.2} |", ms(library), ms(rust));
}

fn least(mut work: impl FnMut()) -> Duration {
    (0..TURNS)
        .map(|_| {
            let before = now();
            work();
            now().saturating_sub(before)
        })
        .min()
        .unwrap_or_default()
}

/// CPU time of this thread.
fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is space for the structure that the call writes.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
