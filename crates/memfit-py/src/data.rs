//! Python classes for images, sources and batches.

#![allow(unsafe_code, reason = "receives memory that torch owns")]
#![expect(clippy::needless_pass_by_value, reason = "arguments from Python are owned")]

mod source;
mod volume;

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memfit_loader::{
    Cache, Crop, Decoder, Engine, Filter, Framing, Input, Job, Layout, LoaderError, Mode, Order, Pass,
    Policy, Prepared, Rect, Rendering, Sample, Shares, Slot, Source, Target,
};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

pub(crate) use self::source::{Samples, TileSamples};
pub(crate) use self::volume::Volume;

thread_local! {
    /// Decoder buffers for `Image.decode_into`, one set per calling thread.
    static DECODER: RefCell<Decoder> = RefCell::new(Decoder::new());
}

/// Bytes of buffers that a user's thread keeps between calls of `decode`.
const KEPT_BYTES: usize = 48 << 20;

/// Maximum bytes to decode a single image; a header that claims more is wrong.
const MAX_SINGLE_BYTES: u64 = 4 << 30;

/// Framing and rendering of images; `memfit.data` describes the arguments.
#[pyclass(module = "memfit._core", frozen)]
pub(crate) struct Recipe {
    framing: Framing,
    rendering: Rendering,
}

#[pymethods]
impl Recipe {
    #[new]
    #[pyo3(signature = (
        *, crop, part = None, size = None, resize = None, scale = (0.08, 1.0), ratio = (0.75, 4.0 / 3.0), flip = 0.0,
        mode = "rgb", dtype = None, filter = "bilinear", margin = None, page = 0, upright = true
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        crop: &str,
        part: Option<(u32, u32, u32, u32)>,
        size: Option<(u32, u32)>,
        resize: Option<u32>,
        scale: (f64, f64),
        ratio: (f64, f64),
        flip: f64,
        mode: &str,
        dtype: Option<&str>,
        filter: &str,
        margin: Option<f64>,
        page: u32,
        upright: bool,
    ) -> PyResult<Self> {
        let unknown = |name: &str, value: &str, known: &str| {
            PyValueError::new_err(format!("{name}={value:?} is none of {known}"))
        };
        let crop = match (crop, part, resize) {
            ("part", Some((left, top, width, height)), None) => Crop::Part(Rect { left, top, width, height }),
            ("center", None, resize) => Crop::Center { resize },
            ("random", None, None) => Crop::Random { scale, ratio },
            ("none", None, None) => Crop::All,
            ("none", None, Some(side)) if size.is_none() => Crop::Short(side),
            ("random" | "none" | "part", None, Some(_)) => {
                return Err(PyValueError::new_err(
                    "resize= is for crop=\"center\", or for crop=None without size=",
                ));
            }
            _ => {
                return Err(unknown(
                    "crop",
                    crop,
                    "\"center\", \"random\", None and (left, top, width, height)",
                ));
            }
        };
        let framing = Framing { crop, size, flip };
        framing.check().map_err(raise)?;
        if margin.is_some_and(|margin| !(margin >= 1.0 && margin.is_finite())) {
            return Err(PyValueError::new_err(
                "margin= is how many times the pixels are kept: at least 1, or None for all",
            ));
        }
        let rendering = Rendering {
            mode: Mode::from_name(mode)
                .ok_or_else(|| unknown("mode", mode, "\"rgb\", \"l\", \"rgba\" and \"keep\""))?,
            sample: dtype
                .map(|name| {
                    Sample::from_name(name).ok_or_else(|| unknown("dtype", name, "uint8, uint16 and float32"))
                })
                .transpose()?,
            filter: Filter::from_name(filter).ok_or_else(|| {
                unknown("filter", filter, "\"bilinear\", \"bicubic\", \"lanczos\", \"box\" and \"nearest\"")
            })?,
            margin,
            page,
            upright,
        };
        Ok(Self { framing, rendering })
    }
}

/// An image whose header was read.
#[pyclass(module = "memfit._core", frozen)]
pub(crate) struct Image {
    inner: Prepared,
}

#[pymethods]
impl Image {
    /// Creates an image; `data` is the image's bytes, or a path.
    #[new]
    #[pyo3(signature = (data, recipe, place = Vec::new()))]
    fn new(py: Python<'_>, data: &Bound<'_, PyAny>, recipe: &Recipe, place: Vec<u64>) -> PyResult<Self> {
        let input = if let Ok(bytes) = data.cast::<PyBytes>() {
            Input::Memory(bytes.as_bytes().into())
        } else if let Ok(path) = data.extract::<PathBuf>() {
            Input::open(&path).map_err(|error| PyOSError::new_err(format!("{}: {error}", path.display())))?
        } else {
            Input::Memory(data.extract::<Vec<u8>>()?.into())
        };
        let inner =
            py.detach(|| Prepared::new(input, &recipe.framing, &recipe.rendering, &place)).map_err(raise)?;
        Ok(Self { inner })
    }

    /// Width and height of the upright source image.
    #[getter]
    fn source_size(&self) -> (u32, u32) {
        self.inner.header().upright()
    }

    #[getter]
    fn format(&self) -> &'static str {
        self.inner.header().format.name()
    }

    #[getter]
    fn progressive(&self) -> bool {
        self.inner.header().progressive()
    }

    /// Width and height of the result.
    #[getter]
    fn size(&self) -> (u32, u32) {
        self.inner.size()
    }

    #[getter]
    fn bands(&self) -> u32 {
        self.inner.layout().bands.count()
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.inner.layout().sample.name()
    }

    /// Denominator of the scale at which it is decoded.
    #[getter]
    fn denominator(&self) -> u32 {
        self.inner.denominator()
    }

    /// Bytes that decoding needs.
    #[getter]
    fn cost(&self) -> u64 {
        self.inner.cost().total()
    }

    #[getter]
    fn mapping(&self) -> [f64; 4] {
        self.inner.mapping()
    }

    /// Decodes into memory of exactly the result's size.
    fn decode_into(&self, py: Python<'_>, address: usize, length: usize, planar: bool) -> PyResult<()> {
        if address == 0 || length != self.inner.bytes() {
            return Err(PyValueError::new_err(format!(
                "{length} bytes for an image of {}",
                self.inner.bytes()
            )));
        }
        let needs = self.inner.cost().total();
        if needs > MAX_SINGLE_BYTES {
            let header = self.inner.header();
            return Err(raise(LoaderError::Oversize {
                format: header.format.name(),
                width: header.width,
                height: header.height,
                needs,
                has: MAX_SINGLE_BYTES,
            }));
        }
        py.detach(|| {
            // SAFETY: the Python layer passes the memory and length of a tensor that it has just created and
            // shared with no one, and holds the tensor until this returns.
            let out = unsafe {
                std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(address), length)
            };
            DECODER.with_borrow_mut(|decoder| {
                let result = decoder.decode(&self.inner, planar, out);
                let _ = decoder.trim(KEPT_BYTES);
                result
            })
        })
        .map_err(raise)
    }
}

/// One pass over the samples.
#[pyclass(module = "memfit._core", frozen)]
pub(crate) struct Batches {
    engine: Mutex<Option<Arc<Engine>>>,
    source: Arc<dyn Source>,
    order: Order,
    job: Job,
    /// Folder of downscaled copies, the length of their short side, and the maximum bytes that they may use.
    cache: Option<(PathBuf, u32, u64)>,
    shares: Shares,
    /// Next batch to offer, and the distance to the one after it.
    next: AtomicU64,
    step: u64,
}

#[pymethods]
impl Batches {
    #[new]
    #[pyo3(signature = (
        samples, recipe, *, size, dtype, bands, convert, planar, batch_size, memory, threads, prefetch, pinned, shuffle,
        drop_last, seed, epoch, start, rank, world_size, first, step, on_error, oversize, cache = None
    ))]
    #[expect(clippy::too_many_arguments, clippy::fn_params_excessive_bools, reason = "they are keywords")]
    fn new(
        samples: &Samples,
        recipe: &Recipe,
        size: (u32, u32),
        dtype: &str,
        bands: u32,
        convert: bool,
        planar: bool,
        batch_size: u64,
        memory: u64,
        threads: usize,
        prefetch: usize,
        pinned: bool,
        shuffle: bool,
        drop_last: bool,
        seed: u64,
        epoch: u64,
        start: u64,
        rank: u64,
        world_size: u64,
        first: u64,
        step: u64,
        on_error: &str,
        oversize: &str,
        cache: Option<(PathBuf, u32, u64)>,
    ) -> PyResult<Self> {
        let policy = |name: &str, value: &str| {
            Policy::from_name(value).ok_or_else(|| {
                PyValueError::new_err(format!(
                    "{name}={value:?} is none of \"raise\", \"skip\" and \"replace\""
                ))
            })
        };
        let sample =
            Sample::from_name(dtype).ok_or_else(|| PyValueError::new_err(format!("dtype={dtype:?}")))?;
        let order = Order::new(Pass {
            count: samples.inner.count(),
            seed,
            epoch,
            shuffle,
            batch: batch_size,
            drop_last,
            rank,
            world: world_size,
            start,
        })
        .map_err(raise)?;
        let mut rendering = recipe.rendering;
        rendering.sample = convert.then_some(sample);
        let mut job = Job {
            threads: threads.max(1),
            framing: recipe.framing,
            rendering,
            layout: Layout { bands: memfit_loader::Bands::Many(bands), sample },
            convert,
            size,
            planar,
            broken: policy("on_error", on_error)?,
            oversize: policy("oversize", oversize)?,
            seed,
            epoch,
            kept: 0,
            shared: 0,
            cache: None,
        };
        let shares = Shares::new(memory, job.bytes() as u64 * batch_size, pinned, job.threads, prefetch)
            .map_err(raise)?;
        job.kept = shares.kept;
        job.shared = shares.shared;
        Ok(Self {
            engine: Mutex::new(None),
            source: samples.inner.clone(),
            order,
            job,
            cache,
            shares,
            next: AtomicU64::new(first),
            step: step.max(1),
        })
    }

    /// Number of batches in the pass, including those of other workers.
    #[getter]
    fn batches(&self) -> u64 {
        self.order.batches()
    }

    /// Number of batches that fit in memory, including the one in the user's hands.
    #[getter]
    fn slots(&self) -> usize {
        self.shares.slots
    }

    /// Number of samples that all ranks together have consumed after `batches` batches.
    fn position(&self, batches: u64) -> u64 {
        self.order.position(batches)
    }

    /// Offers memory for the next batch, which is not touched until the batch is taken. Returns the batch's
    /// number, or None at the end.
    fn offer(&self, address: usize, length: usize) -> PyResult<Option<u64>> {
        let number = self.next.load(Ordering::Relaxed);
        if number >= self.order.batches() {
            return Ok(None);
        }
        if address == 0 {
            return Err(PyValueError::new_err("a batch without memory"));
        }
        let engine = self.engine()?;
        // SAFETY: the Python layer passes a tensor's memory with its length, holds the tensor, and shares it
        // with no one until `take` returns the batch or `close` has ended the threads.
        let slot = unsafe { Slot::new(address, length) };
        engine.offer(self.order.batch(number), slot).map_err(raise)?;
        self.next.store(number + self.step, Ordering::Relaxed);
        Ok(Some(number))
    }

    /// Takes the batch that was offered first: indices, targets, mappings, and the samples left out with the
    /// reasons.
    ///
    /// Returns None if it is not ready after `milliseconds`.
    #[expect(clippy::type_complexity, reason = "a tuple that Python takes apart at once")]
    fn take<'py>(
        &self,
        py: Python<'py>,
        milliseconds: u64,
    ) -> PyResult<Option<(Vec<u64>, Bound<'py, PyList>, Vec<[f64; 4]>, Vec<(String, String)>)>> {
        let engine = self.engine()?;
        let batch = py.detach(|| engine.take(Duration::from_millis(milliseconds))).map_err(raise)?;
        let Some(batch) = batch else { return Ok(None) };
        let targets = PyList::empty(py);
        let mut indices = Vec::with_capacity(batch.filled.len());
        let mut mappings = Vec::with_capacity(batch.filled.len());
        for filled in batch.filled {
            indices.push(filled.index);
            mappings.push(filled.mapping);
            match filled.target {
                Target::Label(label) => targets.append(label)?,
                Target::Other(other) => match other.downcast::<Py<PyAny>>() {
                    Ok(object) => targets.append(*object)?,
                    Err(_) => return Err(PyRuntimeError::new_err("a target of no source in Python")),
                },
            }
        }
        let left = batch.left.into_iter().map(|left| (left.name, left.error.to_string())).collect();
        Ok(Some((indices, targets, mappings, left)))
    }

    /// Images and bytes so far, samples left out, peak bytes (beyond those that threads keep), the largest
    /// image's bytes.
    fn counts(&self) -> PyResult<(u64, u64, u64, u64, u64)> {
        let counts = self.engine()?.counts();
        Ok((counts.images, counts.bytes, counts.left, counts.shared_peak, counts.largest))
    }

    /// Cache counts: copies found, stored, not stored for an error, found damaged.
    fn cached(&self) -> PyResult<(u64, u64, u64, u64)> {
        let counts = self.engine()?.counts().cache;
        Ok((counts.found, counts.stored, counts.refused, counts.damaged))
    }

    /// Ends the threads. Afterwards, offered memory belongs to the caller alone.
    fn close(&self, py: Python<'_>) {
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A thread may be waiting for the interpreter's lock.
        py.detach(|| drop(engine));
    }
}

impl Batches {
    fn engine(&self) -> PyResult<Arc<Engine>> {
        let mut place = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = &*place {
            return Ok(engine.clone());
        }
        let mut job = self.job.clone();
        if let Some((folder, side, most)) = &self.cache {
            job.cache = Some(Arc::new(Cache::open(folder, *side, *most).map_err(raise)?));
        }
        let engine = Arc::new(Engine::start(self.source.clone(), job).map_err(raise)?);
        *place = Some(engine.clone());
        Ok(engine)
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        if engine.is_none() {
            return;
        }
        if Python::try_attach(|py| py.detach(|| drop(engine.take()))).is_none() {
            // The interpreter is shutting down with the process: a thread that waits for it would never end.
            std::mem::forget(engine);
        }
    }
}

/// Converts an error of the loader, with its advice.
fn raise(error: LoaderError) -> PyErr {
    let text = match error.hint() {
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    };
    match error {
        LoaderError::Settings(_) => PyValueError::new_err(text),
        LoaderError::Read(_) | LoaderError::BadSource { .. } => PyOSError::new_err(text),
        LoaderError::Bug(_) => PyRuntimeError::new_err(text),
        _ => ImageError::new_err(text),
    }
}

pyo3::create_exception!(
    memfit._core,
    ImageError,
    PyValueError,
    "An image that cannot be had: which one, why, and what to do about it."
);
