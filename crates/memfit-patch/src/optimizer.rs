//! Optimizer implementations (`fused`, `foreach`), set where the optimizer is created.

use memfit_source::{Call, Edit, Facts};
use memfit_vocabulary::{Lever, Script};

use crate::Why;
use crate::draft::Draft;

/// Modules of torch.optim that contain no optimizers.
const NON_OPTIMIZER_MODULES: &[&str] = &["torch.optim.lr_scheduler", "torch.optim.swa_utils"];

/// Adds a keyword such as `fused=True` to each optimizer's constructor, or replaces it.
pub(crate) fn kernel(draft: &mut Draft<'_>, lever: Lever) -> Result<(), Why> {
    let made: Vec<&Call> = draft.facts.calls.iter().filter(|call| makes_optimizer(call)).collect();
    if made.is_empty() {
        return Err("no line of the script was found that creates an optimizer of torch.optim".to_owned());
    }
    for call in made {
        draft.edits.push(with_kernel(draft.facts, call, lever)?);
    }
    Ok(())
}

/// Returns `true` if a call creates an optimizer of torch.optim.
pub(crate) fn makes_optimizer(call: &Call) -> bool {
    let path = call.path.as_deref().unwrap_or_default();
    let class = path.rsplit('.').next().unwrap_or_default();
    path.starts_with("torch.optim.")
        && !NON_OPTIMIZER_MODULES.iter().any(|other| path.starts_with(other))
        && class.starts_with(char::is_uppercase)
}

/// Edit that gives the call of an optimizer the keyword of a lever.
pub(crate) fn with_kernel(facts: &Facts, call: &Call, lever: Lever) -> Result<Edit, Why> {
    let Script::OptimizerKeyword { keyword, name, instead_of } = lever.declaration().script else {
        return Err(format!("`{lever}` is not a keyword argument of an optimizer"));
    };
    Ok(match call.keyword(name).or_else(|| call.keyword(instead_of)) {
        Some(argument) => Edit::replace(argument.span, keyword),
        None => facts.add_argument(call, keyword),
    })
}
