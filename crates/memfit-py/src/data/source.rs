//! Sources of samples: those of the loader, and any Python callable that returns bytes or a path.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use memfit_loader::{Folder, Input, List, LoaderError, Prepared, Shards, Source, Target, Tiles};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt};

use super::{Recipe, raise};

/// Samples to load.
#[pyclass(module = "memfit._core", frozen)]
pub(crate) struct Samples {
    pub(super) inner: Arc<dyn Source>,
}

#[pymethods]
impl Samples {
    /// Reads a folder with one folder per class.
    #[staticmethod]
    fn folder(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        Ok(Self { inner: Arc::new(py.detach(|| Folder::read(&path)).map_err(raise)?) })
    }

    /// Creates a source from paths and labels; labels index `classes` if it is not empty.
    #[staticmethod]
    #[pyo3(signature = (paths, labels, classes = Vec::new()))]
    fn files(paths: Vec<PathBuf>, labels: Vec<i64>, classes: Vec<String>) -> Self {
        let mut list = List::with_classes(classes);
        for (path, label) in paths.iter().zip(labels) {
            list.push(path, label);
        }
        Self { inner: Arc::new(list) }
    }

    /// Reads tar shards.
    #[staticmethod]
    fn shards(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Self> {
        Ok(Self { inner: Arc::new(py.detach(|| Shards::read(&paths)).map_err(raise)?) })
    }

    /// Creates a source from `fetch(index)`, which returns an image, as bytes or a path, and its target.
    #[staticmethod]
    fn fetched(fetch: Py<PyAny>, count: u64) -> Self {
        Self { inner: Arc::new(Fetched { fetch, count }) }
    }

    /// Creates the tiles of all images: width and height, and the columns and rows by which neighbours
    /// overlap.
    fn tiles(
        &self,
        py: Python<'_>,
        size: (u32, u32),
        overlap: (u32, u32),
        page: u32,
        upright: bool,
    ) -> PyResult<TileSamples> {
        let source = self.inner.clone();
        let tiles = py.detach(|| Tiles::new(source, size, overlap, page, upright)).map_err(raise)?;
        Ok(TileSamples { inner: Arc::new(tiles) })
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.inner.count()).unwrap_or(usize::MAX)
    }

    /// Classes, in the order of their labels.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.inner.classes().to_vec()
    }

    /// Name of a sample.
    fn name(&self, py: Python<'_>, index: u64) -> String {
        py.detach(|| self.inner.name(index))
    }

    /// Value type and number of bands of the first image with a readable header, among the first hundred.
    fn first(&self, py: Python<'_>, recipe: &Recipe) -> PyResult<(&'static str, u32)> {
        py.detach(|| {
            let mut last = LoaderError::Settings("there are no samples".to_owned());
            for index in 0..self.inner.count().min(100) {
                let opened = self
                    .inner
                    .open(index)
                    .and_then(|(input, _)| Prepared::new(input, &recipe.framing, &recipe.rendering, &[]));
                match opened {
                    Ok(image) => return Ok((image.layout().sample.name(), image.layout().bands.count())),
                    Err(error) => {
                        last = LoaderError::Sample { name: self.inner.name(index), error: Box::new(error) };
                    }
                }
            }
            Err(last)
        })
        .map_err(raise)
    }
}

/// Tiles as samples.
#[pyclass(module = "memfit._core", frozen)]
pub(crate) struct TileSamples {
    inner: Arc<Tiles>,
}

#[pymethods]
impl TileSamples {
    /// Converts the tiles to samples.
    fn samples(&self) -> Samples {
        Samples { inner: self.inner.clone() }
    }

    /// Image of a tile, and the tile's left, top, width and height in it.
    fn place(&self, tile: u64) -> PyResult<(u64, (u32, u32, u32, u32))> {
        if tile >= self.inner.count() {
            return Err(PyIndexError::new_err(format!("there are {} tiles", self.inner.count())));
        }
        let (image, part) = self.inner.place(tile);
        Ok((image, (part.left, part.top, part.width, part.height)))
    }
}

/// Samples from a Python callable.
struct Fetched {
    fetch: Py<PyAny>,
    count: u64,
}

impl Source for Fetched {
    fn count(&self) -> u64 {
        self.count
    }

    fn name(&self, index: u64) -> String {
        format!("sample {index}")
    }

    fn open(&self, index: u64) -> Result<(Input, Target), LoaderError> {
        let failed = |error: PyErr| LoaderError::Source(error.to_string());
        let (input, target) = Python::attach(|py| -> PyResult<_> {
            let (image, target): (Bound<'_, PyAny>, Bound<'_, PyAny>) =
                self.fetch.bind(py).call1((index,))?.extract()?;
            let input = if let Ok(bytes) = image.cast::<PyBytes>() {
                Ok(Input::Memory(bytes.as_bytes().into()))
            } else if let Ok(path) = image.extract::<PathBuf>() {
                Err(path)
            } else {
                Ok(Input::Memory(image.extract::<Vec<u8>>()?.into()))
            };
            let label =
                if target.is_exact_instance_of::<PyInt>() { target.extract::<i64>().ok() } else { None };
            let target = label.map_or_else(|| Target::Other(Box::new(target.unbind())), Target::Label);
            Ok((input, target))
        })
        .map_err(failed)?;
        let input = match input {
            Ok(input) => input,
            Err(path) => open(&path)?,
        };
        Ok((input, target))
    }
}

fn open(path: &Path) -> Result<Input, LoaderError> {
    Input::open(path).map_err(|error| LoaderError::Source(format!("{}: {error}", path.display())))
}
