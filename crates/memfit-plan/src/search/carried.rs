//! The best plan of those that a change of the script's source can carry.

use memfit_vocabulary::Lever;

use super::search;
use crate::answer::{Answer, Verdict};
use crate::limits::Limits;
use crate::trial::Trial;

/// Searches for the best plan of which a change of the script leaves nothing out: `left_out` names what a
/// change leaves out of a plan, and why. `None` where no such plan fits.
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
        // What is left out a second time is not kept out by forbidding it.
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
