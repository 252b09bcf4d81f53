//! Levers as changes of a program's source: plain PyTorch, where plain PyTorch can do it.
//!
//! Owns how each lever looks in a script: of a plan ([`patch`]), and of a remedy for memory that ran out
//! ([`Code::change`]). A change that the source does not prove right is refused with a reason.
//! It must not know how a plan or a remedy was found, files, or how a change is shown; nor the Python
//! parser, which only `memfit-source` uses.

mod before;
mod code;
mod draft;
mod optimizer;
mod pieces;
mod precision;
mod remedy;
mod round;
mod trainer;
mod training;

use memfit_plan::Plan;
use memfit_vocabulary::{Lever, Script, Value};

pub use code::{Code, Ran, Read, Site};
pub use memfit_source::edit::unified_diff;
pub use pieces::with_batch;
pub use remedy::{BlockCall, Change, Known, Refusal, Wanted};

use draft::Draft;
use training::Training;

/// A script with a plan in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patched {
    /// Its text; the script's own where nothing could be done.
    pub text: String,
    /// The levers that are in it.
    pub done: Vec<Lever>,
    /// Those that are not, and why.
    pub left: Vec<Left>,
    /// What somebody who applies it has to know.
    pub remarks: Vec<String>,
    /// The levers in it that are settings of the library that trains.
    pub by_library: Vec<Lever>,
}

/// A lever that is not in a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Which.
    pub lever: Lever,
    /// Why, as a sentence without its end.
    pub why: String,
}

/// Why a lever cannot be written into a script.
type Why = String;

/// Puts a plan into a script's text.
pub fn patch(text: &str, plan: &Plan) -> Patched {
    let unread = |why: &str| {
        let left = wanted(plan).into_iter().map(|(lever, _)| Left { lever, why: why.to_owned() }).collect();
        Patched { text: text.to_owned(), left, ..Patched::default() }
    };
    let script = match code::Script::read(text) {
        Ok(script) => script,
        Err(why) => return unread(why),
    };
    let code::Script { facts, statements, .. } = &script;
    let training = Training::find(facts, statements);
    let mut draft = Draft::new(text, facts, statements, training.as_ref());
    let told = trainer::write(&mut draft, plan);
    for (lever, value) in wanted(plan).into_iter().filter(|(lever, _)| !told.contains(lever)) {
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
                "a step of {} of the loader's batches has to be counted in the script's own loop",
                plan.accumulate
            ),
        });
    }
    let (done, left, remarks) = (draft.done.clone(), draft.left.clone(), draft.remarks.clone());
    match draft.render() {
        Ok(text) => Patched { text, done, left, remarks, by_library: told },
        Err(why) => unread(&why),
    }
}

/// Writes a lever into a script, in the way in which it says that plain PyTorch spells it.
fn write(draft: &mut Draft<'_>, lever: Lever, value: &Value, plan: &Plan) -> Result<(), Why> {
    match lever.declaration().script {
        Script::None => {
            Err("plain PyTorch has no few lines for it: `memfit.Step(…, plan=\"FILE\")` does it".to_owned())
        }
        Script::Accumulation => pieces::write(draft, plan),
        Script::Autocast { dtype, scaled } => precision::autocast(draft, dtype, scaled),
        Script::OptimizerKeyword { .. } => optimizer::kernel(draft, lever),
        Script::Environment { name, value } => {
            draft.environment.push((name, value));
            Ok(())
        }
        Script::Statements(statements) => before::statements(draft, statements),
        Script::Model(changes) => before::write(draft, changes, value, plan),
    }
}

/// What a plan asks for, the levers that change the loop first: they may find that they cannot.
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
