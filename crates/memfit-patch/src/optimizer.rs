//! The kernel of an optimizer, where it is made.

use memfit_source::{Call, Edit};
use memfit_vocabulary::Lever;

use crate::Why;
use crate::draft::Draft;

/// Modules of torch.optim that make no optimizer.
const OTHERS: &[&str] = &["torch.optim.lr_scheduler", "torch.optim.swa_utils"];

/// `fused=True`, or `foreach=False`.
pub(crate) fn kernel(draft: &mut Draft<'_>, lever: Lever) -> Result<(), Why> {
    let (name, other, word) = match lever {
        Lever::FusedOptimizer => ("fused", "foreach", "fused=True"),
        _ => ("foreach", "fused", "foreach=False"),
    };
    let makes = |call: &&Call| {
        let path = call.path.as_deref().unwrap_or_default();
        let class = path.rsplit('.').next().unwrap_or_default();
        path.starts_with("torch.optim.")
            && !OTHERS.iter().any(|other| path.starts_with(other))
            && class.starts_with(char::is_uppercase)
    };
    let made: Vec<&Call> = draft.facts.calls.iter().filter(makes).collect();
    if made.is_empty() {
        return Err("the script makes no optimizer of torch.optim where it can be seen".to_owned());
    }
    for call in made {
        if let Some(argument) = call.keyword(name).or_else(|| call.keyword(other)) {
            draft.edits.push(Edit::replace(argument.span, word));
        } else {
            draft.edits.push(draft.facts.add_argument(call, word));
        }
    }
    Ok(())
}
