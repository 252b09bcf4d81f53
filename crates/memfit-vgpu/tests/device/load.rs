//! Load tests: many allocations, many calls, many processes, and the state after they are gone.
//!
//! `MEMFIT_TEST_SCALE=50 cargo test --release -p memfit-vgpu --test device load` runs the full size: a
//! million live allocations, ten million calls, sixty-four processes.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use memfit_channel::{LedgerView, RunDir, Setup};
use memfit_devices::{Bytes, Interval};

use crate::{
    cuda::*,
    machine::{CAPACITY, CARDS, KIB, MIB, alone, ledger, make_run, page_bytes},
};

const ROLE: &str = "MEMFIT_TEST_LOAD";

fn scale() -> usize {
    env::var("MEMFIT_TEST_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * page_bytes()
}

/// Pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn a_great_many_allocations_live_together() {
    let _cards = alone();
    assert_eq!(cudaFree(0), 0);
    let (used, before) = (ledger().cards[0].used, resident());
    let count = 20_000 * scale();
    let mut live: Vec<u64> = (0..count).map(|index| malloc(1 + index as u64 % 512)).collect();
    live.sort_unstable();
    assert!(live.windows(2).all(|pair| pair[1] - pair[0] >= 512), "apart from one another");
    assert_eq!(ledger().cards[0].used - used, (count as u64).div_ceil(4096) * 2 * MIB);
    let full = resident();
    // Freed in an order unrelated to that of allocation.
    let mut numbers = Numbers(1);
    while !live.is_empty() {
        let last = live.len() as u64;
        assert_eq!(cudaFree(live.swap_remove(numbers.below(last) as usize)), 0);
    }
    assert_eq!(ledger().cards[0].used, used);
    let each = full.saturating_sub(before) / count as u64;
    assert!(each < 2 * KIB, "{each} bytes of the host for each allocation");
}

#[test]
fn calls_leave_nothing_behind() {
    let _cards = alone();
    let batch = 2_000;
    let mut numbers = Numbers(2);
    let mut live = Vec::new();
    let mut run = |batches: usize| {
        for _ in 0..batches * batch / 8 {
            // About eight calls.
            let address = malloc(1 + numbers.below(64 * KIB));
            let small = [7u8; 64];
            cudaMemcpy(address, small.as_ptr() as u64, numbers.below(65), HOST_TO_DEVICE);
            let stream = out(cudaStreamCreate);
            cudaMemsetAsync(address, 0, 1, stream);
            let event = out(cudaEventCreate);
            cudaEventRecord(event, stream);
            cudaEventDestroy(event);
            cudaStreamDestroy(stream);
            live.push(address);
            if live.len() > 100 {
                let last = live.len() as u64;
                assert_eq!(cudaFree(live.swap_remove(numbers.below(last) as usize)), 0);
            }
        }
    };
    let batches = 100 * scale();
    run(batches / 10 + 10);
    let before = resident();
    run(batches);
    let grown = resident().saturating_sub(before);
    assert!(grown < 2 * MIB, "{grown} bytes more after {} calls", batches * batch);
    for address in live {
        assert_eq!(cudaFree(address), 0);
    }
}

/// Body of each of the many processes.
#[test]
#[ignore = "child process of the other tests"]
fn role() {
    let role = env::var(ROLE).unwrap();
    let (number, endless) = role.split_once(' ').unwrap();
    let mut numbers = Numbers(number.parse().unwrap());
    assert_eq!(cudaSetDevice(numbers.below(CARDS as u64) as i32), 0);
    let mut live = Vec::new();
    let mut steps = 0;
    while steps < 300 || endless == "endless" {
        let mut address = 0;
        match cudaMalloc(&raw mut address, 1 + numbers.below(48 * MIB)) {
            0 => live.push(address),
            refused => {
                assert_eq!(refused, OUT_OF_MEMORY);
                cudaGetLastError();
            }
        }
        if live.len() > 8 {
            let last = live.len() as u64;
            assert_eq!(cudaFree(live.swap_remove(numbers.below(last) as usize)), 0);
        }
        let (free, total) = info();
        assert!(free <= total && total == CAPACITY);
        steps += 1;
        if steps == 20 {
            println!("begun");
        }
    }
    // Half of them end without freeing anything.
    if number.ends_with(['0', '2', '4', '6', '8']) {
        for address in live {
            assert_eq!(cudaFree(address), 0);
        }
    }
}

#[test]
fn a_crowd_of_processes_shares_the_cards_and_leaves_nothing() {
    let run = make_run("crowd");
    let run_dir = RunDir::new(&run);
    // Contexts of the real size would fill the devices by themselves.
    let mut setup = Setup::read(&run_dir).unwrap();
    let context =
        Interval { low: Bytes::from_mib(1), typical: Bytes::from_mib(8), high: Bytes::from_mib(16) };
    setup.cards.iter_mut().for_each(|card| card.overhead.context = context);
    setup.write(&run_dir).unwrap();
    let start = |number: usize, end: &str| {
        Command::new(env::current_exe().unwrap())
            .args(["--exact", "load::role", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{number} {end}"))
            .env(memfit_channel::env::RUN_DIR, &run)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let count = if scale() > 1 { 64 } else { 12 };
    let mut crowd: Vec<Child> =
        (0..count).map(|number| start(number, if number % 3 == 0 { "endless" } else { "ends" })).collect();
    for (number, child) in crowd.iter_mut().enumerate() {
        if number % 3 == 0 {
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().contains("begun")));
            child.kill().unwrap();
        }
    }
    for (number, mut child) in crowd.into_iter().enumerate() {
        assert_eq!(child.wait().unwrap().success(), number % 3 != 0, "process {number}");
    }
    let view = LedgerView::read(&run_dir).unwrap().unwrap();
    assert!(view.processes.iter().all(|process| !process.alive));
    for card in &view.cards {
        assert_eq!((card.used, card.outside_high), (0, 0), "all of it came back");
        // The number of concurrent processes depends on the machine.
        assert!(card.peak_device_upper <= CAPACITY && card.peak > MIB);
    }
    let mut left: Vec<_> =
        fs::read_dir(&run).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["ledger", "ledger.lock", "setup.json"]);
    fs::remove_dir_all(run).unwrap();
}
