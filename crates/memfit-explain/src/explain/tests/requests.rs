//! Requests of optimizers and of the autograd engine, and collections that are rebuilt.

use super::*;

#[test]
fn momentum_is_state_and_no_temporary() {
    const SGD: &str = "/v/site-packages/torch/optim/sgd.py";
    let fixes = |of_library: &str| {
        let mut run = Growing::default();
        let [placed, backward, update] = [
            run.stack(&PLACED),
            run.stack(&[
                ("/v/site-packages/torch/autograd/graph.py", "_engine_run_backward", 1),
                ("train.py", "train", 9),
            ]),
            run.stack(&[(SGD, "_multi_tensor_sgd", 2), ("train.py", "train", 10)]),
        ];
        for (stack, bytes) in [(placed, 1024), (backward, 1024), (update, 512)] {
            run.alloc(stack, bytes * MIB, bytes * MIB);
        }
        let track = run.fail(update, 512 * MIB);
        let source = |file: &str| if file == SGD { Some(format!("#\n{of_library}\n")) } else { source(file) };
        let card = Card { limit: Some(2816 * MIB), ..Card::default() };
        let explanation = of_source(&track, card, "", &source).unwrap();
        assert_eq!(explanation.cause, Cause::FirstStepSurprise, "{:?}", explanation.considered);
        explanation.fixes
    };
    let enough = |fixes: &[Fix], lever| fixes.iter().any(|fix| fix.lever == lever && fix.fits == Some(true));
    let copied = fixes("] = device_grads[i].detach().clone()");
    assert_eq!((copied[0].lever, copied[0].saves), (Lever::HostOptimizerState, 1024 * MIB));
    assert!(!enough(&copied, Lever::ForeachOff), "{copied:?}");
    let computed = fixes("grads = torch._foreach_add(grads, params, alpha=weight_decay)");
    assert!(enough(&computed, Lever::ForeachOff), "{computed:?}");
}

#[test]
fn gradients_that_do_not_fit_are_blamed_on_the_backward_call() {
    let mut run = Growing::default();
    let placed = run.stack(&PLACED);
    let backward = run.stack(&[
        ("/v/site-packages/torch/autograd/graph.py", "_engine_run_backward", 1),
        ("train.py", "train", 9),
    ]);
    for (stack, bytes) in [(placed, 1536), (backward, 1), (StackId::NONE, 1024)] {
        run.alloc(stack, bytes * MIB, bytes * MIB);
    }
    // The engine's threads have no Python frames.
    let explanation = explained(&run.fail(StackId::NONE, 512 * MIB), Some(2816 * MIB), "").unwrap();
    assert_eq!(explanation.cause, Cause::DoesNotFit, "{:?}", explanation.considered);
    assert_eq!(explanation.evidence[0].lines.first().map(|line| line.line), Some(9));
    assert_eq!(explanation.fixes[0].lever, Lever::Shard, "a larger GPU is no advice for this one");
}

#[test]
fn a_cache_in_larger_blocks_than_it_needs_grows_all_the_same() {
    let mut run = Growing::default();
    let module = run
        .stack(&[("/v/site-packages/torch/nn/modules/module.py", "_call_impl", 2), ("train.py", "train", 7)]);
    let plain = run.stack(&[("train.py", "train", 8)]);
    let mut before = None;
    for token in 1..=20 {
        let requested = token * 64 * MIB;
        // The allocator does not split a block whose rest is small.
        let bytes = requested + if token % 2 == 1 { 96 * MIB } else { 0 };
        let now = run.alloc(module, requested, bytes);
        if let Some(before) = before.replace(now) {
            run.free(before);
        }
        run.alloc(plain, 512, 512);
    }
    let explanation = explained(&run.fail(module, 21 * 64 * MIB), Some(2048 * MIB), "").unwrap();
    assert_eq!(explanation.cause, Cause::GrowingCache, "{:?}", explanation.considered);
}

#[test]
fn a_line_of_another_file_does_not_hide_the_line_that_keeps() {
    let mut run = Growing::default();
    // The launcher's line has the number of the script's line that stores the output.
    let stack = run.stack(&[("train.py", "train", 7), ("launch.py", "<module>", 8)]);
    for step in 1..=6 {
        run.alloc(stack, 64 * MIB, 64 * MIB);
        let totals = run.totals();
        run.track.add_moment(MomentKind::Step(step), 0, StackId::NONE, totals);
    }
    let explanation = explained(&run.fail(stack, 64 * MIB), Some(6 * 64 * MIB), "").unwrap();
    let kept = explanation.evidence.iter().find(|fact| fact.text == "this line keeps it");
    let line = kept.and_then(|fact| fact.lines.first()).map(|line| (line.file.as_str(), line.line));
    assert_eq!(line, Some(("train.py", 8)), "{:?}", explanation.evidence);
}
