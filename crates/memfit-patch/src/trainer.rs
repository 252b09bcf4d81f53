//! Plans as settings of a training library, for scripts that use its trainer.

use memfit_plan::{Plan, framework_settings};
use memfit_source::{Call, Edit};
use memfit_vocabulary::{Framework, Lever};

use crate::draft::Draft;
use crate::{Left, Why};

/// Call that creates the trainer's settings.
struct SettingsCall<'a> {
    framework: Framework,
    call: &'a Call,
}

/// Writes the levers that the library has settings for. Returns the levers handled, applied or not.
pub(crate) fn write(draft: &mut Draft<'_>, plan: &Plan) -> Vec<Lever> {
    // If the script has its own training loop, the loop is edited instead. Accelerate is the exception: the
    // loop is in the script, but the library's settings apply to the model and the optimizer.
    let own_loop = draft.training.is_some();
    let settings = match settings_call(draft) {
        Some(Ok(found)) if !own_loop || found.framework == Framework::Accelerate => found,
        Some(Err(why)) if !own_loop => {
            draft.remark(&why);
            return Vec::new();
        }
        _ => return Vec::new(),
    };
    let mut set_levers: Vec<Lever> = Vec::new();
    let mut added = String::new();
    let arguments = framework_settings(settings.framework, plan).into_iter();
    for (name, value, lever) in arguments.filter(|(_, _, lever)| !own_loop || *lever != Lever::MicroBatch) {
        if lever == Lever::Shard && settings.framework != Framework::Transformers {
            if !set_levers.contains(&lever) {
                let taker = settings.framework.taker();
                draft.left.push(Left {
                    lever,
                    why: format!("its settings in `{taker}` are objects that the script has to import"),
                });
                set_levers.push(lever);
            }
            continue;
        }
        if lever == Lever::MicroBatch && settings.framework != Framework::Transformers {
            draft.left.push(Left {
                lever,
                why: format!("the loader's batch size has to be reduced together with `{name}={value}`"),
            });
            set_levers.push(lever);
            continue;
        }
        match settings.call.keyword(name) {
            Some(argument) => {
                draft.edits.push(Edit { span: argument.span, text: format!("{name}={value}") });
            }
            None => added.extend([", ", name, "=", value.as_str()]),
        }
        if !set_levers.contains(&lever) {
            set_levers.push(lever);
            draft.done.push(lever);
        }
        if lever == Lever::Checkpointing {
            draft.remark(
                "the library recomputes every block: if the plan recomputes only some, memory is lower than in the plan, \
                 and a step takes longer",
            );
        }
    }
    if !added.is_empty() {
        draft.edits.push(draft.facts.add_argument(settings.call, added.trim_start_matches(", ")));
    }
    set_levers
}

/// The single call that creates the settings. With several calls, returns the reason why none can be changed.
fn settings_call<'a>(draft: &Draft<'a>) -> Option<Result<SettingsCall<'a>, Why>> {
    let mut calls: Vec<SettingsCall<'a>> = draft
        .facts
        .calls
        .iter()
        .filter_map(|call| Some(SettingsCall { framework: framework(call.path.as_deref()?)?, call }))
        .collect();
    calls.dedup_by_key(|settings| settings.call.span);
    let settings = calls.pop()?;
    if calls.is_empty() {
        return Some(Ok(settings));
    }
    Some(Err(format!("the script sets `{}` in several places", settings.framework.taker())))
}

/// Library whose trainer takes its settings from this class.
fn framework(path: &str) -> Option<Framework> {
    let (package, class) = (path.split('.').next()?, path.rsplit('.').next()?);
    match (package, class) {
        ("transformers", class) if class.ends_with("TrainingArguments") => Some(Framework::Transformers),
        // Its settings extend those of transformers.
        ("trl", class) if class.ends_with("Config") => Some(Framework::Transformers),
        ("lightning" | "pytorch_lightning", "Trainer") => Some(Framework::Lightning),
        ("accelerate", "Accelerator") => Some(Framework::Accelerate),
        _ => None,
    }
}
