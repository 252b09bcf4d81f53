//! The kernel of an optimizer, where it is made.

use memfit_source::{Call, Edit, Facts};
use memfit_vocabulary::{Lever, Script};

use crate::Why;
use crate::draft::Draft;

/// Modules of torch.optim that make no optimizer.
const OTHERS: &[&str] = &["torch.optim.lr_scheduler", "torch.optim.swa_utils"];

/// A keyword of each optimizer's constructor, such as `fused=True`, in the place of another one.
pub(crate) fn kernel(draft: &mut Draft<'_>, lever: Lever) -> Result<(), Why> {
    let made: Vec<&Call> = draft.facts.calls.iter().filter(|call| makes_optimizer(call)).collect();
    if made.is_empty() {
        return Err("the script makes no optimizer of torch.optim where it can be seen".to_owned());
    }
    for call in made {
        draft.edits.push(with_kernel(draft.facts, call, lever)?);
    }
    Ok(())
}

/// Whether a call makes an optimizer of torch.optim.
pub(crate) fn makes_optimizer(call: &Call) -> bool {
    let path = call.path.as_deref().unwrap_or_default();
    let class = path.rsplit('.').next().unwrap_or_default();
    path.starts_with("torch.optim.")
        && !OTHERS.iter().any(|other| path.starts_with(other))
        && class.starts_with(char::is_uppercase)
}

/// The call that makes an optimizer, with the keyword that a lever declares.
pub(crate) fn with_kernel(facts: &Facts, call: &Call, lever: Lever) -> Result<Edit, Why> {
    let Script::OptimizerKeyword { keyword, name, instead_of } = lever.declaration().script else {
        return Err(format!("`{lever}` is no keyword of an optimizer"));
    };
    Ok(match call.keyword(name).or_else(|| call.keyword(instead_of)) {
        Some(argument) => Edit::replace(argument.span, keyword),
        None => facts.add_argument(call, keyword),
    })
}
