//! Python class for the training controller.
#![expect(clippy::needless_pass_by_value, reason = "arguments from Python are owned")]

use memfit_train::{
    Decision, Evidence, Failure, Fault, Outcome, ScaleTrouble, Settings, Space, Status, TrainError, Update,
    Verdict, agree, classify, remedies, requested_bytes,
};
use memfit_vocabulary::Held;
use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
};

/// Decides what a training step does next; see `memfit.Step`, which calls torch for it.
#[pyclass(module = "memfit._core", name = "Controller")]
pub(crate) struct Controller {
    inner: memfit_train::Controller,
}

#[pymethods]
impl Controller {
    #[new]
    #[pyo3(signature = (*, accumulate = 1, micro_batch = None, careful = false, pairs = false))]
    fn new(accumulate: u32, micro_batch: Option<u32>, careful: bool, pairs: bool) -> PyResult<Self> {
        let settings = Settings { accumulate, micro_batch, careful, pairs };
        Ok(Self { inner: memfit_train::Controller::new(settings).map_err(value_error)? })
    }

    /// Records a new batch; returns true if it begins a window.
    #[pyo3(signature = (shape, elements, items, expected, costs = None))]
    fn arrive(
        &mut self,
        shape: &str,
        elements: u64,
        items: u32,
        expected: f64,
        costs: Option<Vec<u64>>,
    ) -> PyResult<bool> {
        self.inner.arrive(shape, elements, items, costs, expected).map_err(value_error)
    }

    /// Next micro-batch of a batch: its begin and end, whether to empty the allocator's cache before it, and
    /// whether to measure its memory; None after the last one. `space` is called only if needed, and returns
    /// the bytes that the allocator may use, and those that it holds without a tensor in them; or None if
    /// unknown.
    #[pyo3(signature = (batch, space = None))]
    fn next(
        &mut self,
        batch: usize,
        space: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Option<(usize, usize, bool, bool)>> {
        let mut failed = None;
        let ask = || {
            let (room, cached) = space?
                .call0()
                .and_then(|answer| answer.extract::<Option<(u64, u64)>>())
                .unwrap_or_else(|error| {
                    failed = Some(error);
                    None
                })?;
            Some(Space { room, cached })
        };
        let turn = self.inner.next(batch, ask);
        match failed {
            Some(error) => Err(error),
            None => Ok(turn.map(|turn| (turn.part.start, turn.part.end, turn.empties, turn.watched))),
        }
    }

    /// Records that a micro-batch has completed.
    #[pyo3(signature = (batch, size, need = None))]
    fn passed(&mut self, batch: usize, size: u32, need: Option<u64>) {
        self.inner.passed(batch, size, need);
    }

    /// Sets the bytes of all gradients.
    fn gradients_take(&mut self, size: u64) {
        self.inner.gradients_take(size);
    }

    /// Predicted upper bound of a micro-batch's memory beyond the live tensors; `first` if it is alone in its
    /// window.
    #[pyo3(signature = (shape, elements, size, first = false))]
    fn foreseen(&self, shape: &str, elements: u64, size: u32, first: bool) -> Option<u64> {
        self.inner.foreseen(shape, elements, size, first)
    }

    /// Largest micro-batch of at most `most` samples that is predicted to need no more than `room` bytes.
    fn largest(&self, shape: &str, elements: u64, most: u32, room: u64) -> Option<u32> {
        self.inner.largest(shape, elements, most, room)
    }

    /// Memory that an optimizer step needs: bytes of new optimizer state, and of temporaries.
    #[staticmethod]
    #[pyo3(signature = (kind, *, together, fused, momentum, extra, decays, moved, largest, new))]
    #[expect(
        clippy::too_many_arguments,
        clippy::fn_params_excessive_bools,
        reason = "an optimizer's own settings"
    )]
    fn update_need(
        kind: &str,
        together: bool,
        fused: bool,
        momentum: bool,
        extra: bool,
        decays: bool,
        moved: u64,
        largest: u64,
        new: u64,
    ) -> (u64, u64) {
        let need = Update { kind, together, fused, momentum, extra, decays, moved, largest, new }.need();
        (need.states, need.temporaries)
    }

    /// Adds the count (such as tokens) of a micro-batch.
    fn count(&mut self, count: f64) -> PyResult<()> {
        self.inner.count(count).map_err(value_error)
    }

    /// Records that a micro-batch failed with an exception of these types and this message; returns "again",
    /// or the reason not to retry.
    fn failed(
        &mut self,
        batch: usize,
        size: u32,
        types: Vec<String>,
        message: &str,
        free: u64,
        capacity: u64,
    ) -> &'static str {
        match self.inner.failed(batch, size, judge(&types, message, free, capacity)) {
            Decision::Again => "again",
            Decision::GiveUp(Failure::OneSample) => "one-sample",
            Decision::GiveUp(Failure::TooOften) => "too-often",
            Decision::GiveUp(Failure::Sticky) => "sticky",
            Decision::GiveUp(Failure::NotMemory) => "not-memory",
        }
    }

    /// Restarts the window.
    fn restart(&mut self) {
        self.inner.restart();
    }

    /// Abandons the window.
    fn abandon(&mut self) {
        self.inner.abandon();
    }

    /// Sets the divisor of losses.
    fn divide_by(&mut self, divisor: f64) -> PyResult<()> {
        self.inner.divide_by(divisor).map_err(value_error)
    }

    /// Divisor of losses.
    #[getter]
    fn divisor(&self) -> f64 {
        self.inner.window().divisor()
    }

    /// Sum of the counts of the window's micro-batches so far.
    #[getter]
    fn counted(&self) -> f64 {
        self.inner.window().counted()
    }

    /// True if the window has all its batches.
    #[getter]
    fn whole(&self) -> bool {
        self.inner.window().is_whole()
    }

    /// True if the window has no batch.
    #[getter]
    fn empty(&self) -> bool {
        self.inner.window().is_empty()
    }

    /// Number of the window's batches that this process received.
    #[getter]
    fn held(&self) -> usize {
        self.inner.held()
    }

    /// Number of the window's micro-batches that were run.
    #[getter]
    fn parts(&self) -> usize {
        self.inner.parts()
    }

    /// Number of failures so far in this window.
    #[getter]
    fn attempt(&self) -> u32 {
        self.inner.attempt().attempt
    }

    /// Number of optimizer steps so far.
    #[getter]
    fn windows(&self) -> u64 {
        self.inner.windows()
    }

    /// Number of failures that a later attempt overcame.
    #[getter]
    fn survived(&self) -> u64 {
        self.inner.survived()
    }

    /// Factor for the gradients if the counts of all ranks add up to `total`.
    fn correction(&self, total: f64) -> PyResult<f64> {
        self.inner.window().correction(total).map_err(value_error)
    }

    /// Numbers to send to the other ranks: `outcome` is "done", "again" or "over".
    fn status(&self, outcome: &str) -> PyResult<Vec<f64>> {
        let outcome = match outcome {
            "done" => Outcome::Done,
            "again" => Outcome::Again,
            "over" => Outcome::Over,
            other => return Err(PyValueError::new_err(format!("`{other}` is not an outcome"))),
        };
        Ok(self.inner.status(outcome).encode().to_vec())
    }

    /// Decision of all ranks from the statuses of all: ("step", total), ("again", 0) or ("over", rank).
    #[staticmethod]
    fn agree(statuses: Vec<[f64; Status::NUMBERS]>, own: usize) -> PyResult<(&'static str, f64)> {
        let statuses: Vec<Status> = statuses.into_iter().map(Status::decode).collect();
        match agree(&statuses, own) {
            Ok(Verdict::Step { total }) => Ok(("step", total)),
            Ok(Verdict::Again) => Ok(("again", 0.0)),
            Ok(Verdict::Over { rank }) => Ok(("over", rank as f64)),
            Err(error) => Err(PyRuntimeError::new_err(text(&error))),
        }
    }

    /// Records an optimizer step.
    fn stepped(&mut self, flushed: bool) {
        self.inner.stepped(flushed);
    }

    /// Records the bytes that are live between two steps. Returns (bytes per step, steps left) if they keep
    /// growing. `budget` is called only then, and returns the available bytes.
    fn live(&mut self, live: u64, budget: Bound<'_, PyAny>) -> PyResult<Option<(u64, Option<u64>)>> {
        let growth = self.inner.growth();
        growth.after_step(live);
        if growth.leak(None).is_none() {
            return Ok(None);
        }
        let budget = budget.call0()?.extract()?;
        Ok(growth.leak(budget).map(|leak| (leak.per_step, leak.steps_left)))
    }

    /// True if each of the last steps increased the live bytes, so that their owners are worth finding.
    #[getter]
    fn suspects_growth(&mut self) -> bool {
        self.inner.growth().suspects()
    }

    /// Records the loss scale at the end of a window; returns a description of the problem, if there is one.
    fn scaled(&mut self, scale: f64, skipped: bool) -> Option<String> {
        let history = self.inner.scale();
        history.window(scale, skipped);
        history.trouble().map(|trouble| match trouble {
            ScaleTrouble::Skipping { skipped, of } => {
                format!("{skipped} of the last {of} optimizer steps were skipped, because fp16 gradients overflowed")
            }
            ScaleTrouble::Collapsed { scale } => {
                format!("the loss scale has fallen to {scale}: fp16 gradients overflow without any scaling")
            }
        })
    }

    /// Loss scales of the last windows, in order.
    #[getter]
    fn scales(&mut self) -> Vec<f64> {
        self.inner.scale().path()
    }

    /// Number of optimizer steps that the scaler skipped.
    #[getter]
    fn skipped(&mut self) -> u64 {
        self.inner.scale().skipped()
    }

    /// Levers that would make room for a sample that does not fit, with the bytes that each would save, and
    /// whether that exceeds the missing bytes. `message` is the allocator's, `free` the bytes that were free
    /// then.
    #[staticmethod]
    fn remedies(
        parameters: u64,
        trained: u64,
        states: u64,
        sample: u64,
        message: &str,
        free: u64,
        applied: Vec<String>,
    ) -> (u64, Vec<(&'static str, u64, bool)>) {
        let missing = requested_bytes(message).map_or(0, |asked| asked.saturating_sub(free));
        let applied: Vec<&str> = applied.iter().map(String::as_str).collect();
        let held = Held { parameters, trained, states, sample, missing };
        let found = remedies(&held, &applied);
        (missing, found.into_iter().map(|each| (each.lever.name(), each.saves, each.suffices)).collect())
    }

    /// State to keep for the next process, as JSON.
    fn memory(&self) -> PyResult<String> {
        serde_json::to_string(&self.inner.memory())
            .map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Restores the state of an earlier process.
    fn remember(&mut self, memory: &str) -> PyResult<()> {
        self.inner
            .remember(&mut serde_json::Deserializer::from_str(memory))
            .map_err(|error| PyValueError::new_err(format!("this is not a state of memfit's: {error}")))
    }

    /// Classifies an exception by its types and message: "device", "host", "sticky" or "other".
    #[staticmethod]
    fn judge(types: Vec<String>, message: &str, free: u64, capacity: u64) -> &'static str {
        match judge(&types, message, free, capacity) {
            Fault::DeviceMemory(_) => "device",
            Fault::HostMemory => "host",
            Fault::Sticky => "sticky",
            Fault::Other => "other",
        }
    }
}

fn judge(types: &[String], message: &str, free: u64, capacity: u64) -> Fault {
    let types: Vec<&str> = types.iter().map(String::as_str).collect();
    classify(&types, message, Evidence { free, capacity })
}

fn value_error(error: TrainError) -> PyErr {
    PyValueError::new_err(text(&error))
}

fn text(error: &TrainError) -> String {
    format!("{error}\nhint: {}", error.hint())
}
