//! Outlines of recordings, for charts of memory over time.

use std::path::{Path, PathBuf};

use memfit_allocator::ReplayConditions;
use memfit_recording::{Outline, Recording, Source};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyDict};

/// Outlines the fullest device of a recording or snapshot in at most `points` points: a dict with `events`,
/// `points` (tuples of event, allocated and reserved bytes), `steps` and `failures` (events); `None` for a
/// file without events.
#[pyfunction]
#[pyo3(signature = (path, *, points = 240))]
#[expect(clippy::needless_pass_by_value, reason = "arguments from Python are owned")]
pub(crate) fn outline(py: Python<'_>, path: PathBuf, points: usize) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(outline) = py.detach(|| fullest(&path, points)).map_err(PyValueError::new_err)? else {
        return Ok(None);
    };
    let found = PyDict::new(py);
    let points = outline.points.iter().map(|point| (point.event, point.allocated, point.reserved));
    found.set_item("events", outline.events)?;
    found.set_item("points", points.collect::<Vec<_>>())?;
    found.set_item("steps", outline.steps)?;
    found.set_item("failures", outline.failures)?;
    Ok(Some(found))
}

fn fullest(path: &Path, points: usize) -> Result<Option<Outline>, String> {
    let (source, _) = memfit_recording::open(path).map_err(|error| error.to_string())?;
    let recording: Recording = match source {
        Source::Recording(recording) => *recording,
        Source::Snapshot(snapshot) => {
            memfit_allocator::recording(&snapshot, &ReplayConditions::from_snapshot(&snapshot))
                .map_err(|error| error.to_string())?
                .recording
        }
        Source::Texts(_) => return Ok(None),
    };
    let outlines = recording
        .tracks
        .iter()
        .flat_map(|track| track.devices().into_iter().map(|device| Outline::new(track, device, points)));
    Ok(outlines.max_by_key(Outline::reserved))
}
