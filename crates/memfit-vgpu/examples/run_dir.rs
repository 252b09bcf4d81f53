//! Writes a run directory, so that a program can be started on the device by hand:
//!
//! ```sh
//! cargo run -p memfit-vgpu --example run_dir -- /tmp/run rtx-4090
//! MEMFIT_RUN_DIR=/tmp/run LD_PRELOAD=target/debug/libmemfit_vgpu.so python train.py
//! cargo run -p memfit-vgpu --example run_dir -- /tmp/run      # what the ledger says
//! ```
#![expect(clippy::print_stdout, reason = "it is a command, and answers on its standard output")]

use std::{env, error::Error, fs};

use memfit_devices::{Catalogue, Interval};
use memfit_link::{CardSetup, LedgerView, PROTOCOL, RunDir, Setup, SizedInterval};

fn interval(size: Interval) -> SizedInterval {
    SizedInterval { low: size.low.get(), typical: size.typical.get(), high: size.high.get() }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let path = arguments.next().ok_or("usage: run_dir PATH [GPU [COUNT [BYTES]]]")?;
    let run_dir = RunDir::new(&path);
    let Some(gpu) = arguments.next() else {
        println!("{:#?}", LedgerView::read(&run_dir)?);
        return Ok(());
    };
    let count: usize = arguments.next().map_or(Ok(1), |count| count.parse())?;
    let device = Catalogue::builtin()?.find(&gpu)?.clone();
    let capacity = arguments.next().map_or(Ok(device.memory.get()), |bytes| bytes.parse())?;
    let overhead = device.overhead(13);
    let card = CardSetup {
        device: serde_json::to_value(&device)?,
        capacity,
        context: interval(overhead.context),
        libraries: interval(overhead.libraries),
        communicator: interval(overhead.per_communicator),
        other_processes: 0,
    };
    fs::remove_dir_all(&path).ok();
    fs::create_dir_all(&path)?;
    let setup = Setup {
        protocol: PROTOCOL,
        cards: vec![card; count],
        steps: 0,
        forward_steps: 0,
        cover_full: false,
        stacks: false,
        values: memfit_link::ValuePolicy::default(),
        synthetic: memfit_link::Synthetic::default(),
        clock: memfit_link::ClockMode::default(),
        host_time: memfit_link::HostTime::default(),
    };
    setup.write(&run_dir)?;
    Ok(())
}
