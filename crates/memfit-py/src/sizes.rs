//! Sizes as people write and read them.

use memfit_devices::Bytes;
use memfit_report::text;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The bytes of a size such as `14 GiB`.
#[pyfunction]
pub(crate) fn parse_size(text: &str) -> PyResult<u64> {
    let size = text.parse::<Bytes>().map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(size.get())
}

/// A number of bytes for people, in binary units.
#[pyfunction]
pub(crate) fn format_size(size: u64) -> String {
    text::size(size)
}
