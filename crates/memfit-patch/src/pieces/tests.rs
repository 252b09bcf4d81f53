//! Typical training loops, divided into micro-batches.

use std::path::Path;

use memfit_plan::{MadeFor, Plan};

use super::with_batch;
use crate::{Lever, Patched, patch};

const HEAD: &str = "import torch\nfrom torch.nn import functional as F\n\nfor epoch in range(3):\n    for images, labels in loader:\n";

fn in_pieces(round: &str) -> Patched {
    let body = format!("        {}\n", round.trim_end().replace('\n', "\n        "));
    let plan = Plan::parse("micro_batch = 2\n", Path::new("memfit.plan.toml")).unwrap();
    patch(&format!("{HEAD}{body}"), &plan)
}

/// Loop of a changed script.
fn round(round: &str) -> String {
    let changed = in_pieces(round);
    assert_eq!(changed.left, [], "{}", changed.text);
    changed.text[changed.text.find("for epoch").unwrap()..].to_owned()
}

#[test]
fn a_sum_is_weighted_as_a_whole() {
    let text = round(
        "ce = F.cross_entropy(model(images), labels)\nreg = penalty(model)\noptimizer.zero_grad()\n(ce + 0.1 * reg).backward()\noptimizer.step()\ntotal += ce.item() * len(labels)\n",
    );
    insta::assert_snapshot!(text);
}

#[test]
fn counters_count_once_per_batch() {
    let text = round(
        "step += 1\nout = model(images)\nloss = F.cross_entropy(out, labels)\nlosses.append(loss.item())\ncorrect += (out.argmax(1) == labels).sum().item()\nif step % 10 == 0:\n    print(loss.item())\nloss.backward()\noptimizer.step()\noptimizer.zero_grad()\n",
    );
    insta::assert_snapshot!(text);
}

#[test]
fn values_of_the_batch_are_joined_and_others_are_computed_once() {
    let text = round(
        "images, labels = images.to(device), labels.to(device)\nlam = beta.sample()\nmixed = lam * images + (1 - lam) * images.flip(0)\nout = model(mixed)\nloss = F.cross_entropy(out, labels)\nloss.backward()\noptimizer.step()\naccuracy = (out.argmax(1) == labels).float().mean()\n",
    );
    insta::assert_snapshot!(text);
}

#[test]
fn a_piece_that_counts_within_its_forward_is_refused() {
    let changed = in_pieces(
        "with torch.autocast('cuda'):\n    loss = F.cross_entropy(model(images), labels)\n    total += loss.item()\nloss.backward()\noptimizer.step()\n",
    );
    assert_eq!(changed.left.iter().map(|left| left.lever).collect::<Vec<_>>(), [Lever::MicroBatch]);
    assert!(changed.left[0].why.contains("`total` is incremented"), "{}", changed.left[0].why);
}

#[test]
fn a_sum_that_begins_anew_within_the_forward_pass_may_be_incremented() {
    let text = round(
        "with torch.autocast('cuda'):\n    total = 0\n    loss = F.cross_entropy(model(images), labels)\n    total += 1\nloss.backward()\noptimizer.step()\n",
    );
    assert!(text.contains("total += 1"), "{text}");
}

#[test]
fn a_name_that_is_bound_again_after_the_step_is_not_joined() {
    let text = round(
        "out, extra = model(images)\nloss = F.cross_entropy(out, labels)\nloss.backward()\noptimizer.step()\nout, extra = None, None\nprint(out)\n",
    );
    assert!(!text.contains("torch.cat"), "{text}");
}

#[test]
fn names_of_the_batch_may_begin_with_an_underscore() {
    let plan = Plan::parse("micro_batch = 2\n", Path::new("memfit.plan.toml")).unwrap();
    let body = "        loss = F.cross_entropy(model(_images), labels)\n        loss.backward()\n        optimizer.step()\n";
    let patched = patch(&format!("{}{body}", HEAD.replace("images", "_images")), &plan);
    assert_eq!(patched.left, [], "{}", patched.text);
    assert!(patched.text.contains("in pieces((_images, labels), 2):"), "{}", patched.text);
}

#[test]
fn a_loss_that_binds_tightly_stays_without_parentheses() {
    let check = |backward: &str, expected: &str| {
        let text =
            round(&format!("loss = F.cross_entropy(model(images), labels)\n{backward}\noptimizer.step()\n"));
        assert!(text.contains(expected), "{backward}: {text}");
    };
    check("loss.backward()", "(loss * share).backward()");
    check("(loss).backward()", "(loss * share).backward()");
    check("(loss / 4).backward()", "((loss / 4) * share).backward()");
    check("(-loss).backward()", "((-loss) * share).backward()");
    check("loss.mean().backward()", "(loss.mean() * share).backward()");
    check("torch.autograd.backward(loss + 1)", "backward((loss + 1) * share)");
    check("(a if b else loss).backward()", "((a if b else loss) * share).backward()");
}

#[test]
fn the_size_of_a_batch_is_set_by_its_names() {
    let made_for =
        MadeFor { batch: Some(64), batch_names: vec!["batch_size".to_owned()], ..MadeFor::default() };
    let small = with_batch("batch_size = 64\nlr = 64\n", &made_for, 4);
    assert_eq!(small.as_deref(), Some("batch_size = 4\nlr = 64\n"));
    assert_eq!(with_batch("size = 64\n", &made_for, 4), None);
}
