//! Values that are followed by name: what is the same value, and what only looks like it.

use super::*;

const MODULE: &str = "import torch\n\nhistory = []\n\nFUNCTION\n\nfor x, y in loader:\n    out = model(x)\n    loss = crit(out, y)\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n    history.append(out)\n";

#[test]
fn a_function_uses_a_name_of_the_module_unless_it_binds_its_own() {
    for (function, allowed) in [
        ("def late():\n    torch.cat(history).sum().backward()", false),
        ("def late(score):\n    history = [score]\n    torch.cat(history).sum().backward()", true),
        (
            "def late(score):\n    global history\n    history = [score]\n    torch.cat(history).sum().backward()",
            false,
        ),
    ] {
        let text = MODULE.replace("FUNCTION", function);
        let change = change_kept(&text, Lever::KeepOnCpu, &["out = model"]);
        if allowed {
            let change = change.unwrap_or_else(|why| panic!("{function}: {why}"));
            assert_eq!(lines(&change)[1], "+    history.append(out.detach().cpu())");
        } else {
            let why = refused(change);
            assert!(why.contains("a backward pass goes through it"), "{function}: {why}");
        }
    }
}

#[test]
fn another_objects_backward_pass_does_not_go_through_a_collected_tensor() {
    for after in ["aux.loss.backward()", "getattr(aux, \"loss\").backward()"] {
        let text = training("history.append(out)", after);
        let change = change_kept(&text, Lever::KeepOnCpu, &["out = model"]);
        let change = change.unwrap_or_else(|why| panic!("{after}: {why}"));
        assert_eq!(lines(&change)[1], "+        history.append(out.detach().cpu())");
    }
    let text =
        training("history.append(out)", "late = [h.mean() for h in history]\n    sum(late).backward()");
    let why = refused(change_kept(&text, Lever::KeepOnCpu, &["out = model"]));
    assert!(why.contains("a backward pass goes through it"), "{why}");
}

#[test]
fn an_attributes_name_in_a_text_counts_only_where_attributes_are_looked_up() {
    let of = |after: &str| {
        let text = training("self.history.append(out)", after).replace("history = []", "self.history = []");
        change_kept(&text.replace("main()", "main(self)"), Lever::KeepOnCpu, &["out = model"])
    };
    let change = of("return config.get(\"history\")").unwrap();
    assert_eq!(lines(&change)[1], "+        self.history.append(out.detach().cpu())");
    let why = refused(of("return getattr(self, \"history\")"));
    assert!(why.contains("the function returns it"), "{why}");
}

#[test]
fn a_value_that_is_not_computed_from_the_line_is_not_detached() {
    let text = training("other = make()\n        history.append(other)", "");
    assert_eq!(change_kept(&text, Lever::ReleaseGraph, &["out = model"]), Err(Refusal::NotHere));
}

#[test]
fn an_import_of_another_module_does_not_bind_torch() {
    let text =
        EVALUATION.replace("RETURNS", "right").replace("AFTER", "").replace("import torch", "import math");
    let change = without_grad(&text, false).unwrap();
    assert!(change.after.contains("import math\nimport torch\n"), "{}", change.after);
    let text = text.replace("import math", "import torch.nn");
    let change = without_grad(&text, false).unwrap();
    assert_eq!(lines(&change), ["+@torch.no_grad()"]);
}

#[test]
fn a_function_without_a_result_may_be_called_by_other_files() {
    let text = EVALUATION.replace("return RETURNS", "print(right)").replace("AFTER", "");
    let known = Some(RecordedFacts::NeverTrained(false));
    let change = changed_in(&text, Lever::NoGrad, &["out = model(x)"], &[], known, false).unwrap();
    assert_eq!(lines(&change), ["+@torch.no_grad()"]);
}

#[test]
fn a_block_may_be_an_attribute() {
    let text = NET.replace("x = block(x, 1)", "x = self.blocks.first(x, 1)");
    let change = changed(&text, Lever::Checkpointing, &["x = self.blocks.first("]).unwrap();
    let call = "x = torch.utils.checkpoint.checkpoint(self.blocks.first, x, 1, use_reentrant=False)";
    assert!(change.after.contains(call), "{}", change.after);
}

#[test]
fn what_a_with_statement_binds_is_not_deleted() {
    let text = training("with up(x) as heat:\n            print(heat)", "");
    let change = left_over(&text, &["with up", "loss = crit"], false).unwrap();
    assert_eq!(lines(&change), ["+        del loss"]);
}

#[test]
fn a_name_that_is_changed_after_the_loop_is_not_deleted_in_it() {
    for after in ["out += 1", "out[0] = 1", "out.seen = True"] {
        let why = refused(left_over(&training("pass", after), &["out = model"], false));
        assert!(why.contains("reads `out` after the loop"), "{after}: {why}");
    }
}
