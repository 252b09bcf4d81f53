//! A plan in the settings of a library's trainer, where the script hands its training loop to one.

use memfit_plan::{Plan, in_its_words};
use memfit_source::{Call, Edit};
use memfit_vocabulary::{Framework, Lever};

use crate::draft::Draft;
use crate::{Left, Why};

/// Where the settings of a library's trainer are given.
struct Place<'a> {
    framework: Framework,
    call: &'a Call,
}

/// Writes what the library has settings for; the levers that are told thereby, done or left.
pub(crate) fn write(draft: &mut Draft<'_>, plan: &Plan) -> Vec<Lever> {
    // A loop of the script's own is changed itself. Accelerate's stands in the script, and what wraps model
    // and optimizer is told.
    let own_loop = draft.training.is_some();
    let place = match place(draft) {
        Some(Ok(place)) if !own_loop || place.framework == Framework::Accelerate => place,
        Some(Err(why)) if !own_loop => {
            draft.remark(&why);
            return Vec::new();
        }
        _ => return Vec::new(),
    };
    let mut told: Vec<Lever> = Vec::new();
    let mut added = String::new();
    let words = in_its_words(place.framework, plan).into_iter();
    for (name, value, lever) in words.filter(|(_, _, lever)| !own_loop || *lever != Lever::MicroBatch) {
        if lever == Lever::MicroBatch && place.framework != Framework::Transformers {
            draft.left.push(Left {
                lever,
                why: format!("the loader's batch has to be made smaller beside `{name}={value}`"),
            });
            told.push(lever);
            continue;
        }
        match place.call.keyword(name) {
            Some(argument) => {
                draft.edits.push(Edit { span: argument.span, text: format!("{name}={value}") });
            }
            None => added.extend([", ", name, "=", value.as_str()]),
        }
        if !told.contains(&lever) {
            told.push(lever);
            draft.done.push(lever);
        }
        if lever == Lever::Checkpointing {
            draft.remark(
                "the library computes every block again where the plan chose some: memory is less than the plan's, and a step \
                 takes longer",
            );
        }
    }
    if !added.is_empty() {
        draft.edits.push(draft.facts.add_argument(place.call, added.trim_start_matches(", ")));
    }
    told
}

/// The one place where a trainer's settings are given; why there is none that could be changed, where there
/// are several.
fn place<'a>(draft: &Draft<'a>) -> Option<Result<Place<'a>, Why>> {
    let mut found: Vec<Place<'a>> = draft
        .facts
        .calls
        .iter()
        .filter_map(|call| Some(Place { framework: framework(call.path.as_deref()?)?, call }))
        .collect();
    found.dedup_by_key(|place| place.call.span);
    let place = found.pop()?;
    if found.is_empty() {
        return Some(Ok(place));
    }
    Some(Err(format!("the script gives `{}` in several places", place.framework.taker())))
}

/// The library whose trainer takes its settings by a call of this.
fn framework(path: &str) -> Option<Framework> {
    let (package, class) = (path.split('.').next()?, path.rsplit('.').next()?);
    match (package, class) {
        ("transformers", class) if class.ends_with("TrainingArguments") => Some(Framework::Transformers),
        // Its settings are those of transformers, and more.
        ("trl", class) if class.ends_with("Config") => Some(Framework::Transformers),
        ("lightning" | "pytorch_lightning", "Trainer") => Some(Framework::Lightning),
        ("accelerate", "Accelerator") => Some(Framework::Accelerate),
        _ => None,
    }
}
