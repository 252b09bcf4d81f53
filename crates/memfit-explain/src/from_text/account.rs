//! Holders of a GPU's memory, as a message states them.

use memfit_recording::{Amount, Figures, OomText};

use super::bytes;
use crate::explanation::Fact;
use crate::weigh::size;

/// Free memory beyond the request below which a GPU counts as full: the driver hands out whole pages, and
/// needs some for itself.
const FULL_MARGIN: u64 = 64 << 20;
/// Memory of a CUDA context and libraries that is usual for one process.
const USUAL_CONTEXT: u64 = 2 << 30;
/// Memory of a CUDA context that every process needs.
const LEAST_CONTEXT: u64 = 100 << 20;
/// Smallest rest that is worth a mention.
const NOTICEABLE: u64 = 64 << 20;
/// Maximum number of other processes that are listed.
const MAX_LISTED: usize = 4;

/// Use of a GPU, from the figures of a message.
#[derive(Clone, Debug, Default)]
pub(super) struct GpuUse {
    /// Bytes of other processes, by their ids.
    pub(super) others: Vec<(u32, u64)>,
    /// Bytes that this process used outside PyTorch's allocator.
    pub(super) own_outside: Option<u64>,
    /// Bytes of this process.
    own: Option<u64>,
    /// Bytes that nobody named in the message held.
    pub(super) rest: u64,
    /// Listed processes, of which one may be this one.
    pub(super) unclear: bool,
}

impl GpuUse {
    pub(super) fn from_text(text: &OomText) -> Self {
        let figures = &text.figures;
        let own = own_process(figures);
        let listed = figures.other_processes.iter().enumerate();
        let others: Vec<(u32, u64)> = listed
            .filter(|(index, _)| Some(*index) != own)
            .map(|(_, (pid, amount))| (*pid, amount.bytes()))
            .collect();
        let reserved = bytes(figures.total_reserved());
        let own = own.and_then(|own| figures.other_processes.get(own)).map(|(_, amount)| *amount);
        let own = bytes(figures.this_process.or(own));
        let taken = own.or(reserved).unwrap_or(0) + others.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let used =
            bytes(figures.capacity).zip(bytes(figures.free)).map(|(all, free)| all.saturating_sub(free));
        Self {
            own,
            unclear: own.is_none() && reserved.is_none() && !others.is_empty(),
            own_outside: own.zip(reserved).map(|(own, reserved)| own.saturating_sub(reserved)),
            rest: reserved.and(used).map_or(0, |used| used.saturating_sub(taken)),
            others,
        }
    }

    /// Bytes that other programs hold and that the message does not name. What one context may take is no
    /// proof.
    pub(super) fn unnamed_programs(&self) -> u64 {
        match self.own_outside {
            Some(_) => self.rest,
            None if self.rest > USUAL_CONTEXT => self.rest,
            None => 0,
        }
    }

    /// Sums up the GPU's memory by holder.
    pub(super) fn facts(&self, text: &OomText) -> Option<Fact> {
        let figures = &text.figures;
        let capacity = figures.capacity?.bytes();
        let gpu = name(figures);
        let mut parts = Vec::new();
        match bytes(figures.total_reserved()) {
            Some(reserved) if reserved > capacity => {
                let text = format!(
                    "PyTorch had reserved {} on a GPU of {}: the driver keeps the rest in host memory, which is slow (on Windows: the setting \"CUDA - Sysmem Fallback Policy\")",
                    size(reserved),
                    size(capacity)
                );
                return Some(Fact { text, bytes: reserved - capacity, lines: Vec::new() });
            }
            Some(reserved) => parts.push(format!("{} reserved by PyTorch", size(reserved))),
            None => {
                let own = self.own.map(|own| format!("{} of this process", size(own)));
                parts.extend(own);
            }
        }
        if let Some(outside) = self.own_outside.filter(|outside| *outside > 0) {
            parts.push(format!(
                "{} of this process outside PyTorch's allocator (CUDA context, libraries)",
                size(outside)
            ));
        }
        for (pid, bytes) in self.others.iter().take(MAX_LISTED) {
            parts.push(format!("{} of process {pid}", size(*bytes)));
        }
        if let Some((_, more)) = self.others.split_at_checked(MAX_LISTED).filter(|(_, more)| !more.is_empty())
        {
            let bytes = more.iter().map(|(_, bytes)| bytes).sum();
            parts.push(format!("{} of {} more processes", size(bytes), more.len()));
        }
        if self.rest >= NOTICEABLE {
            let holders = if self.own_outside.is_some() {
                "of other programs and the driver"
            } else {
                "of this process's CUDA context, the driver and other programs"
            };
            parts.push(format!("{} {holders}", size(self.rest)));
        }
        // The rest of the answer has a single figure already.
        if parts.len() + usize::from(figures.free.is_some()) < 2 {
            return None;
        }
        if let Some(free) = figures.free {
            parts.push(format!("{} free", size(free.bytes())));
        }
        let unclear = match self.others.len() {
            _ if !self.unclear => "",
            1 => "; the process may be this one",
            _ => "; one of the processes may be this one",
        };
        let text = format!("{gpu} has {}: {}{unclear}", size(capacity), parts.join(", "));
        Some(Fact { text, bytes: capacity, lines: Vec::new() })
    }
}

/// Name of the GPU, with its index if it is known.
pub(super) fn name(figures: &Figures) -> String {
    figures.device.map_or_else(|| "the GPU".to_owned(), |device| format!("GPU {device}"))
}

/// Index of this process among the listed ones. In a container PyTorch does not recognise its own process id,
/// and lists itself like another process.
fn own_process(figures: &Figures) -> Option<usize> {
    if figures.this_process.is_some() {
        return None;
    }
    let used = figures.capacity?.high.saturating_sub(figures.free?.low);
    let listed: u64 = figures.other_processes.iter().map(|(_, amount)| amount.low).sum();
    let Some(reserved) = figures.total_reserved().map(|reserved| reserved.low) else {
        // A message that is cut off: the only process leaves no room for the context of another.
        let is_alone = figures.other_processes.len() == 1 && used.saturating_sub(listed) < LEAST_CONTEXT;
        return is_alone.then_some(0);
    };
    // What it holds cannot be there in addition to what the listed processes hold.
    if listed + reserved <= used {
        return None;
    }
    let processes = figures.other_processes.iter().enumerate();
    let may_be = processes.filter(|(_, (_, amount))| amount.high >= reserved);
    may_be.min_by_key(|(_, (_, amount))| amount.high).map(|(index, _)| index)
}

/// Sentence about a GPU that was not full when a request failed, as far as the message says.
pub(super) fn is_room(text: &OomText, used: &GpuUse) -> Option<String> {
    let figures = &text.figures;
    let wanted = figures.requested?;
    match (figures.free, figures.capacity, figures.total_reserved()) {
        (Some(free), ..) if free.low >= wanted.high + FULL_MARGIN => Some(format!(
            "{} of the GPU were free, more than the {} requested: the GPU was not full, or became free at that moment",
            size(free.bytes()),
            size(wanted.bytes())
        )),
        // Intel's message has no free memory, and none of other processes.
        (None, Some(capacity), Some(reserved)) if used.others.is_empty() => {
            let room = capacity.low.saturating_sub(reserved.high);
            (room >= wanted.high + capacity.low / 10).then(|| {
                format!(
                    "PyTorch held {} of the GPU's {}, and {} were requested: the message does not say who held the rest, or whether the driver limits the size of one allocation (4 GiB on many of Intel's GPUs)",
                    size(reserved.bytes()),
                    size(capacity.bytes()),
                    size(Amount::bytes(wanted))
                )
            })
        }
        _ => None,
    }
}
