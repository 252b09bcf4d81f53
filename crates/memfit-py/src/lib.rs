//! The Python module `memfit._core`: conversions only.
//!
//! Owns the types that cross between Python and Rust. It contains no logic: each function converts its
//! arguments, releases the interpreter's lock, and calls one function of another crate.

mod data;
mod levers;
mod noise;
mod plan;
mod recordings;
mod sizes;
mod train;

use std::ffi::OsString;
use std::path::PathBuf;

use memfit_cli::Home;
use pyo3::pymodule;

/// Native part of memfit.
#[pymodule(gil_used = false)]
mod _core {
    use super::{Home, OsString, PathBuf};
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::data::{Batches, Image, ImageError, Recipe, Samples, TileSamples, Volume};
    #[pymodule_export]
    use crate::levers::{lever_conflict, lever_label, lever_stages};
    #[pymodule_export]
    use crate::noise::{NoiseScale, smaller_micro_batch};
    #[pymodule_export]
    use crate::plan::read_plan;
    #[pymodule_export]
    use crate::recordings::outline;
    #[pymodule_export]
    use crate::sizes::{format_size, parse_size};
    #[pymodule_export]
    use crate::train::Controller;

    /// Runs the command with these arguments, the first of which is the program's name, and returns its exit
    /// status.
    ///
    /// `python` is the interpreter of the environment in which memfit is installed, `libraries` the folder
    /// with its device libraries.
    #[pyfunction]
    #[pyo3(signature = (arguments, *, python = None, libraries = None))]
    fn main(
        py: Python<'_>,
        arguments: Vec<OsString>,
        python: Option<PathBuf>,
        libraries: Option<PathBuf>,
    ) -> u8 {
        let home = Home { python, libraries };
        py.detach(|| memfit_cli::main(arguments, &home).code())
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", memfit_cli::VERSION)?;
        module.add("jpeg_decoder", memfit_loader::Backend::BEST.name())
    }
}
