//! Training in the source around a recorded call: none at all, or a backward pass that is still to come.

use memfit_source::{Call, Expression, ExpressionKind as Kind, Op, OpKind, Span, Statement, StatementKind};

use super::flow::{Origin, body_of, uses};
use crate::code::{Code, Path, Scene, Script, Site};

impl Code<'_> {
    /// Returns `true` if the source shows that a backward pass through the values of a call comes later in
    /// the same iteration. `stack` has the lines of the call, the innermost first.
    ///
    /// A loop that contains both the call and a backward pass which only some of its iterations reach ends
    /// the search: its iterations are steps.
    pub fn backward_is_ahead(&self, stack: &[Site]) -> bool {
        for (depth, site) in stack.iter().enumerate() {
            let Some(scene) = self.scene(&site.file).filter(|scene| scene.is_current(site).is_ok()) else {
                continue;
            };
            let Some(path) = scene.script.statement_at_line(site.line) else { continue };
            // Further out, only what the line makes of the call's result can be part of the graph.
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
        let trains = |op: &Op| {
            matches!(
                op.kind,
                OpKind::Backward(_)
                    | OpKind::AutogradGrad
                    | OpKind::Step { .. }
                    | OpKind::ZeroGrad { .. }
                    | OpKind::TrainMode
            )
        };
        let mut evaluates = false;
        for scene in self.scenes() {
            let facts = &scene.script.facts;
            // A method is known by its name alone, whatever it is called on.
            let name =
                |call: &Call| facts.slice(call.callee).rsplit('.').next().unwrap_or_default().to_owned();
            if facts.ops.iter().any(trains) || facts.calls.iter().any(|call| is_training_name(&name(call))) {
                return false;
            }
            evaluates |= facts.calls.iter().any(|call| name(call) == "eval" && call.arguments.is_empty());
        }
        evaluates
    }
}

/// Returns `true` if the name of a function or class says that it trains: `fit`, `train_epoch`, `SFTTrainer`.
fn is_training_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("train") && !name.contains("pretrained") || name.split('_').any(|word| word == "fit")
}

/// Backward pass that follows a statement in its function.
enum Next {
    /// The program reaches it in the same iteration of all loops around the statement.
    Straight,
    /// A loop around the statement contains one that the statement does not certainly lead to.
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
    script.facts.ops.iter().filter(|op| matches!(op.kind, OpKind::Backward(_) | OpKind::AutogradGrad))
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
    use super::*;
    use crate::code::Ran;

    /// Answers for a stack whose lines are marked `#0` (innermost), `#1`, ….
    fn is_ahead(text: &str) -> bool {
        let mut function = "<module>".to_owned();
        let mut stack: Vec<(u32, Site)> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(rest) = line.trim_start().strip_prefix("def ") {
                function = rest.split('(').next().unwrap_or_default().to_owned();
            } else if !line.starts_with(' ') {
                "<module>".clone_into(&mut function);
            }
            if let Some((_, depth)) = line.rsplit_once('#') {
                let site = Site { file: "train.py".to_owned(), line: number, function: function.clone() };
                stack.push((depth.parse().unwrap(), site));
            }
        }
        stack.sort_by_key(|(depth, _)| *depth);
        let stack: Vec<Site> = stack.into_iter().map(|(_, site)| site).collect();
        let read = |file: &str| (file == "train.py").then(|| text.to_owned());
        Code::new(&read, Ran::new(stack.clone(), Some("train.py".to_owned()))).backward_is_ahead(&stack)
    }

    #[test]
    fn layers_called_one_by_one_belong_to_a_pass_whose_backward_is_ahead() {
        for text in [
            "for step in range(3):\n    x = batch()\n    for block in blocks:\n        x = x + block(x) #0\n    loss = x.mean()\n    loss.backward()\n",
            "for task in tasks:\n    losses.append(f(task)) #0\ntorch.stack(losses).mean().backward()\n",
            "for x, y in loader:\n    criterion(model(x), y).backward() #0\n",
            "for x, y in loader:\n    with autocast():\n        loss = f(model(x), y) #0\n    scaler.scale(loss).backward()\n",
            "def forward(x):\n    for block in blocks:\n        x = block(x) #0\n    return x\n\nfor x in loader:\n    out = forward(x) #1\n    loss = out.sum()\n    loss.backward()\n",
            "def forward(x):\n    return block(x) #0\n\nfor x in loader:\n    forward(x).sum().backward() #1\n",
        ] {
            assert!(is_ahead(text), "{text}");
        }
    }

    #[test]
    fn an_evaluation_and_later_training_have_no_backward_of_the_same_graph_ahead() {
        for text in [
            // No backward pass at all.
            "for x in loader:\n    out.append(model(x)) #0\n",
            // Only some iterations reach it.
            "for i, x in enumerate(loader):\n    total += model(x).mean() #0\n    if i % 4 == 3:\n        total.backward()\n",
            // The backward pass of this loop was before.
            "for x in loader:\n    model(x).mean().backward()\n    seen.append(model(x)) #0\n",
            // An evaluation between the steps, whose result is dropped or only printed.
            "def validate():\n    for x in held_out:\n        seen.append(model(x)) #0\n\nfor x in loader:\n    validate() #1\n    loss = model(x).mean()\n    loss.backward()\n",
            "def validate():\n    return [model(x) for x in held_out] #0\n\nfor x in loader:\n    accuracy = validate() #1\n    print(accuracy)\n    loss = model(x).mean()\n    loss.backward()\n",
            // Features for a training of another model, in a loop of its own.
            "for x in loader:\n    features.append(model(x)) #0\nfor epoch in range(9):\n    loss = head(torch.stack(features)).mean()\n    loss.backward()\n",
            // Functions of a file are defined in any order.
            "def evaluate(x):\n    return model(x) #0\n\ndef train(x):\n    model(x).mean().backward()\n\nevaluate(1) #1\n",
        ] {
            assert!(!is_ahead(text), "{text}");
        }
    }

    #[test]
    fn a_program_that_only_evaluates_has_nothing_that_trains() {
        let only_evaluates = |text: &str| {
            let read = |file: &str| (file == "train.py").then(|| text.to_owned());
            let site = Site { file: "train.py".to_owned(), line: 2, function: "<module>".to_owned() };
            Code::new(&read, Ran::new([site], Some("train.py".to_owned()))).only_evaluates()
        };
        let served = "import torch\nmodel = Net.from_pretrained('a').cuda().eval()\nfor x in requests:\n    print(model(x))\n";
        assert!(only_evaluates(served));
        for more in [
            "loss.backward()\n",
            "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\noptimizer.step()\n",
            "model.train()\n",
            "train_epoch(model)\n",
            "engine.fit(model)\n",
            "SFTTrainer(model)\n",
        ] {
            assert!(!only_evaluates(&format!("{served}{more}")), "{more}");
        }
        assert!(!only_evaluates(&served.replace(".eval()", "")), "nothing says that it is an evaluation");
    }
}
