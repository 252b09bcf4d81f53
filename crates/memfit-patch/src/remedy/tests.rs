//! Tests of source edits for remedies: what is changed, and what is refused.

mod attention;

use super::*;
use crate::code::Ran;

mod ahead;
mod keepers;
mod names;
mod surroundings;

const FILE: &str = "train.py";

/// Sites of the lines that contain these marks.
fn sites(text: &str, marks: &[&str]) -> Vec<Site> {
    let mut function = "<module>".to_owned();
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(rest) = line.trim_start().strip_prefix("def ") {
            function = rest.split('(').next().unwrap_or_default().to_owned();
        } else if !line.starts_with(' ') {
            "<module>".clone_into(&mut function);
        }
        if marks.iter().any(|mark| line.contains(mark)) {
            found.push(Site { file: FILE.to_owned(), line: number, function: function.clone() });
        }
    }
    found
}

/// Change of a script; `ran` marks lines that ran in addition to the remedy's own. Without `known`, all
/// backward passes of the text ran.
fn changed_in(
    text: &str,
    lever: Lever,
    at: &[&str],
    ran: &[&str],
    known: Option<RecordedFacts<'_>>,
    is_main: bool,
) -> Result<Change, Refusal> {
    let about = sites(text, at);
    assert!(!about.is_empty() || at.is_empty(), "{at:?} stands nowhere");
    let backwards = sites(text, &[".backward("]);
    let all = about.iter().cloned().chain(sites(text, ran));
    let read = |file: &str| (file == FILE).then(|| text.to_owned());
    let code = Code::new(&read, Ran::new(all, is_main.then(|| FILE.to_owned())));
    let known = known.unwrap_or(RecordedFacts::Backwards(&backwards));
    code.change(&RemedyRequest { lever, sites: &about, known })
}

fn changed(text: &str, lever: Lever, at: &[&str]) -> Result<Change, Refusal> {
    changed_in(text, lever, at, at, Some(RecordedFacts::Nothing), true)
}

/// Removed and added lines of a change.
fn lines(change: &Change) -> Vec<String> {
    let changed =
        |line: &&str| line.starts_with(['+', '-']) && !line.starts_with("+++") && !line.starts_with("---");
    change.diff.lines().filter(changed).map(str::to_owned).collect()
}

/// Reason of a refusal.
fn refused(change: Result<Change, Refusal>) -> String {
    match change {
        Err(Refusal::Unproven(why)) => why,
        other => panic!("it is refused for no reason: {other:?}"),
    }
}

fn change_kept(text: &str, lever: Lever, at: &[&str]) -> Result<Change, Refusal> {
    changed_in(text, lever, at, at, None, true)
}

const LOOP: &str = "import torch\n\ndef main():\n    model = make()\n    history = []\n    total = 0.0\n    for x, y in loader:\n        out = model(x)\n        loss = crit(out, y)\n        optimizer.zero_grad()\n        BACKWARD\n        optimizer.step()\n        KEEPS\n    AFTER\n";

fn training(keeps: &str, after: &str) -> String {
    LOOP.replace("BACKWARD", "loss.backward()").replace("KEEPS", keeps).replace("AFTER", after)
}

#[test]
fn collected_tensors_are_detached_and_moved_to_the_host() {
    for (keeps, after, expected) in [
        ("history.append(out)", "print(len(history))", "history.append(out.detach().cpu())"),
        ("history.append((1, out))", "", "history.append((1, out.detach().cpu()))"),
        ("history.append(out.mean())", "", "history.append(out.mean().detach().cpu())"),
        ("history.append(out.detach())", "", "history.append(out.detach().cpu())"),
        ("history[x] = out", "", "history[x] = out.detach().cpu()"),
        ("history += [out, x]", "", "history += [out.detach().cpu(), x]"),
        ("history.append({\"out\": out})", "", "history.append({\"out\": out.detach().cpu()})"),
        (
            "history.append((out, out + 1))",
            "",
            "history.append((out.detach().cpu(), (out + 1).detach().cpu()))",
        ),
        ("history.append(tuple([out, x]))", "", "history.append(tuple([out.detach().cpu(), x]))"),
        ("history.append(dict(out=out))", "", "history.append(dict(out=out.detach().cpu()))"),
        ("total += loss", "print(total.item())", "total += loss.detach()"),
        ("total = total + out.mean()", "print(float(total))", "total = total + out.mean().detach()"),
        (
            "history.append(out)",
            "torch.save(torch.cat(history), \"p.pt\")",
            "history.append(out.detach().cpu())",
        ),
        (
            "history.append(out)",
            "a = [h.mean().item() for h in history]",
            "history.append(out.detach().cpu())",
        ),
    ] {
        let text = training(keeps, after);
        let change = change_kept(&text, Lever::KeepOnCpu, &["out = model", "loss = crit"]);
        let change = change.unwrap_or_else(|why| panic!("{keeps}: {why}"));
        assert_eq!(lines(&change), [format!("-        {keeps}"), format!("+        {expected}")]);
    }
    // Whatever it is collected in, if that is new: a dictionary, or a number below zero.
    for (from, to, keeps, expected) in [
        ("history = []", "history = {}", "history[1] = out", "history[1] = out.detach().cpu()"),
        ("history = []", "history = [None] * 3", "history[1] = out", "history[1] = out.detach().cpu()"),
        ("total = 0.0", "total = -1.0", "total += loss", "total += loss.detach()"),
    ] {
        let text = training(keeps, "").replace(from, to);
        let change = change_kept(&text, Lever::KeepOnCpu, &["out = model", "loss = crit"]);
        let change = change.unwrap_or_else(|why| panic!("{to}: {why}"));
        assert_eq!(lines(&change), [format!("-        {keeps}"), format!("+        {expected}")]);
    }
    // If both the stored value and its input stay, it is detached once.
    let text = training("total = total + crit(out, y)", "print(total.item())");
    let change = change_kept(&text, Lever::ReleaseGraph, &["total = total", "out = model"]).unwrap();
    assert_eq!(lines(&change)[1], "+        total = total + crit(out, y).detach()");
    // Values that the line itself computes.
    let text = training("history.append(model(x))", "");
    let change = change_kept(&text, Lever::ReleaseGraph, &["history.append(model"]).unwrap();
    assert_eq!(lines(&change)[1], "+        history.append(model(x).detach())");
    let text = training("total += model(x) + 1", "print(total.item())");
    let change = change_kept(&text, Lever::ReleaseGraph, &["total +="]).unwrap();
    assert_eq!(lines(&change)[1], "+        total += (model(x) + 1).detach()");
}

#[test]
fn nothing_is_cut_that_a_backward_may_flow_through() {
    for (keeps, after, why) in [
        ("history.append(out)", "torch.cat(history).mean().backward()", "a backward pass goes through it"),
        (
            "history.append(out)",
            "both = torch.cat(history)\n    late = both.sum()\n    late.backward()",
            "backward",
        ),
        ("total += out.mean()", "scaler.scale(total).backward()", "a backward pass goes through it"),
        ("total += out.mean()", "accelerator.backward(total)", "a backward pass goes through it"),
        ("total += out.mean()", "(total / 3).backward()", "a backward pass goes through it"),
        ("total += out.mean()", "torch.autograd.grad(total, x)", "a backward pass goes through it"),
        ("history.append(out)", "return history", "the function returns it"),
        ("history.append(out)", "yield history", "hands it to other code"),
        ("history.append(out)", "train_on(history)", "passed to `train_on(…)`"),
        ("history.append(out)", "hook = lambda: history", "hands it to other code"),
        ("history.append(out)", "def late():\n        return history", "`late` uses `history`"),
        ("history.append(out)", "both = torch.cat(history) + bias", "computed with later"),
        ("history.append(out)", "print(torch.dot(history[0], weight))", "computed with later"),
        ("if x:\n            history.append(out)", "", "does not show that line 14 ran"),
        ("total += out", "total = make()\n    print(total)", "may also be another value"),
        ("model.kept.append(out)", "model.kept[0].backward()", "a backward pass goes through it"),
        (
            "model.kept.append(out)",
            "getattr(model, \"kept\")[0].backward()",
            "a backward pass goes through it",
        ),
        ("history.append(out)", "(both := torch.cat(history))\n    both.sum().backward()", "goes through it"),
    ] {
        let text = training(keeps, after);
        let why_refused = refused(change_kept(&text, Lever::KeepOnCpu, &["out = model", "loss = crit"]));
        assert!(why_refused.contains(why), "{keeps}; {after}: {why_refused}");
    }
    // An object's attribute may be used by other files; only in the script itself are all users known.
    let text = training("model.kept.append(out)", "");
    let at = &["out = model"];
    assert!(change_kept(&text, Lever::KeepOnCpu, at).is_ok());
    let why_refused = refused(changed_in(&text, Lever::KeepOnCpu, at, at, None, false));
    assert!(why_refused.contains("other files"), "{why_refused}");
}

/// The training needs the graph of a residual connection's addition, whatever the loss goes through.
#[test]
fn residual_connections_keep_their_graph() {
    let block = "import torch\n\nclass Block(torch.nn.Module):\n    def forward(self, x):\n        ADDS\n        return x\n\ndef main():\n    for x in loader:\n        loss = model(x)\n        scaler.scale(loss).backward()\n        losses.append(loss)\n";
    for adds in [
        "x = x + self.attn(self.ln_1(x))",
        "x += self.attn(self.ln_1(x))",
        "h = self.mlp(x)\n        x += h",
        "h = self.mlp(x)\n        x = x + h",
        "for layer in self.layers:\n            x = x + layer(x)",
        "y = torch.zeros(3)\n        for layer in self.layers:\n            y = y + layer(x)\n        x = y",
    ] {
        let text = block.replace("ADDS", adds);
        for lever in [Lever::ReleaseGraph, Lever::KeepOnCpu] {
            let why_refused = refused(change_kept(&text, lever, &["self.attn(", "self.mlp(", "layer(x)"]));
            assert!(why_refused.contains("backpropagate through it"), "{adds}: {why_refused}");
        }
    }
    // A regulariser is part of the loss; values collected in addition are not.
    let text = training("history.append(out)", "").replace(
        "        optimizer.zero_grad()\n",
        "        loss += 0.01 * out.pow(2).mean()\n        optimizer.zero_grad()\n",
    );
    let change = change_kept(&text, Lever::KeepOnCpu, &["out = model(x)"]).unwrap();
    assert_eq!(
        lines(&change),
        ["-        history.append(out)", "+        history.append(out.detach().cpu())"]
    );
}

#[test]
fn a_graph_is_released_only_where_one_backward_is_enough() {
    let of = |backward: &str| {
        let text = LOOP.replace("BACKWARD", backward).replace("KEEPS", "pass").replace("AFTER", "");
        (change_kept(&text, Lever::ReleaseGraph, &["loss = crit"]), text)
    };
    let (change, _) = of("loss.backward(retain_graph=True)");
    assert_eq!(lines(&change.unwrap())[1], "+        loss.backward()");
    let (change, _) = of("loss.backward(retain_graph=True)\n        (loss * 2).backward()");
    assert!(refused(change).contains("another backward pass"));
    let (change, _) = of("loss.backward(retain_graph=True, create_graph=True)");
    assert!(refused(change).contains("a graph of the gradients"));
    // Another backward pass of the file, which did not run, keeps its argument.
    let text = LOOP.replace("BACKWARD", "loss.backward(retain_graph=True)").replace("KEEPS", "pass").replace(
        "AFTER",
        "\ndef other():\n    for x in loader:\n        loss = crit(model(x))\n        loss.backward(retain_graph=True)",
    );
    let backwards = sites(&text, &["loss.backward("]);
    let backward = &backwards[..1];
    let change = changed_in(
        &text,
        Lever::ReleaseGraph,
        &["loss = crit(out"],
        &[],
        Some(RecordedFacts::Backwards(backward)),
        true,
    );
    assert_eq!(lines(&change.unwrap()).len(), 2);
    // Detaching a carried state would change the gradient.
    let text = "import torch\n\ndef main():\n    state = None\n    for x in loader:\n        out, state = model(x, state)\n        loss = crit(out)\n        loss.backward(retain_graph=True)\n";
    let why_refused = refused(change_kept(text, Lever::ReleaseGraph, &["out, state"]));
    assert!(why_refused.contains("`state` is carried from step to step"), "{why_refused}");
    let text = text.replace("state", "self.state");
    let why_refused = refused(change_kept(&text, Lever::ReleaseGraph, &["out, self.state"]));
    assert!(why_refused.contains("`self.state` is carried from step to step"), "{why_refused}");
}

#[test]
fn images_are_resized_before_they_are_uploaded() {
    let text = "import torch.nn.functional as F\nfor x in data:\n    x = x.to(device)\n    x = F.interpolate(x, size=224)\n    y = model(x)\n";
    let change = changed(text, Lever::ResizeBeforeUpload, &["F.interpolate"]).unwrap();
    assert!(
        change.after.contains("    x = F.interpolate(x, size=224)\n    x = x.to(device)\n"),
        "{}",
        change.after
    );
    for (from, to) in [
        ("    x = F.inter", "    z = F.inter"),
        ("x = x.to(device)", "x = batch[0].to(device)"),
        ("x = x.to(device)", "x = x.to(device, torch.half)"),
        ("size=224", "size=x.shape[0]"),
        ("F.interpolate(x", "net.interpolate(x"),
        ("    x = F.inter", "    print(x)\n    x = F.inter"),
    ] {
        let other = changed(&text.replace(from, to), Lever::ResizeBeforeUpload, &["interpolate"]);
        assert_eq!(other, Err(Refusal::NotHere), "{to}");
    }
}

const EVALUATION: &str = "import torch\n\ndef evaluate(model):\n    right = 0\n    for x, y in data:\n        out = model(x)\n        right += (out.argmax(1) == y).sum().item()\n    return RETURNS\n\ndef main():\n    for x, y in loader:\n        loss = crit(model(x), y)\n        loss.backward()\n        score = evaluate(model)\n        AFTER\n";

fn without_grad(text: &str, never: bool) -> Result<Change, Refusal> {
    changed_in(text, Lever::NoGrad, &["out = model(x)"], &[], Some(RecordedFacts::NeverTrained(never)), true)
}

#[test]
fn an_evaluation_keeps_no_graph() {
    let of = |returns: &str, after: &str| EVALUATION.replace("RETURNS", returns).replace("AFTER", after);
    let change = without_grad(&of("right", "print(score)"), false).unwrap();
    assert_eq!((change.line, lines(&change)), (3, vec!["+@torch.no_grad()".to_owned()]));
    // Below other decorators, and not at all if other files may train on the result.
    let text = of("right", "").replace("def evaluate", "@staticmethod\ndef evaluate");
    let change = without_grad(&text, false).unwrap();
    assert!(change.after.contains("@staticmethod\n@torch.no_grad()\ndef evaluate"), "{}", change.after);
    let at = &["out = model(x)"];
    let known = Some(RecordedFacts::NeverTrained(false));
    let why_refused = refused(changed_in(&of("right", ""), Lever::NoGrad, at, &[], known, false));
    assert!(why_refused.contains("called by other files"), "{why_refused}");
    // A score that a backward pass goes through is trained on, whatever the function's name.
    for (after, never, why) in [
        ("score.backward()", true, "a backward pass goes through it"),
        ("(loss + score).backward()", false, "a backward pass goes through it"),
        ("learn(score)", false, "passed to `learn(…)`"),
    ] {
        let why_refused = refused(without_grad(&of("out", after), never));
        assert!(why_refused.contains(why), "{after}: {why_refused}");
    }
    assert!(without_grad(&of("out", "learn(score)"), true).is_ok(), "no backward followed any call of it");
}

#[test]
fn an_evaluation_within_a_training_has_a_context_of_its_own() {
    let text = "import torch\n\ndef main():\n    for x, y in loader:\n        crit(model(x), y).backward()\n        preds = model(\n            held_out,\n        )  # later\n        print(preds.argmax(1).tolist())\n";
    let change = changed_in(
        text,
        Lever::NoGrad,
        &["preds = model"],
        &[],
        Some(RecordedFacts::NeverTrained(false)),
        true,
    )
    .unwrap();
    let inside = "        with torch.no_grad():\n            preds = model(\n                held_out,\n            )  # later\n";
    assert!(change.after.contains(inside), "{}", change.after);
    let trained = text.replace("print(preds", "mse(preds, x).backward()\n        print(preds");
    let why_refused = refused(changed_in(
        &trained,
        Lever::NoGrad,
        &["preds = model"],
        &[],
        Some(RecordedFacts::NeverTrained(true)),
        true,
    ));
    assert!(why_refused.contains("`preds` may be part of a loss"), "{why_refused}");
}

#[test]
fn the_forward_goes_under_a_context() {
    let text = "import torch\n\ndef main():\n    for x in loader:\n        out = model(x)\n        out.sum().backward()\n";
    let change = changed(text, Lever::AutocastBf16, &["out = model"]).unwrap();
    assert_eq!(lines(&change)[1], "+        with torch.autocast(\"cuda\", dtype=torch.bfloat16):");
    let change = changed(text, Lever::ActivationOffload, &["out = model"]).unwrap();
    assert_eq!(lines(&change)[2], "+            out = model(x)");
    for (from, to, why) in [
        ("out = model(x)", "out = model(x); y = x", "there is another statement on its line"),
        ("out = model(x)", "out = model(x).backward()", "should not run under autocast"),
        (
            "        out = model(x)",
            "        if True:\n          with torch.autocast(\"cuda\"):\n            out = model(x)",
            "already enabled",
        ),
        ("out = model(x)", "out = model(x, \"\"\"a\n\"\"\")", "multi-line string"),
        (
            "    for x in loader:\n        out = model(x)",
            "    for out in model(x):\n        pass",
            "in the header of a compound statement",
        ),
        ("out = model(x)", "out = (model(y) for y in x)", "called later"),
    ] {
        let why_refused = refused(changed(&text.replace(from, to), Lever::AutocastBf16, &["model("]));
        assert!(why_refused.contains(why), "{to}: {why_refused}");
    }
    // The file has changed since the recording.
    let read = |_: &str| Some(text.to_owned());
    let site = Site { file: FILE.to_owned(), line: 5, function: "evaluate".to_owned() };
    let code = Code::new(&read, Ran::new([site.clone()], None));
    for (lever, known) in [
        (Lever::ActivationOffload, RecordedFacts::Nothing),
        (Lever::NoGrad, RecordedFacts::NeverTrained(true)),
        (Lever::KeepOnCpu, RecordedFacts::Backwards(&[])),
        (Lever::Checkpointing, RecordedFacts::Nothing),
        (Lever::DropVariables, RecordedFacts::Leftovers { step: Some(&site), gradients: true }),
    ] {
        let wanted = RemedyRequest { lever, sites: std::slice::from_ref(&site), known };
        assert!(refused(code.change(&wanted)).contains("no longer one of `evaluate`"), "{lever}");
    }
}

const NET: &str = "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        for block in self.blocks:\n            x = block(x, 1)\n        x = self.head(x)\n        return x\n";

#[test]
fn blocks_are_computed_again() {
    let change = changed(NET, Lever::Checkpointing, &["x = block("]).unwrap();
    assert_eq!(
        lines(&change),
        [
            "+import torch.utils.checkpoint",
            "-            x = block(x, 1)",
            "+            x = torch.utils.checkpoint.checkpoint(block, x, 1, use_reentrant=False)"
        ]
    );
    for (from, to, why) in [
        ("x = block(x, 1)", "x = block(*x)", "calls no block"),
        ("x = block(x, 1)", "x = torch.relu(x)", "calls no block"),
        ("x = block(x, 1)", "y = block(1)", "calls no block"),
        ("def forward", "def prepare", "calls no block"),
        (
            "        return x",
            "        self.norm = torch.nn.BatchNorm2d(3)\n        return x",
            "batch normalisation",
        ),
    ] {
        let text = NET.replace(from, to);
        let why_refused = refused(changed(&text, Lever::Checkpointing, &["block(", "relu("]));
        assert!(why_refused.contains(why), "{to}: {why_refused}");
    }
}

fn left_over(text: &str, at: &[&str], gradients: bool) -> Result<Change, Refusal> {
    let step = sites(text, &[".step()"]).pop();
    changed_in(
        text,
        Lever::DropVariables,
        at,
        &[],
        Some(RecordedFacts::Leftovers { step: step.as_ref(), gradients }),
        true,
    )
}

#[test]
fn leftovers_of_an_iteration_are_deleted_at_its_end() {
    let text =
        training("with torch.no_grad():\n            heat = up(out)\n        print(heat.max())", "print(1)");
    let change = left_over(&text, &["out = model", "heat = up", "loss = crit"], false).unwrap();
    assert_eq!(lines(&change), ["+        del heat, loss, out"]);
    assert!(
        change.after.contains("        print(heat.max())\n        del heat, loss, out\n"),
        "{}",
        change.after
    );
    // What is bound outside of the loop goes with its function; without a step, the loop is that of values.
    for text in [training("pass", ""), training("pass", "").replace("        optimizer.step()\n", "")] {
        let change = left_over(&text, &["model = make", "loss = crit"], false).unwrap();
        assert_eq!(lines(&change), ["+        del loss"]);
    }
    assert_eq!(left_over("import torch\nx = 1\ny = 2\n", &["x = 1"], false), Err(Refusal::NotHere));
    for (keeps, after, why) in [
        ("pass", "print(out)", "reads `out` after the loop"),
        ("if x:\n            out = up(out)", "", "reads `out` from the previous iteration"),
        ("del out", "", "already deletes `out`"),
        ("f = lambda: 1\n        def late():\n            return out", "", "`late` uses `out`"),
    ] {
        let mut text = training(keeps, after);
        if why.contains("previous iteration") {
            text = text.replace("        out = model(x)\n", "        print(out)\n        out = model(x)\n");
        }
        let why_refused = refused(left_over(&text, &["out = model"], false));
        assert!(why_refused.contains(why), "{keeps}: {why_refused}");
    }
    let why_refused =
        refused(left_over(&training("if x:\n            heat = up(x)", ""), &["heat = up"], false));
    assert!(why_refused.contains("not assigned in each iteration"), "{why_refused}");
}

#[test]
fn gradients_go_right_behind_the_step() {
    let text = training("pass", "");
    let change = left_over(&text, &["x, y"], true).unwrap();
    assert_eq!(lines(&change), ["+        optimizer.zero_grad()"]);
    assert!(change.after.contains("optimizer.step()\n        optimizer.zero_grad()\n"), "{}", change.after);
    for (from, to, why) in [
        ("        optimizer.zero_grad()\n", "", "not cleared in the same iteration"),
        ("optimizer.zero_grad()", "other.zero_grad()", "not cleared in the same iteration"),
        (
            "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n",
            "        loss.backward()\n        optimizer.step()\n        optimizer.zero_grad()\n",
            "not cleared in the same iteration",
        ),
        ("        pass", "        print(model.w.grad.norm())", "reads gradients after the step"),
    ] {
        let why_refused = refused(left_over(&text.replace(from, to), &["x, y"], true));
        assert!(why_refused.contains(why), "{to}: {why_refused}");
    }
}

#[test]
fn a_tensor_that_is_replaced_by_itself_and_more_is_concatenated() {
    for (line, expected) in [
        ("seen = torch.cat([seen, new])", true),
        ("self.keys = k if self.keys is None else torch.cat((self.keys, k), dim=2)", true),
        ("cache.values = torch.concat([cache.values, v.half()], 1)", true),
        ("both = torch.cat([seen, new])", false),
        ("seen = torch.stack([seen, new])", false),
        ("seen = seen + torch.cat([new, old])", false),
        ("seen.append(torch.cat([seen[0], new]))", false),
    ] {
        let text = format!("import torch\n{line}\n");
        let read = |file: &str| (file == FILE).then(|| text.clone());
        let site = Site { file: FILE.to_owned(), line: 2, function: "<module>".to_owned() };
        let code = Code::new(&read, Ran::new([site.clone()], None));
        assert_eq!(code.is_concatenated(&site), expected, "{line}");
    }
}

#[test]
fn without_a_source_there_is_no_reason_to_tell() {
    let code = Code::new(&|_| None, Ran::default());
    let site = Site { file: FILE.to_owned(), line: 1, function: String::new() };
    for (lever, known) in [
        (Lever::ReleaseGraph, RecordedFacts::Backwards(&[])),
        (Lever::DropVariables, RecordedFacts::Leftovers { step: None, gradients: true }),
        (Lever::Sdpa, RecordedFacts::Nothing),
        (Lever::CpuOnlyWorkers, RecordedFacts::Nothing),
        (Lever::Checkpointing, RecordedFacts::Nothing),
        (Lever::LargerGpu, RecordedFacts::Nothing),
    ] {
        let wanted = RemedyRequest { lever, sites: std::slice::from_ref(&site), known };
        assert_eq!(code.change(&wanted), Err(Refusal::NotHere), "{lever}");
    }
    assert_eq!(code.line(FILE, 1), None);
}
