//! One calibration: starts an interpreter with torch, reads the GPU's memory use at each of its stages, and
//! combines both into the measured figures of this machine's GPU.
//!
//! [`child`] communicates with the measuring process, [`conclude`] computes the figures, [`store`] saves them
//! for this machine.

mod child;
mod conclude;
pub(crate) mod store;

use memfit_channel::{RunDir, Setup};
use memfit_devices::{Calibration, Catalogue, Device, Gap};
use memfit_run::{Home, LocalGpu, environment, preflight};

use self::child::Measuring;
use self::conclude::Seen;
use crate::{CliError, Printer};

/// Maximum number of GPUs measured together: further ones would use links that the first ones already use.
const MAX_RANKS: u32 = 8;

/// A GPU that was measured.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// The result.
    pub(crate) calibration: Calibration,
    /// The catalogue's figures for the GPU.
    pub(crate) known: Device,
}

/// Measures the first visible GPU.
pub(crate) fn perform(
    python: Option<&std::path::Path>,
    catalogue: &Catalogue,
    home: &Home,
    printer: &Printer,
) -> Result<Measured, CliError> {
    preflight::system()?;
    let gpu = LocalGpu::find().ok_or(CliError::NothingToCalibrate)?;
    let python = python.map_or_else(|| "python".into(), |path| path.as_os_str().to_owned());
    let command = environment::resolve(&[python], home)?;
    let interpreter = preflight::interpreter(&command.program)?;
    preflight::torch(&interpreter)?;

    // Within a memfit run, the GPU may be a virtual one.
    let run = RunDir::from_env().and_then(|run_dir| Setup::read(&run_dir).ok());
    let mut seen = Seen::nothing(run.is_some_and(|setup| !setup.cards.is_empty()));
    printer.remark("measuring the GPU; nothing else should run on it (one to two minutes)");
    let mut one = [Measuring::one_gpu(&interpreter.executable)?];
    seen.follow(&mut one, &gpu)?;
    let ranks = seen.gpu_count().min(MAX_RANKS);
    if ranks > 1 {
        printer.remark(&format!("measuring communication between {ranks} GPUs"));
        let mut all = (0..ranks)
            .map(|rank| Measuring::rank(&interpreter.executable, rank, ranks))
            .collect::<Result<Vec<_>, _>>()?;
        if let Err(error) = seen.follow(&mut all, &gpu) {
            seen.gaps.push(Gap { what: "communicators".to_owned(), why: error.to_string() });
        }
    } else {
        let why = "needs two GPUs".to_owned();
        seen.gaps.push(Gap { what: "communicators, links between GPUs".to_owned(), why });
    }
    seen.driver = LocalGpu::driver();
    let described = seen.gpu()?;
    let known = catalogue
        .find(&described.name)
        .map_err(|_| CliError::UnknownCard { name: described.name.clone() })?;
    Ok(Measured { calibration: seen.conclude(known)?, known: known.clone() })
}
