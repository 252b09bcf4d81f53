//! Parsing and formatting of sizes.

use memfit_devices::Bytes;
use memfit_report::text;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Parses a size such as `14 GiB`; returns bytes.
#[pyfunction]
pub(crate) fn parse_size(text: &str) -> PyResult<u64> {
    let size = text.parse::<Bytes>().map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(size.get())
}

/// Formats a number of bytes in binary units.
#[pyfunction]
pub(crate) fn format_size(size: u64) -> String {
    text::size(size)
}
