//! A device's memory over its events, in few enough points for a small chart.

use crate::{Moment, MomentKind, Track};

/// Allocated and reserved bytes over the events of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// Number of events.
    pub events: u64,
    /// Maxima over equally many events each, in order.
    pub points: Vec<OutlinePoint>,
    /// Events after which a step was complete.
    pub steps: Vec<u64>,
    /// Events at which a request failed.
    pub failures: Vec<u64>,
}

/// Maxima over a range of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutlinePoint {
    /// First event of the range.
    pub event: u64,
    /// Allocated bytes.
    pub allocated: u64,
    /// Reserved bytes.
    pub reserved: u64,
}

impl Outline {
    /// Outlines one device of a track in at most `limit` points.
    pub fn new(track: &Track, device: u8, limit: usize) -> Self {
        let concerns = |moment: &Moment| moment.kind.has_totals() && moment.device == device;
        let events = track.moments().into_iter().filter(concerns).count() as u64;
        let mut outline = Self { events, ..Self::default() };
        let width = events.div_ceil(limit.max(1) as u64).max(1);
        let mut event = 0;
        for moment in track.moments() {
            if let MomentKind::Step(_) = moment.kind {
                outline.steps.push(event);
            }
            if !concerns(&moment) {
                continue;
            }
            if let MomentKind::Oom(_) = moment.kind {
                outline.failures.push(event);
            }
            if event % width == 0 {
                outline.points.push(OutlinePoint { event, ..OutlinePoint::default() });
            }
            if let Some(point) = outline.points.last_mut() {
                point.allocated = point.allocated.max(moment.allocated);
                point.reserved = point.reserved.max(moment.reserved);
            }
            event += 1;
        }
        outline
    }

    /// Highest reserved bytes.
    pub fn reserved(&self) -> u64 {
        self.points.iter().map(|point| point.reserved).max().unwrap_or(0)
    }
}
