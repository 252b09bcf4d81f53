//! Moments of a training in words.

use memfit_vocabulary::Phase;

use super::{count, module_name};

/// Name of a module that was running, after the moment.
fn of_module(module: Option<&str>) -> String {
    let module = module.filter(|module| !module.is_empty());
    module.map(|module| format!(" of `{}`", module_name(module))).unwrap_or_default()
}

/// Forward pass and module of a moment in a script without an optimizer.
pub(super) fn forward_pass(number: u64, module: Option<&str>) -> String {
    format!("forward pass {}{}", count(number), of_module(module))
}

/// A moment in the evaluation that follows a step.
pub(super) fn evaluation(step: u64, module: Option<&str>) -> String {
    format!("the forward pass{} in the evaluation after step {}", of_module(module), count(step))
}

/// Step, phase and module of a moment in the training.
pub(super) fn moment(step: u64, phase: Phase, module: Option<&str>) -> String {
    format!("step {}, {}{}", count(step), in_phase(phase), of_module(module))
}

/// Phase of a moment, for a script that takes no steps.
pub(super) fn in_phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Forward => "forward pass",
        Phase::Backward => "backward pass",
        Phase::Optimizer => "optimizer step",
        Phase::Other => "outside forward, backward and optimizer",
    }
}
