//! Further runs for a verdict that assumed values may change: after `fits` as after `oom`, for each verb.

use memfit_channel::OtherValues;

use crate::RunError;
use crate::facts::Facts;
use crate::numbers::Numbers;
use crate::request::Request;
use crate::tested::{OtherSizes, Tested};
use crate::verdict;

/// Tests whether the verdict depends on assumed numbers and conditions, if it may; returns the findings with
/// the result. `remark` is told the purpose of the runs before they start.
pub(crate) fn test_numbers(
    request: &Request,
    facts: &Facts,
    mut tested: Tested,
    remark: impl Fn(&str),
    run: impl FnMut(OtherValues) -> Result<Facts, RunError>,
) -> Result<Tested, RunError> {
    if verdict::depends_on_numbers(request, facts, tested) {
        remark("running again with other assumed values, to see whether memory depends on them");
        tested.numbers = Numbers::test(facts, tested.sizes == OtherSizes::Inert, run)?;
    } else if verdict::lacks_by_numbers(request, facts, tested) {
        remark("running again with other assumed values, to see whether memory suffices then");
        tested.numbers = Numbers::test_out_of_memory(facts, run)?;
    }
    Ok(tested)
}
