//! `memfit gpus [NAME]`.

use memfit_report::text;
use memfit_report::wire::{GpuList, GpuReport};

use super::{answer, calibrated_catalogue};
use crate::args::GpusArgs;
use crate::settings::Settings;
use crate::{CliError, Exit, Printer};

/// Lists the GPUs, or shows one.
pub(crate) fn gpus(args: &GpusArgs, settings: &Settings, printer: &Printer) -> Result<Exit, CliError> {
    let catalogue = calibrated_catalogue(args.catalogue.as_deref(), args.calibration.as_deref(), settings)?;
    let canvas = printer.canvas();
    if let Some(name) = &args.name {
        let report = GpuReport::new(catalogue.find(name)?);
        answer(&report, || text::gpu(report.gpu, canvas), &args.out, settings, printer)?;
    } else {
        let list = GpuList::new(catalogue.devices());
        answer(&list, || text::gpus(&list.gpus, canvas), &args.out, settings, printer)?;
    }
    Ok(Exit::Good)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use memfit_devices::Catalogue;

    #[test]
    fn explain_knows_the_memory_sizes_of_the_catalogue() {
        let catalogue = Catalogue::builtin().unwrap();
        let sizes: BTreeSet<u64> =
            catalogue.devices().iter().map(|device| device.box_memory.get() >> 30).collect();
        let known: BTreeSet<u64> = memfit_explain::GPU_SIZES_GIB.iter().copied().collect();
        assert_eq!(sizes, known);
        assert!(memfit_explain::GPU_SIZES_GIB.is_sorted());
    }
}
