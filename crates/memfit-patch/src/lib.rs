//! Source edits for levers, in plain PyTorch where possible.
//!
//! The crate contains the edits of each lever for plans ([`patch`]) and for remedies against running out of
//! memory ([`Code::change`]). An edit that the source does not prove correct is refused with a reason. The
//! crate does not know how a plan or a remedy was found, files, or the presentation of a change; only
//! `memfit-source` uses the Python parser.

mod before;
mod code;
mod draft;
mod optimizer;
mod pieces;
mod precision;
mod remedy;
mod round;
mod spread;
mod trainer;
mod training;

use memfit_plan::Plan;
use memfit_vocabulary::{Lever, Script, Value};

pub use code::{Code, Ran, Read, Site};
pub use memfit_source::edit::unified_diff;
pub use pieces::with_batch;
pub use remedy::{BlockCall, Change, RecordedFacts, Refusal, RemedyRequest};

use draft::Draft;
use training::Training;

/// Script with a plan applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patched {
    /// New text; the original if no lever could be applied.
    pub text: String,
    /// Applied levers.
    pub done: Vec<Lever>,
    /// Levers that were not applied, with reasons.
    pub left: Vec<Left>,
    /// Remarks for the user who applies the change.
    pub remarks: Vec<String>,
    /// Applied levers that are settings of the training library.
    pub by_library: Vec<Lever>,
}

/// Lever that was not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Lever.
    pub lever: Lever,
    /// Reason, as a sentence without a final full stop.
    pub why: String,
}

/// Reason why a lever cannot be applied to a script.
type Why = String;

/// Applies a plan for one GPU to a script.
pub fn patch(text: &str, plan: &Plan) -> Patched {
    applied(text, plan, None)
}

/// Applies a plan for several GPUs to a script, or nothing. `blocks` are the modules that FSDP2 gathers one
/// by one. The parallel part is called [`Lever::Shard`] in the result.
pub fn spread(text: &str, plan: &Plan, blocks: &[String]) -> Patched {
    let patched = applied(text, plan, Some(blocks));
    if patched.done.contains(&Lever::Shard) {
        return patched;
    }
    Patched { text: text.to_owned(), done: Vec::new(), by_library: Vec::new(), ..patched }
}

fn applied(text: &str, plan: &Plan, blocks: Option<&[String]>) -> Patched {
    let unread = |why: &str| {
        let levers = wanted(plan).into_iter().map(|(lever, _)| lever);
        let levers = levers.chain(blocks.map(|_| Lever::Shard));
        let left = levers.map(|lever| Left { lever, why: why.to_owned() }).collect();
        Patched { text: text.to_owned(), left, ..Patched::default() }
    };
    let script = match code::Script::read(text) {
        Ok(script) => script,
        Err(why) => return unread(why),
    };
    let code::Script { facts, statements, .. } = &script;
    let training = Training::find(facts, statements);
    let mut draft = Draft::new(text, facts, statements, training.as_ref());
    let by_library = plan.made_for.framework.filter(|_| blocks.is_some());
    if let Some(blocks) = blocks.filter(|_| by_library.is_none()) {
        match spread::write(&mut draft, plan, blocks) {
            Ok(()) => draft.done.push(Lever::Shard),
            Err(why) => draft.left.push(Left { lever: Lever::Shard, why }),
        }
    }
    let handled = trainer::write(&mut draft, plan);
    if let Some(library) = by_library.filter(|_| !handled.contains(&Lever::Shard)) {
        let why = format!(
            "the script does not create `{}` itself: give the plan's settings where it does",
            library.taker()
        );
        draft.left.push(Left { lever: Lever::Shard, why });
    }
    for (lever, value) in wanted(plan).into_iter().filter(|(lever, _)| !handled.contains(lever)) {
        let written = write(&mut draft, lever, &value, plan);
        match written {
            Ok(()) => draft.done.push(lever),
            Err(why) => draft.left.push(Left { lever, why }),
        }
    }
    if plan.accumulate > plan.made_for.own_accumulation.max(1) {
        draft.left.push(Left {
            lever: Lever::MicroBatch,
            why: format!(
                "the plan accumulates {} of the loader's batches per step: count them in the script's own loop",
                plan.accumulate
            ),
        });
    }
    let (done, left, remarks) = (draft.done.clone(), draft.left.clone(), draft.remarks.clone());
    match draft.render() {
        Ok(text) => Patched { text, done, left, remarks, by_library: handled },
        Err(why) => unread(&why),
    }
}

/// Applies a lever to a script, with its PyTorch spelling.
fn write(draft: &mut Draft<'_>, lever: Lever, value: &Value, plan: &Plan) -> Result<(), Why> {
    match lever.declaration().script {
        Script::None => {
            Err("it takes more than a few lines of plain PyTorch: `memfit.Step(…, plan=\"FILE\")` applies it"
                .to_owned())
        }
        Script::Accumulation => pieces::write(draft, plan),
        Script::Autocast { dtype, scaled } => precision::autocast(draft, dtype, scaled),
        Script::OptimizerKeyword { .. } => optimizer::kernel(draft, lever),
        Script::Environment { name, value, comment } => {
            draft.environment.push((name, value, comment));
            Ok(())
        }
        Script::Statements(statements) => before::statements(draft, statements),
        Script::Model(changes) => before::write(draft, changes, value, plan),
    }
}

/// Levers of a plan, those that change the loop first, since they may fail.
fn wanted(plan: &Plan) -> Vec<(Lever, Value)> {
    let mut levers: Vec<(Lever, Value)> = plan
        .levers
        .iter()
        .filter(|setting| setting.value != Value::Switch(false) && setting.lever != Lever::MicroBatch)
        .map(|setting| (setting.lever, setting.value.clone()))
        .collect();
    if let Some(micro_batch) = plan.micro_batch {
        levers.insert(0, (Lever::MicroBatch, Value::Count(micro_batch)));
    }
    levers
}

#[cfg(test)]
mod tests;
