//! Python class for the gradient noise scale, and the next batch size of a run that starts again.

use memfit_train::NoiseSample;
use pyo3::prelude::*;

/// Value, lower and upper end of the interval, and mean count of a step.
type Estimate = (Option<f64>, Option<f64>, Option<f64>, f64);

/// Moving averages of a training run's gradient noise; see `memfit.Step.noise_scale`.
#[pyclass(module = "memfit._core", name = "NoiseScale")]
pub(crate) struct NoiseScale {
    inner: memfit_train::NoiseScale,
}

#[pymethods]
impl NoiseScale {
    #[new]
    fn new() -> Self {
        Self { inner: memfit_train::NoiseScale::default() }
    }

    /// Adds an optimizer step: the count of each micro-batch with the squared norm of its gradient sum, and
    /// the squared norm of the step's gradient sum. Returns false if it gives no estimate.
    fn step(&mut self, parts: Vec<(f64, f64)>, whole: f64) -> bool {
        self.inner.step(&NoiseSample { parts, whole })
    }

    /// Number of steps that gave an estimate.
    #[getter]
    fn estimates(&self) -> u64 {
        self.inner.estimates()
    }

    /// Number of steps with a single micro-batch.
    #[getter]
    fn undivided(&self) -> u64 {
        self.inner.undivided()
    }

    /// Value, lower and upper end of the interval, and mean count of a step; None before the first estimate.
    fn estimate(&self) -> Option<Estimate> {
        self.inner.estimate().map(|found| (found.value, found.low, found.high, found.batch))
    }

    /// Advice in a sentence or two.
    fn advice(&self, optimizer: &str, unit: &str) -> String {
        self.inner.advice(optimizer, unit)
    }
}

/// Next batch size to try after `failed` samples of a global batch of `total` did not fit.
#[pyfunction]
pub(crate) fn smaller_micro_batch(total: u32, failed: u32) -> Option<u32> {
    memfit_train::smaller_micro_batch(total, failed)
}
