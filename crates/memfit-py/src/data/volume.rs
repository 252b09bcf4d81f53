//! Python class for volumes.

#![allow(unsafe_code, reason = "receives memory that torch owns")]

use std::ops::Range;
use std::path::PathBuf;

use memfit_loader::{Block, Volume as Stored};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::raise;

/// A volume from which blocks are read.
#[pyclass(module = "memfit._core", frozen)]
pub(crate) struct Volume {
    inner: Stored,
}

#[pymethods]
impl Volume {
    /// Opens a volume. One path: a file, or the folder of a series; several: the files of a series.
    #[new]
    #[pyo3(signature = (paths, series = None, frame = 0))]
    fn new(py: Python<'_>, paths: Vec<PathBuf>, series: Option<String>, frame: u64) -> PyResult<Self> {
        let inner = py.detach(|| match paths.as_slice() {
            [path] => Stored::open(path, series.as_deref(), frame),
            paths => Stored::from_series(paths, series.as_deref()),
        });
        Ok(Self { inner: inner.map_err(raise)? })
    }

    /// Number of slices, rows and columns.
    #[getter]
    fn shape(&self) -> (u64, u64, u64) {
        self.inner.shape().into()
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.inner.voxel().name()
    }

    #[getter]
    fn scale(&self) -> (f64, f64) {
        self.inner.scale()
    }

    #[getter]
    fn spacing(&self) -> (f64, f64, f64) {
        self.inner.spacing().into()
    }

    /// Reads a block into memory of its size: the voxels as stored or, with `scaled`, float32 values after
    /// the file's slope and intercept.
    #[expect(clippy::too_many_arguments, reason = "three ranges, a flag and the memory")]
    fn read_into(
        &self,
        py: Python<'_>,
        depth: (u64, u64),
        rows: (u64, u64),
        columns: (u64, u64),
        scaled: bool,
        address: usize,
        length: usize,
    ) -> PyResult<()> {
        let range = |(start, end): (u64, u64)| Range { start, end };
        let block = Block { depth: range(depth), rows: range(rows), columns: range(columns) };
        if address == 0 || !address.is_multiple_of(4) {
            return Err(PyValueError::new_err("the target has no memory, or is not aligned to 4 bytes"));
        }
        py.detach(|| {
            if scaled {
                // SAFETY: the Python layer passes the memory and length of a tensor that it has just created
                // and shared with no one, and holds the tensor until this returns; tensors are aligned to
                // more than four bytes.
                let out = unsafe {
                    std::slice::from_raw_parts_mut(
                        std::ptr::with_exposed_provenance_mut::<f32>(address),
                        length / 4,
                    )
                };
                self.inner.read_scaled(&block, out)
            } else {
                // SAFETY: as above.
                let out = unsafe {
                    std::slice::from_raw_parts_mut(
                        std::ptr::with_exposed_provenance_mut::<u8>(address),
                        length,
                    )
                };
                self.inner.read(&block, out)
            }
        })
        .map_err(raise)
    }
}
