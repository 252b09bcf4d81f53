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
    let in_eight_bits = copied.iter().find(|fix| fix.lever == Lever::EightBitOptimizer);
    assert_eq!(in_eight_bits.map(|fix| fix.saves), Some(768 * MIB), "three quarters");
    assert!(!enough(&copied, Lever::ForeachOff), "{copied:?}");
    let computed = fixes("grads = torch._foreach_add(grads, params, alpha=weight_decay)");
    assert!(enough(&computed, Lever::ForeachOff), "{computed:?}");
    assert!(!enough(&computed, Lever::HostOptimizerState), "an option is enough: {computed:?}");
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
    assert_eq!(explanation.fixes[0].lever, Lever::Shard, "a larger GPU does not help here");
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
    // A script that only generates.
    let source =
        |file: &str| (file == "train.py").then(|| SCRIPT.replace("out.backward(retain_graph=True)", "pass"));
    let card = Card { limit: Some(2048 * MIB), ..Card::default() };
    let explanation = of_source(&run.fail(module, 21 * 64 * MIB), card, "", &source).unwrap();
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

#[test]
fn tensors_that_the_script_creates_between_module_calls_are_no_graph() {
    let mut run = Growing::default();
    let module = run
        .stack(&[("/v/site-packages/torch/nn/modules/module.py", "_call_impl", 2), ("train.py", "train", 7)]);
    let own = run.stack(&[("train.py", "train", 8)]);
    let backward = run.stack(&[
        ("/v/site-packages/torch/autograd/graph.py", "_engine_run_backward", 1),
        ("train.py", "train", 9),
    ]);
    // Each step's forward pass is followed by observations that stay; its own activations are freed by the
    // backward pass.
    let kept = |run: &mut Growing, stays: [StackId; 4]| {
        for step in 1..=8 {
            let activation = run.alloc(module, 32 * MIB, 32 * MIB);
            for stack in stays {
                run.alloc(stack, 16 * MIB, 16 * MIB);
            }
            let gradient = run.alloc(backward, MIB, MIB);
            run.free(activation);
            run.free(gradient);
            let totals = run.totals();
            run.track.add_moment(MomentKind::Step(step), 0, StackId::NONE, totals);
        }
    };
    for (stays, expected) in [
        ([own; 4], Cause::Leaking),
        // A quarter of a graph may be the modules' own.
        ([module, own, own, own], Cause::RetainedGraph),
        ([module; 4], Cause::RetainedGraph),
    ] {
        let mut run = Growing { track: run.track.clone(), ..Growing::default() };
        kept(&mut run, stays);
        let explanation = explained(&run.fail(module, 64 * MIB), Some(8 * 64 * MIB), "").unwrap();
        assert_eq!(explanation.cause, expected, "{:?}", explanation.considered);
    }
}

#[test]
fn of_two_networks_called_in_turn_one_may_leave_what_grows() {
    let mut run = Growing::default();
    let dynamics = run.stack(&[MODULE, ("train.py", "train", 7)]);
    let policy = run.stack(&[MODULE, ("train.py", "train", 8)]);
    let plain = run.stack(&[("train.py", "train", 6)]);
    for _ in 0..20 {
        run.alloc(dynamics, 64 * MIB, 64 * MIB);
        run.alloc(plain, 512, 512);
        let priors = run.alloc(policy, MIB, MIB);
        run.free(priors);
        run.alloc(plain, 512, 512);
    }
    let source =
        |file: &str| (file == "train.py").then(|| SCRIPT.replace("out.backward(retain_graph=True)", "pass"));
    let card = Card { limit: Some(20 * 64 * MIB + MIB), ..Card::default() };
    let explanation = of_source(&run.fail(dynamics, 64 * MIB), card, "", &source).unwrap();
    assert_eq!(explanation.cause, Cause::Leaking, "{:?}", explanation.considered);
}

#[test]
fn less_than_the_request_need_not_be_enough_where_free_memory_is_in_pieces() {
    // Checkpointing saves half of the activations.
    for (weights, activations, fits) in [(3072, 128, None), (2048, 1024, Some(true))] {
        let mut run = Growing::default();
        let (placed, forward) = (run.stack(&PLACED), run.stack(&[MODULE, ("train.py", "train", 7)]));
        for step in 1..=2 {
            // What a step needs is known.
            let totals = run.totals();
            run.track.add_moment(MomentKind::Step(step), 0, StackId::NONE, totals);
        }
        for (stack, bytes) in [(placed, weights), (forward, activations)] {
            run.alloc(stack, bytes * MIB, bytes * MIB);
        }
        // 896 MiB or more are free.
        let explanation = explained(&run.fail(forward, 512 * MIB), Some(4096 * MIB), "").unwrap();
        let of = |lever| explanation.fixes.iter().find(|fix| fix.lever == lever).map(|fix| fix.fits);
        assert_eq!(of(Lever::Checkpointing), Some(fits), "{:?}", explanation.fixes);
    }
}

#[test]
fn where_gradients_are_off_the_last_batch_may_be_alive_too() {
    const BODY: &str =
        "\ndef train(names):\n    for name in names:\n        out = model(name)\n        print(out.mean())\n";
    let mut run = Growing::default();
    let module = run.stack(&[
        ("/v/site-packages/torch/nn/modules/linear.py", "forward", 1),
        ("/v/site-packages/torch/nn/modules/module.py", "_call_impl", 2),
        ("train.py", "train", 4),
    ]);
    let plain = run.stack(&[("train.py", "train", 3)]);
    run.alloc(plain, 512, 512);
    run.alloc(module, 1024 * MIB, 1024 * MIB);
    run.alloc(plain, 512, 512);
    run.alloc(module, 768 * MIB, 768 * MIB);
    let track = run.fail(module, 1024 * MIB);
    let cause = |program: &str| {
        let source = |file: &str| (file == "train.py").then(|| program.to_owned());
        let card = Card { limit: Some(2048 * MIB), ..Card::default() };
        of_source(&track, card, "", &source).unwrap().cause
    };
    assert_eq!(cause(&format!("@torch.no_grad(){BODY}")), Cause::TwoBatchesAlive);
    // The tensors may belong to one graph.
    assert_ne!(cause(&format!("#{BODY}")), Cause::TwoBatchesAlive);
    // Each pass needs what the last one gave.
    let recurrent = BODY.replace("model(name)", "model(out)");
    assert_ne!(cause(&format!("@torch.no_grad(){recurrent}")), Cause::TwoBatchesAlive);
}

#[test]
fn keys_and_values_are_kept_shorter_where_a_copy_of_one_of_many_is_little() {
    // 167 MiB are missing for a new copy of one of eight caches, and 552 MiB for one of two.
    for (layers, limit, copy_is_enough) in [(8, 1281, None), (2, 1400, Some(true))] {
        let of_each = 64 / layers;
        let fixes = fixes_for_cached(layers as usize, of_each * MIB, limit * MIB);
        let in_eight_bits = fixes.iter().find(|fix| fix.lever == Lever::KvCache8Bit);
        assert_eq!(in_eight_bits.map(|fix| fix.saves), Some(960 * MIB), "three quarters");
        let once = fixes.iter().find(|fix| fix.lever == Lever::Preallocate);
        assert_eq!(once.map(|fix| (fix.saves, fix.fits)), Some((20 * of_each * MIB, copy_is_enough)));
        let first = if layers == 8 { Lever::KvCache8Bit } else { Lever::Preallocate };
        assert_eq!(fixes[0].lever, first, "{fixes:?}");
    }
}

/// Remedies if 20 tokens have made the caches of some layers larger, and memory runs out when one is copied.
fn fixes_for_cached(layers: usize, of_each: u64, limit: u64) -> Vec<Fix> {
    let mut run = Growing::default();
    let lines =
        [run.stack(&[MODULE, ("train.py", "train", 7)]), run.stack(&[MODULE, ("train.py", "train", 8)])];
    let plain = run.stack(&[("train.py", "train", 6)]);
    let mut before: Vec<u32> = Vec::new();
    for token in 1..=20 {
        let caches: Vec<u32> = (0..layers)
            .map(|layer| {
                let now = run.alloc(lines[layer % 2], token * of_each, token * of_each);
                if let Some(old) = before.get(layer) {
                    run.free(*old);
                }
                now
            })
            .collect();
        before = caches;
        run.alloc(plain, 512, 512);
    }
    let source =
        |file: &str| (file == "train.py").then(|| SCRIPT.replace("out.backward(retain_graph=True)", "pass"));
    let card = Card { limit: Some(limit), ..Card::default() };
    let explanation = of_source(&run.fail(lines[0], 21 * of_each), card, "", &source).unwrap();
    assert_eq!(explanation.cause, Cause::GrowingCache, "{:?}", explanation.considered);
    explanation.fixes
}

#[test]
fn a_setting_that_changes_nothing_is_no_cause() {
    let mut run = Growing::default();
    let placed = run.stack(&PLACED);
    for _ in 0..3 {
        run.alloc(placed, 512 * MIB, 512 * MIB);
    }
    let track = run.fail(placed, 512 * MIB);
    let card = Card { limit: Some(2560 * MIB), ..Card::default() };
    let explanation = on_card(&track, card, "roundup_power2_divisions:1").unwrap();
    assert_ne!(explanation.cause, Cause::SettingThatHurts, "{:?}", explanation.considered);
}

#[test]
fn growth_in_the_engines_threads_is_told_by_the_lines_of_other_growth() {
    let mut run = Growing::default();
    let own = run.stack(&[("train.py", "train", 7)]);
    for step in 1..=6 {
        run.alloc(StackId::NONE, 64 * MIB, 64 * MIB);
        run.alloc(own, 32 * MIB, 32 * MIB);
        let totals = run.totals();
        run.track.add_moment(MomentKind::Step(step), 0, StackId::NONE, totals);
    }
    let explanation = explained(&run.fail(own, 64 * MIB), Some(6 * 96 * MIB), "").unwrap();
    assert_eq!(explanation.cause, Cause::Leaking, "{:?}", explanation.considered);
    assert_eq!(explanation.evidence[0].lines.first().map(|line| line.line), Some(7));
}

#[test]
fn the_figures_of_a_shortfall_add_up() {
    let evidence = |allocated: u64, reserved: u64, limit: u64, request: u64| {
        let mut run = Growing::default();
        let forward = run.stack(&[MODULE, ("train.py", "train", 7)]);
        for _ in 0..16 {
            run.alloc(forward, allocated / 16, allocated / 16);
        }
        let totals = Totals { reserved, ..run.totals() };
        run.track.add_moment(MomentKind::Oom(request), 0, forward, totals);
        let explanation = explained(&run.track, Some(limit), "").unwrap();
        let all = explanation.considered.iter().map(|one| one.cause).collect::<Vec<_>>();
        assert_eq!(explanation.cause, Cause::TooBig, "{all:?}");
        explanation.evidence[0].text.clone()
    };
    let half = MIB / 2;
    // The segment of 32 MiB is missing 5 MiB, although 27 MiB and 54.5 MiB are free.
    let text = evidence(11_000 * MIB, 11_054 * MIB + half, 11_081 * MIB + half, 30 * MIB + half);
    assert!(
        text.starts_with(
            "the request needs a new segment of 32.0 MiB (the allocator rounds 30.5 MiB up), but only 27.0 MiB \
             are not yet reserved: 5.0 MiB are missing. The reserved segments have 54.5 MiB free, in blocks \
             that are too small. "
        ),
        "{text}"
    );
    let text = evidence(2048 * MIB, 2048 * MIB, 2560 * MIB, 640 * MIB);
    assert!(
        text.starts_with(
            "2.00 GiB in tensors and the requested 640 MiB make 2.62 GiB, 128 MiB more than the 2.50 GiB \
             available to PyTorch. "
        ),
        "{text}"
    );
}

#[test]
fn how_large_a_gpu_must_be_is_known_from_the_second_step_on() {
    let card = Card { limit: Some(4096 * MIB), ..Card::default() };
    let larger = |steps| {
        let mut run = Growing::default();
        let placed = run.stack(&PLACED);
        let forward = run.stack(&[
            ("/v/site-packages/torch/nn/modules/module.py", "_call_impl", 2),
            ("train.py", "train", 7),
        ]);
        run.alloc(placed, 512 * MIB, 512 * MIB);
        for step in 1..=steps {
            let activations = run.alloc(forward, 1024 * MIB, 1024 * MIB);
            run.free(activations);
            let totals = run.totals();
            run.track.add_moment(MomentKind::Step(step), 0, StackId::NONE, totals);
        }
        run.alloc(forward, 3072 * MIB, 3072 * MIB);
        let explanation = on_card(&run.fail(forward, 1024 * MIB), card.clone(), "").unwrap();
        explanation.fixes.into_iter().find(|fix| fix.lever == Lever::LargerGpu).unwrap()
    };
    for (steps, fits) in [(0, None), (1, None), (2, Some(true))] {
        let fix = larger(steps);
        assert_eq!(fix.fits, fits, "{steps} whole steps: {}", fix.how);
        assert_eq!(fix.how.contains("what a whole step needs is unknown"), fits.is_none(), "{}", fix.how);
    }
}

/// Two modules that are called one after the other, at lines 4 and 5, with activations of these sizes; then
/// memory runs out in the backward pass.
fn modules_in_turn(first: u64, second: u64) -> Track {
    let mut run = Growing::default();
    let [model, loss, backward] = [
        run.stack(&[MODULE, ("train.py", "<module>", 4)]),
        run.stack(&[
            ("/v/site-packages/torch/nn/functional.py", "cross_entropy", 1),
            MODULE,
            ("train.py", "<module>", 5),
        ]),
        run.stack(&[
            ("/v/site-packages/torch/autograd/graph.py", "_engine_run_backward", 1),
            ("train.py", "<module>", 6),
        ]),
    ];
    for (stack, bytes) in [(model, first), (loss, second)] {
        for _ in 0..4 {
            run.alloc(stack, bytes, bytes);
        }
    }
    run.fail(backward, 1 << 30)
}

#[test]
fn the_model_is_wrapped_and_not_a_loss_that_is_a_module() {
    const PROGRAM: &str = "import torch\nloss_fn = torch.nn.CrossEntropyLoss()\nfor images, labels in loader:\n    outputs = model(images)\n    loss = loss_fn(outputs, labels)\n    loss.backward()\n";
    for (first, second) in [(768 * MIB, 1), (512 * MIB, 512 * MIB), (256 * MIB, 768 * MIB)] {
        let explanation = of_program(&modules_in_turn(first, second), PROGRAM);
        for lever in [Lever::ActivationOffload, Lever::AutocastBf16] {
            let fix = explanation.fixes.iter().find(|fix| fix.lever == lever).unwrap();
            let Apply::Edit(change) = &fix.apply else { panic!("{fix:?}") };
            assert_eq!(change.line, 4, "{}", change.diff);
        }
        // Autocast around the model's call is found, too.
        let cast = PROGRAM.replace(
            "    outputs = model(images)\n",
            "    with torch.autocast(\"cuda\", dtype=torch.bfloat16): outputs = model(images)\n",
        );
        let explanation = of_program(&modules_in_turn(first, second), &cast);
        assert!(explanation.fixes.iter().all(|fix| fix.lever != Lever::AutocastBf16));
    }
}

#[test]
fn what_a_leak_keeps_is_not_saved_by_remedies_for_a_step() {
    let mut run = Growing::default();
    let call = [MODULE, ("train.py", "train", 7)];
    let [kept, of_step] = [run.stack(&call), run.stack(&[call[0], ("train.py", "train", 8)])];
    for step in 1..=6 {
        run.alloc(kept, 64 * MIB, 64 * MIB);
        let own: Vec<_> = (0..6).map(|_| run.alloc(of_step, 512 * MIB, 512 * MIB)).collect();
        if step < 6 {
            for block in own {
                run.free(block);
            }
            let totals = run.totals();
            run.track.add_moment(MomentKind::Step(step), 0, StackId::NONE, totals);
        }
    }
    let explanation = explained(&run.fail(of_step, 1100 * MIB), Some(4096 * MIB), "").unwrap();
    assert_eq!(explanation.cause, Cause::TooBig, "{:?}", explanation.considered);
    let saves = |lever| explanation.fixes.iter().find(|fix| fix.lever == lever).map(|fix| fix.saves);
    assert_eq!(saves(Lever::AutocastBf16), Some(1536 * MIB));
    assert_eq!(saves(Lever::Checkpointing), Some(1536 * MIB));
}

/// Explanation of a training whose memory is filled by activations of these operations.
fn filled_by(operations: &[(&str, &str)]) -> Explanation {
    let mut run = Growing::default();
    let placed = run.stack(&PLACED);
    run.alloc(placed, MIB, MIB);
    let mut last = placed;
    for (file, name) in operations {
        let frames = [(*file, *name, 7), MODULE, ("train.py", "train", 5)];
        last = run.stack(&frames);
        run.alloc(last, 256 * MIB, 256 * MIB);
    }
    let limit = (256 * operations.len() as u64 + 100) * MIB;
    let explanation = explained(&run.fail(last, 256 * MIB), Some(limit), "").unwrap();
    assert_eq!(explanation.cause, Cause::TooBig, "{:?}", explanation.considered);
    explanation
}

/// What autocast saves of activations of these operations, in MiB, or `None` if it is not offered.
fn saved_by_autocast(operations: &[(&str, &str)]) -> Option<u64> {
    let explanation = filled_by(operations);
    let fix = explanation.fixes.iter().find(|fix| fix.lever == Lever::AutocastBf16);
    fix.map(|fix| fix.saves / MIB)
}

#[test]
fn checkpointing_warns_of_batch_norm_only_where_it_may_run() {
    const FUNCTIONS: &str = "/v/site-packages/torch/nn/functional.py";
    let [relu, batch_norm] = ["relu", "batch_norm"].map(|name| (FUNCTIONS, name));
    let sync = ("/v/site-packages/torch/nn/modules/batchnorm.py", "forward");
    let compiled = ("/v/site-packages/torch/_dynamo/eval_frame.py", "compile_wrapper");
    let linear = ("/v/site-packages/torch/nn/modules/linear.py", "forward");
    for (operations, expected) in [
        (vec![relu, linear, relu], false),
        (vec![relu, batch_norm, relu], true),
        (vec![relu, sync, relu], true),
        (vec![relu, compiled, relu], true),
        // No function of PyTorch is recorded.
        (vec![linear, linear, linear], true),
    ] {
        let explanation = filled_by(&operations);
        let fix = explanation.fixes.iter().find(|fix| fix.lever == Lever::Checkpointing).unwrap();
        assert_eq!(fix.how.contains("BatchNorm"), expected, "{operations:?}");
    }
}

#[test]
fn autocast_halves_what_no_operation_in_32_bits_makes_or_saves() {
    const FUNCTIONS: &str = "/v/site-packages/torch/nn/functional.py";
    let conv = ("/v/site-packages/torch/nn/modules/conv.py", "_conv_forward");
    let linear = ("/v/site-packages/torch/nn/modules/linear.py", "forward");
    let batch_norm = (FUNCTIONS, "batch_norm");
    let [group_norm, layer_norm, relu, gelu] =
        ["group_norm", "layer_norm", "relu", "gelu"].map(|name| (FUNCTIONS, name));
    for (operations, saved) in [
        (vec![conv, batch_norm, relu, conv], Some(512)),
        // The normalisation saves its input in 32 bits; ReLU its result, of which the convolution has a copy.
        (vec![conv, relu, conv, relu], Some(512)),
        (vec![group_norm, relu, conv, group_norm, relu], None),
        // What a layer norm hands to a linear layer is saved in 16 bits, its own input in 32.
        (vec![linear, layer_norm, linear, gelu, linear], Some(512)),
    ] {
        assert_eq!(saved_by_autocast(&operations), saved, "{operations:?}");
    }
}
