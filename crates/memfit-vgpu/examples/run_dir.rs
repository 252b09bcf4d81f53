//! Writes a run directory, so that a program can be started on the device by hand:
//!
//! ```sh
//! cargo run -p memfit-vgpu --example run_dir -- /tmp/run rtx-4090
//! MEMFIT_RUN_DIR=/tmp/run LD_PRELOAD=target/debug/libmemfit_vgpu.so python train.py
//! cargo run -p memfit-vgpu --example run_dir -- /tmp/run      # prints the ledger
//! ```
#![expect(clippy::print_stdout, reason = "it is a command, and answers on its standard output")]

use std::{env, error::Error, fs};

use memfit_channel::{CardSetup, LedgerView, RunDir, Setup};
use memfit_devices::{Bytes, Catalogue};

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
    let overhead = device.overhead(13);
    let device = match arguments.next() {
        Some(bytes) => device.with_memory(Bytes::new(bytes.parse()?)),
        None => device,
    };
    let card = CardSetup::new(device, overhead);
    fs::remove_dir_all(&path).ok();
    fs::create_dir_all(&path)?;
    Setup::new(vec![card; count]).write(&run_dir)?;
    Ok(())
}
