//! The progress line of a run.

use std::time::Duration;

use memfit_channel::ledger::LedgerView;
use memfit_devices::Bytes;
use memfit_report::text::size;

use crate::console::Progress;
use crate::inbox::Inbox;

/// A progress line.
#[derive(Debug)]
pub(crate) struct Line {
    progress: Box<dyn Progress>,
    steps: u64,
}

impl Line {
    /// Creates the line for a run of `steps` steps; 0 means to the end.
    pub(crate) fn new(progress: Box<dyn Progress>, steps: u64) -> Self {
        Self { progress, steps }
    }

    /// Redraws the line.
    pub(crate) fn draw(&mut self, inbox: &Inbox, ledger: Option<&LedgerView>, elapsed: Duration) {
        if self.progress.is_shown() {
            self.progress.draw(&text(inbox, ledger, elapsed, self.steps));
        }
    }

    /// Removes the line.
    pub(crate) fn clear(&mut self) {
        self.progress.clear();
    }
}

fn text(inbox: &Inbox, ledger: Option<&LedgerView>, elapsed: Duration, wanted: u64) -> String {
    let torch = inbox.processes.values().find_map(|speaker| speaker.torch.as_deref());
    let steps = inbox.processes.values().map(|speaker| speaker.steps).max().unwrap_or(0);
    let fullest = ledger.and_then(|ledger| ledger.cards.iter().max_by_key(|card| card.used));
    let doing = match (torch, steps) {
        (None, _) => "starting".to_owned(),
        (Some(_), 0) => "no step complete yet".to_owned(),
        (Some(_), steps) if wanted == 0 => format!("step {steps}"),
        // `--cover full` adds a step with a batch of the largest items.
        (Some(_), steps) if steps > wanted => format!("after {wanted} steps"),
        (Some(_), steps) => format!("step {steps} of {wanted}"),
    };
    let memory = fullest.filter(|card| card.used > 0).map(|card| {
        let limited = card.capacity < Bytes::UNLIMITED.get();
        let of = if limited { format!(" of {}", size(card.capacity)) } else { String::new() };
        format!(", {}{of} in use", size(card.in_use()))
    });
    // A shell script goes on after a command that failed, perhaps for long.
    let failed = inbox.processes.values().find_map(|speaker| speaker.exception.as_ref());
    let failed = failed.map(|(exception, _)| format!("; {} in a process", exception.r#type));
    format!("{doing}{}, {} s{}", memory.unwrap_or_default(), elapsed.as_secs(), failed.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use memfit_channel::ledger::CardView;
    use memfit_report::wire::Exception;

    use super::*;
    use crate::inbox::Speaker;

    #[test]
    fn the_progress_line_shows_only_known_facts() {
        let mut inbox = Inbox::default();
        assert_eq!(text(&inbox, None, Duration::from_secs(1), 3), "starting, 1 s");
        inbox.processes.insert(7, Speaker { torch: Some("2.15.0".into()), ..Speaker::default() });
        assert_eq!(text(&inbox, None, Duration::from_secs(2), 3), "no step complete yet, 2 s");
        inbox.processes.get_mut(&7).unwrap().steps = 2;
        let card = CardView { capacity: 8 << 30, used: 1 << 30, ..CardView::default() };
        let ledger = LedgerView { cards: vec![card], ..LedgerView::default() };
        assert_eq!(
            text(&inbox, Some(&ledger), Duration::from_secs(3), 3),
            "step 2 of 3, 1.00 GiB of 8.00 GiB in use, 3 s"
        );
        assert_eq!(
            text(&inbox, Some(&ledger), Duration::from_secs(3), 0),
            "step 2, 1.00 GiB of 8.00 GiB in use, 3 s"
        );
        let card = CardView { capacity: Bytes::UNLIMITED.get(), used: 1 << 30, ..CardView::default() };
        let boundless = LedgerView { cards: vec![card], ..LedgerView::default() };
        assert_eq!(text(&inbox, Some(&boundless), Duration::from_secs(3), 0), "step 2, 1.00 GiB in use, 3 s");
        let (message, traceback) = (String::new(), String::new());
        let exception = Exception { r#type: "KeyError".to_owned(), message, traceback };
        inbox.processes.get_mut(&7).unwrap().exception = Some((exception, false));
        assert_eq!(text(&inbox, None, Duration::from_secs(4), 3), "step 2 of 3, 4 s; KeyError in a process");
    }
}
