//! Best plan that a change of the script can contain completely.

use memfit_vocabulary::Lever;

use super::search;
use crate::answer::{Answer, Verdict};
use crate::limits::Limits;
use crate::trial::Trial;

/// Searches for the best plan that a change of the script can contain completely: `left_out` returns the
/// levers that a change omits, with reasons. Returns `None` if no such plan fits.
pub fn search_carried<T: Trial>(
    trial: &mut T,
    limits: &Limits,
    best: &Answer,
    left_out: impl Fn(&Answer) -> Vec<(Lever, String)>,
) -> Result<Option<Answer>, T::Error> {
    let mut limits = limits.clone();
    let mut found = best.clone();
    while found.verdict == Verdict::FitsWithPlan {
        let left_out = left_out(&found);
        if left_out.is_empty() {
            return Ok(Some(found));
        }
        if found.interrupted {
            break;
        }
        // A lever that is omitted again cannot be excluded by forbidding it.
        let new: Vec<_> = left_out.into_iter().filter(|(lever, _)| !limits.excludes(*lever)).collect();
        if new.is_empty() {
            return Ok(None);
        }
        limits.unwritable.extend(new);
        let Some(next) = search(trial, &limits)? else { return Ok(None) };
        found = next;
    }
    Ok(None)
}
