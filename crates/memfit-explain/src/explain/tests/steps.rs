//! Memory of earlier steps: variables, gradients, graphs and collections.

use super::*;

/// Explanation for a script with another text, on a GPU with this limit.
fn of_program_on(track: &Track, limit: u64, program: &str) -> Explanation {
    let source = |file: &str| (file == "train.py").then(|| program.to_owned());
    of_source(track, Card { limit: Some(limit), ..Card::default() }, "", &source).unwrap()
}

/// Explanation for a script that calls the model, and never runs a backward pass.
fn of_generation(track: &Track, limit: u64) -> Explanation {
    of_program_on(track, limit, &SCRIPT.replace("out.backward(retain_graph=True)", "pass"))
}

/// Lines that an edit adds.
fn added(fix: &Fix) -> Vec<&str> {
    let Apply::Edit(change) = &fix.apply else { panic!("{fix:?}") };
    let lines = change.diff.lines().filter(|line| !line.starts_with("+++"));
    lines.filter_map(|line| line.strip_prefix('+')).map(str::trim).collect()
}

#[test]
fn what_the_previous_micro_batch_left_is_from_lines_that_this_one_has_not_reached() {
    let mut run = Growing::default();
    let [data, model, loss] = [
        run.stack(&[("train.py", "train", 6)]),
        run.stack(&[MODULE, ("train.py", "train", 7)]),
        run.stack(&[("train.py", "train", 8)]),
    ];
    run.alloc(data, 512, 512);
    run.end_step(1);
    for (stack, bytes) in [(model, 32), (loss, 512), (model, 64)] {
        run.alloc(stack, bytes * MIB, bytes * MIB);
    }
    let explanation = explained(&run.fail(model, 512 * MIB), Some(1024 * MIB), "").unwrap();
    assert_eq!(explanation.cause, Cause::TwoBatchesAlive, "{:?}", explanation.considered);
    // The 32 MiB of the model's line may be of this micro-batch as well.
    let fact = &explanation.evidence[0];
    assert_eq!((fact.bytes, fact.lines[0].line), (512 * MIB, 8), "{}", fact.text);
}

#[test]
fn what_another_network_left_is_no_cause_where_a_pass_runs_for_the_first_time() {
    for (line, is_enough) in [(7, true), (12, false)] {
        let mut run = Growing::default();
        let [placed, first, backward, failing] = [
            run.stack(&PLACED),
            run.stack(&[MODULE, ("train.py", "train", 7)]),
            run.stack(&[BACKWARD, ("train.py", "train", 8)]),
            run.stack(&[MODULE, ("train.py", "train", line)]),
        ];
        run.alloc(placed, 128 * MIB, 128 * MIB);
        let activation = run.alloc(first, 256 * MIB, 256 * MIB);
        run.alloc(backward, 96 * MIB, 96 * MIB);
        run.free(activation);
        run.end_step(1);
        for _ in 0..12 {
            run.alloc(failing, 64 * MIB, 64 * MIB);
        }
        let explanation = explained(&run.fail(failing, 64 * MIB), Some(1024 * MIB), "").unwrap();
        let left = explanation.considered.iter().find(|each| each.cause == Cause::TwoBatchesAlive).unwrap();
        assert_eq!(left.enough, is_enough, "{:?}", explanation.considered);
    }
}

#[test]
fn gradients_and_variables_of_the_previous_step_are_freed_at_its_end() {
    const PROGRAM: &str = "import torch\n\ndef train(model, optimizer):\n    for x in loader:\n        out = model(x)\n        loss = out.mean()\n        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n";
    const CLEAR: &str = "optimizer.zero_grad()";
    for (gradients, variables, lever, lines) in [
        (512, 0, Lever::ZeroGradEarlier, vec![CLEAR]),
        (384, 128, Lever::ZeroGradEarlier, vec!["del out", CLEAR]),
        (256, 256, Lever::DropVariables, vec!["del out", CLEAR]),
        (0, 512, Lever::DropVariables, vec!["del out"]),
    ] {
        let mut run = Growing::default();
        let [placed, model, backward, update] = [
            run.stack(&PLACED),
            run.stack(&[MODULE, ("train.py", "train", 5)]),
            run.stack(&[BACKWARD, ("train.py", "train", 8)]),
            run.stack(&[
                ("/v/site-packages/torch/optim/sgd.py", "_multi_tensor_sgd", 2),
                ("train.py", "train", 9),
            ]),
        ];
        run.alloc(placed, 512 * MIB, 512 * MIB);
        for (stack, bytes) in [(model, variables), (backward, gradients)] {
            if bytes > 0 {
                run.alloc(stack, bytes * MIB, bytes * MIB);
            }
        }
        let temporary = run.alloc(update, 64 * MIB, 64 * MIB);
        run.free(temporary);
        run.end_step(1);
        let explanation = of_program_on(&run.fail(model, 512 * MIB), 1280 * MIB, PROGRAM);
        assert_eq!(explanation.cause, Cause::TwoBatchesAlive, "{:?}", explanation.considered);
        let fact = &explanation.evidence[0];
        assert_eq!(
            (fact.bytes, fact.text.contains("gradients")),
            (512 * MIB, gradients > 0),
            "{}",
            fact.text
        );
        let fix = explanation.fixes.iter().find(|fix| fix.lever == lever).unwrap();
        assert_eq!(fix.how.contains(CLEAR), gradients > 0, "{}", fix.how);
        assert_eq!(added(fix), lines, "{gradients} and {variables} MiB");
    }
}

#[test]
fn a_line_that_no_backward_pass_follows_evaluates_whatever_its_functions_name() {
    const PROGRAM: &str = "import torch\n\ndef peek(model):\n    right = 0\n    for x, y in data:\n        out = model(x)\n        right += (out.argmax(1) == y).sum().item()\n    return out\n\ndef main():\n    for x, y in loader:\n        loss = crit(model(x), y)\n        loss.backward()\n        score = peek(model)\n        learn(score)\n";
    let mut run = Growing::default();
    let [trained, backward, peeked] = [
        run.stack(&[MODULE, ("train.py", "main", 12)]),
        run.stack(&[BACKWARD, ("train.py", "main", 13)]),
        run.stack(&[MODULE, ("train.py", "peek", 6), ("train.py", "main", 14)]),
    ];
    let activation = run.alloc(trained, 256 * MIB, 256 * MIB);
    run.alloc(backward, 64 * MIB, 64 * MIB);
    run.free(activation);
    for _ in 0..6 {
        run.alloc(peeked, 256 * MIB, 256 * MIB);
    }
    let explanation = of_program_on(&run.fail(peeked, 256 * MIB), 1664 * MIB, PROGRAM);
    assert_eq!(explanation.cause, Cause::EvaluationWithGradients, "{:?}", explanation.considered);
    let why = "`peek` calls the model, and no backward pass ever followed";
    assert!(explanation.evidence[0].text.starts_with(why), "{}", explanation.evidence[0].text);
    // The recording shows that `learn` does not train on it.
    let fix = explanation.fixes.iter().find(|fix| fix.lever == Lever::NoGrad).unwrap();
    assert_eq!(added(fix), ["@torch.no_grad()"]);
    // Without the graph, nothing is left to recompute, to offload or to accumulate.
    let others: Vec<Lever> = explanation.fixes.iter().map(|fix| fix.lever).collect();
    let of_graphs = [Lever::Checkpointing, Lever::ActivationOffload, Lever::MicroBatch, Lever::SmallerBatch];
    assert!(!others.iter().any(|lever| of_graphs.contains(lever)), "{others:?}");
    assert!(others.contains(&Lever::LargerGpu), "{others:?}");
}

#[test]
fn an_evaluation_that_keeps_each_graph_lacks_no_grad() {
    let mut run = Growing::default();
    let [module, plain] =
        [run.stack(&[MODULE, ("train.py", "train", 7)]), run.stack(&[("train.py", "train", 6)])];
    for _ in 0..8 {
        for _ in 0..4 {
            run.alloc(module, 32 * MIB, 32 * MIB);
        }
        run.alloc(plain, 512, 512);
    }
    let explanation = of_generation(&run.fail(module, 32 * MIB), 1025 * MIB);
    let sufficient: Vec<Cause> =
        explanation.considered.iter().filter(|one| one.enough).map(|one| one.cause).collect();
    assert_eq!(sufficient[..2], [Cause::EvaluationWithGradients, Cause::RetainedGraph]);
    assert_eq!(explanation.cause, Cause::EvaluationWithGradients);
}

#[test]
fn four_passes_after_a_step_are_an_evaluation_whether_or_not_steps_are_announced() {
    let leaks = |is_announced: bool, differentiates_again: bool| {
        let mut run = Growing::default();
        let [module, plain, backward, update] = [
            run.stack(&[MODULE, ("train.py", "train", 7)]),
            run.stack(&[("train.py", "train", 6)]),
            run.stack(&[BACKWARD, ("train.py", "train", 9)]),
            run.stack(&[
                ("/v/site-packages/torch/optim/sgd.py", "_multi_tensor_sgd", 2),
                ("train.py", "train", 10),
            ]),
        ];
        let temporary = |run: &mut Growing, stack: StackId| {
            let block = run.alloc(stack, 64 * MIB, 64 * MIB);
            run.free(block);
        };
        for stack in [module, backward, update] {
            temporary(&mut run, stack);
        }
        if is_announced {
            run.end_step(1);
        }
        if differentiates_again {
            temporary(&mut run, backward);
        }
        for _ in 0..4 {
            run.alloc(module, 128 * MIB, 128 * MIB);
            run.alloc(plain, 512, 512);
        }
        let explanation = of_generation(&run.fail(module, 128 * MIB), 513 * MIB);
        explanation.leaks.iter().map(|leak| (leak.per_step, leak.steps)).collect::<Vec<_>>()
    };
    for is_announced in [true, false] {
        assert_eq!(leaks(is_announced, false), [(128 * MIB, 4), (512, 4)], "{is_announced}");
        assert_eq!(leaks(is_announced, true), [], "a training: {is_announced}");
    }
}

#[test]
fn slow_growth_is_a_cause_only_once_it_has_filled_a_quarter_of_the_memory() {
    for (weights, steps, is_considered) in [(800, 300, true), (900, 200, false)] {
        let mut run = Growing::default();
        let (placed, own) = (run.stack(&PLACED), run.stack(&[("train.py", "train", 7)]));
        run.alloc(placed, weights * MIB, weights * MIB);
        for step in 1..=steps {
            run.alloc(own, MIB, MIB);
            run.end_step(step);
        }
        let explanation = explained(&run.fail(own, MIB), Some(1100 * MIB), "").unwrap();
        let growth = explanation.considered.iter().find(|one| one.cause == Cause::Leaking);
        assert_eq!(growth.is_some(), is_considered, "{:?}", explanation.considered);
    }
}

#[test]
fn a_few_results_of_a_forward_pass_are_not_its_graph() {
    for (freed, cause) in [(1, Cause::RetainedGraph), (5, Cause::Leaking)] {
        let mut run = Growing::default();
        let module = run.stack(&[MODULE, ("train.py", "train", 7)]);
        let backward = run.stack(&[BACKWARD, ("train.py", "train", 9)]);
        for step in 1..=8 {
            let activations: Vec<u32> = (0..freed).map(|_| run.alloc(module, 64 * MIB, 64 * MIB)).collect();
            for _ in 0..4 {
                run.alloc(module, 16 * MIB, 16 * MIB);
            }
            let gradient = run.alloc(backward, MIB, MIB);
            for activation in activations {
                run.free(activation);
            }
            run.free(gradient);
            run.end_step(step);
        }
        let explanation = explained(&run.fail(module, 64 * MIB), Some(8 * 64 * MIB), "").unwrap();
        assert_eq!(explanation.cause, cause, "{freed}: {:?}", explanation.considered);
    }
}

#[test]
fn what_a_line_adds_by_torch_cat_is_a_growing_cache() {
    let program = SCRIPT.replace("out = model(step)", "kept = torch.cat([kept, model(step)])");
    for (text, cause) in [(SCRIPT, Cause::Leaking), (&program, Cause::GrowingCache)] {
        let mut track = growing(12, 64 * MIB);
        let full = Totals { allocated: 768 * MIB, reserved: 768 * MIB, time_us: None };
        track.add_moment(MomentKind::Oom(64 * MIB), 0, StackId::NONE, full);
        let explanation = of_program_on(&track, 768 * MIB, text);
        assert_eq!(explanation.cause, cause, "{:?}", explanation.considered);
    }
}

/// A generation whose cache has these sizes in turn: each is a new block, and the last one is freed.
fn rebuilt(sizes: impl Iterator<Item = u64>) -> Track {
    let mut run = Growing::default();
    let [module, plain] =
        [run.stack(&[MODULE, ("train.py", "train", 7)]), run.stack(&[("train.py", "train", 6)])];
    let mut before = None;
    for bytes in sizes {
        let now = run.alloc(module, bytes, bytes);
        if let Some(before) = before.replace(now) {
            run.free(before);
        }
        run.alloc(plain, 512, 512);
    }
    run.fail(module, 2048 * MIB)
}

#[test]
fn a_tensor_that_is_seldom_rebuilt_larger_does_not_grow() {
    let growth = |track: &Track| {
        let explanation = of_generation(track, 2048 * MIB);
        let large = explanation.leaks.iter().filter(|leak| leak.bytes > MIB);
        large.map(|leak| leak.per_step).collect::<Vec<_>>()
    };
    // In each of four passes, in two of three, and in one of four.
    assert_eq!(growth(&rebuilt((1..=20).map(|pass| pass * 64 * MIB))), [64 * MIB]);
    assert_eq!(growth(&rebuilt((1..=20).map(|pass| (pass - pass / 3) * 64 * MIB))), [64 * MIB]);
    assert_eq!(growth(&rebuilt((4..=23).map(|pass| pass / 4 * 64 * MIB))), [0; 0]);
}

#[test]
fn what_the_current_step_allocated_is_no_evidence_of_growth() {
    let leaks = |kept: &[u32]| {
        let mut run = Growing::default();
        let own = run.stack(&[("train.py", "train", 7)]);
        for step in 0..=8 {
            if kept.contains(&step) {
                run.alloc(own, 64 * MIB, 64 * MIB);
            }
            if step < 8 {
                run.end_step(step + 1);
            }
        }
        explained(&run.fail(own, 64 * MIB), Some(320 * MIB), "").unwrap().leaks.len()
    };
    // One of three steps at least must have left something.
    assert_eq!(leaks(&[0, 3, 6, 8]), 1);
    assert_eq!(leaks(&[0, 3, 8]), 0);
}

#[test]
fn tensors_kept_for_nothing_are_blamed_before_the_fragments_between_them() {
    // A collection that grows by 64 MiB a step, beside more or fewer bytes in fragments.
    for (fragments, cause) in [(300, Cause::Leaking), (400, Cause::Fragmented)] {
        let mut run = Growing::default();
        let (placed, own) = (run.stack(&PLACED), run.stack(&[("train.py", "train", 7)]));
        run.alloc(placed, 256 * MIB, 256 * MIB);
        for step in 1..=5 {
            run.alloc(own, 64 * MIB, 64 * MIB);
            if step < 5 {
                run.end_step(step);
            }
        }
        let track = run.fail_beside(own, 200 * MIB, fragments * MIB);
        let explanation = explained(&track, Some((576 + fragments) * MIB), "").unwrap();
        assert_eq!(explanation.cause, cause, "{:?}", explanation.considered);
    }
    // An output of the previous step.
    for (fragments, cause) in [(128, Cause::TwoBatchesAlive), (300, Cause::Fragmented)] {
        let mut run = Growing::default();
        let (placed, model) = (run.stack(&PLACED), run.stack(&[MODULE, ("train.py", "train", 7)]));
        run.alloc(placed, 256 * MIB, 256 * MIB);
        run.alloc(model, 256 * MIB, 256 * MIB);
        run.end_step(1);
        let track = run.fail_beside(model, 256 * MIB, fragments * MIB);
        let explanation = explained(&track, Some(812 * MIB), "").unwrap();
        assert_eq!(explanation.cause, cause, "{:?}", explanation.considered);
    }
}

#[test]
fn private_pools_are_blamed_before_growth_that_holds_less() {
    for (in_private_pools, cause) in [(800, Cause::PrivatePools), (500, Cause::Leaking)] {
        let mut track = growing(12, 64 * MIB);
        let full = Totals { allocated: 768 * MIB, reserved: 768 * MIB, time_us: None };
        track.add_moment(MomentKind::Oom(640 * MIB), 0, StackId::NONE, full);
        let in_private_pools = in_private_pools * MIB;
        let card = Card { limit: Some(1792 * MIB), in_private_pools, ..Card::default() };
        let explanation = on_card(&track, card, "").unwrap();
        assert_eq!(explanation.cause, cause, "{:?}", explanation.considered);
    }
}

#[test]
fn passes_within_a_closure_of_the_optimizer_do_not_end_its_step() {
    let mut run = Growing::default();
    let [data, model] =
        [run.stack(&[("train.py", "train", 6)]), run.stack(&[MODULE, ("train.py", "train", 7)])];
    run.alloc(data, 512 * MIB, 512 * MIB);
    for phase in [Phase::Optimizer, Phase::Forward] {
        let totals = run.totals();
        run.track.add_moment(MomentKind::Phase(phase), 0, StackId::NONE, totals);
    }
    run.alloc(model, 256 * MIB, 256 * MIB);
    let explanation = explained(&run.fail(model, 512 * MIB), Some(1024 * MIB), "").unwrap();
    assert_ne!(explanation.cause, Cause::TwoBatchesAlive, "{:?}", explanation.considered);
    assert_eq!(explanation.moment.step, 1);
}
