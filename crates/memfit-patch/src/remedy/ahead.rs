//! Finds out from the source whether a recorded call belongs to training: whether a backward pass follows
//! it, or the program only evaluates.

use memfit_source::{Call, Expression, ExpressionKind as Kind, Op, Span, Statement, StatementKind};

use super::flow::{Origin, body_of, uses};
use crate::code::{Code, Path, Scene, Script, Site};

impl Code<'_> {
    /// Returns `true` if the source shows that a backward pass through the values of a call comes later in
    /// the same iteration. `stack` has the lines of the call, the innermost first.
    ///
    /// The search stops at a loop that runs the backward pass in some iterations alone, as gradient
    /// accumulation may: each iteration is a step.
    pub fn backward_is_ahead(&self, stack: &[Site]) -> bool {
        for (depth, site) in stack.iter().enumerate() {
            let Some(scene) = self.scene(&site.file).filter(|scene| scene.is_current(site).is_ok()) else {
                continue;
            };
            let Some(path) = scene.script.statement_at_line(site.line) else { continue };
            // In a calling function, the graph continues only through the value that the line assigns or
            // returns.
            if depth > 0 && path.statement().kind == StatementKind::Expression && !is_run_by(&scene, &path) {
                return false;
            }
            match next_backward(&scene.script, &path) {
                Next::Straight => return depth == 0 || goes_backward(&scene, &path),
                Next::InSomeIterations => return false,
                Next::Unknown => {}
            }
        }
        false
    }

    /// Returns `true` if the recorded files put a model into evaluation mode, and nothing in them trains.
    pub fn only_evaluates(&self) -> bool {
        let mut evaluates = false;
        for scene in self.scenes() {
            let facts = &scene.script.facts;
            // A method is known by its name alone, whatever it is called on.
            let name =
                |call: &Call| facts.slice(call.callee).rsplit('.').next().unwrap_or_default().to_owned();
            if facts.ops.iter().any(|op| op.kind.trains())
                || facts.calls.iter().any(|call| is_training_name(&name(call)))
            {
                return false;
            }
            evaluates |= facts.calls.iter().any(|call| name(call) == "eval" && call.arguments.is_empty());
        }
        evaluates
    }
}

/// Returns `true` if the name of a function or class says that it trains: `fit`, `train_epoch`, `SFTTrainer`.
fn is_training_name(name: &str) -> bool {
    let trains = |word: &String| {
        matches!(word.as_str(), "train" | "training" | "trainer" | "trains" | "pretrain" | "finetune" | "fit")
    };
    words(name).iter().any(trains)
}

/// The words of a name in snake case or camel case, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = '_';
    for (character, next) in name.chars().zip(name.chars().skip(1).map(Some).chain([None])) {
        let ends_capitals = next.is_some_and(char::is_lowercase);
        let begins = character.is_uppercase() && (!before.is_uppercase() || ends_capitals);
        if begins || before == '_' {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| character != '_') {
            word.extend(character.to_lowercase());
        }
        before = character;
    }
    words
}

/// Backward pass that follows a statement in its function.
enum Next {
    /// The program reaches it in the same iteration of all loops around the statement.
    Straight,
    /// A loop around the statement contains a backward pass that may not run in the same iteration.
    InSomeIterations,
    /// The function has none.
    Unknown,
}

fn next_backward(script: &Script, path: &Path<'_>) -> Next {
    let own = path.statement();
    if passes(script).any(|op| own.span.contains(op.span) && own.suites().all(<[Statement]>::is_empty)) {
        return Next::Straight;
    }
    for (suite, index) in path.levels() {
        let around = &suite[index];
        if matches!(around.kind, StatementKind::Function | StatementKind::Class) {
            return Next::Unknown;
        }
        let later = &suite[index + 1..];
        if passes(script).any(|op| later.iter().any(|each| runs_straight(script, each, op))) {
            return Next::Straight;
        }
        if around.kind == StatementKind::Loop && passes(script).any(|op| around.span.contains(op.span)) {
            return Next::InSomeIterations;
        }
    }
    Next::Unknown
}

/// Backward passes of a file, including calls of functions that run one.
fn passes(script: &Script) -> impl Iterator<Item = &Op> {
    script.facts.ops.iter().filter(|op| op.kind.differentiates())
}

/// Returns `true` if a statement always runs an operation, and once: only `with` statements are between.
fn runs_straight(script: &Script, statement: &Statement, op: &Op) -> bool {
    let is_with = |each: &Statement| each.kind == StatementKind::With;
    statement.span.contains(op.span)
        && !op.deep
        && script.statement_around(op.span).is_some_and(|path| {
            let plain = |each: &Statement| {
                matches!(each.kind, StatementKind::Expression | StatementKind::Assign | StatementKind::Return)
            };
            plain(path.statement())
                && path.above().take_while(|each| statement.span.contains(each.span)).all(is_with)
        })
}

/// Returns `true` if the line itself runs the backward pass.
fn is_run_by(scene: &Scene<'_>, path: &Path<'_>) -> bool {
    passes(&scene.script).any(|op| path.statement().span.contains(op.span))
}

/// Returns `true` if a backward pass may go through what a statement binds or computes.
fn goes_backward(scene: &Scene<'_>, path: &Path<'_>) -> bool {
    if is_run_by(scene, path) {
        return true;
    }
    let scope: Option<Span> = path.function().and_then(body_of);
    let mut origins = Vec::new();
    for target in &path.statement().targets {
        target.visit(&mut |part: &Expression| match &part.kind {
            Kind::Name(name) => origins.push(Origin::Name { name: name.clone(), scope }),
            Kind::Attribute { name, .. } => origins.push(Origin::Attribute(name.clone())),
            _ => {}
        });
    }
    origins.iter().any(|origin| uses(scene, origin).is_err_and(|hazard| hazard.backward))
}

#[cfg(test)]
mod tests {
    use super::is_training_name;

    #[test]
    fn a_name_says_that_it_trains_by_a_word_of_its_own() {
        for name in
            ["train", "fit", "train_epoch", "SFTTrainer", "TrainingArguments", "trainModel", "GPTTrain"]
        {
            assert!(is_training_name(name), "{name}");
        }
        for name in
            ["constrain_boxes", "restrained", "from_pretrained", "fitness", "profit", "Strain", "eval"]
        {
            assert!(!is_training_name(name), "{name}");
        }
    }
}
