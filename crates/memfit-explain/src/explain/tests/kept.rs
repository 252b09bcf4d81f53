//! What steps keep: at intervals, with graphs of several kinds, in the optimizer; and errors that free memory
//! in one piece would only delay.

use super::*;

const SGD: &str = "/v/site-packages/torch/optim/sgd.py";
const WRAPPER: &str = "/v/site-packages/torch/optim/optimizer.py";

/// Explanation on a GPU with this limit, for a script with this text.
fn with_script(track: &Track, limit: u64, script: &str) -> Explanation {
    let source = |file: &str| (file == "train.py").then(|| script.to_owned());
    of_source(track, Card { limit: Some(limit), ..Card::default() }, "", &source).unwrap()
}

#[test]
fn one_of_several_steps_may_leave_what_grows() {
    // In which of the first 121 steps a copy of the weights is kept.
    for (what, kept, found) in [
        ("each tenth step", vec![80, 90, 100, 110, 120], true),
        ("about each tenth step", vec![80, 89, 100, 112, 120], true),
        ("each thirtieth, the last one long ago", vec![0, 30, 60, 90, 100], true),
        ("four times, which may be chance", vec![90, 100, 110, 120], false),
        ("no longer", vec![0, 2, 4, 6, 8], false),
        ("at no interval", vec![0, 1, 2, 3, 120], false),
    ] {
        let mut run = Growing::default();
        let (own, data) = (run.stack(&[("train.py", "train", 8)]), run.stack(&[("train.py", "train", 6)]));
        for step in 0..=120 {
            let batch = run.alloc(data, MIB, MIB);
            if kept.contains(&step) {
                run.alloc(own, 64 * MIB, 64 * MIB);
            }
            run.free(batch);
            run.end_step(step + 1);
        }
        let explanation =
            explained(&run.fail(data, 32 * MIB), Some(kept.len() as u64 * 64 * MIB), "").unwrap();
        assert_eq!(explanation.cause == Cause::Leaking, found, "{what}: {:?}", explanation.considered);
        if what == "each tenth step" {
            let text = &explanation.evidence[0].text;
            assert!(text.starts_with("one in 10 steps keeps 64.0 MiB more"), "{text}");
            assert!(text.ends_with("320 MiB after 5 of these steps"), "{text}");
        }
    }
}

/// Steps that each keep blocks of 16 MiB, so many of a module, of the backward pass and of the script.
fn keeping(of_each: [usize; 3]) -> Track {
    let mut run = Growing::default();
    let stacks = [
        run.stack(&[MODULE, ("train.py", "train", 7)]),
        run.stack(&[BACKWARD, ("train.py", "train", 9)]),
        run.stack(&[("train.py", "train", 6)]),
    ];
    for step in 1..=8 {
        for (stack, count) in stacks.into_iter().zip(of_each).rev() {
            for _ in 0..count {
                run.alloc(stack, 16 * MIB, 16 * MIB);
            }
        }
        run.end_step(step);
    }
    let [module, ..] = stacks;
    run.fail(module, 16 * MIB)
}

#[test]
fn a_graph_keeps_the_batch_and_what_a_backward_pass_with_a_graph_computed() {
    let off = "import torch\n\n@torch.no_grad()\ndef train(model):\n    kept = []\n    for step in range(9):\n        out = model(step)\n        kept.append(out)\n";
    for (what, of_each, script, cause) in [
        ("a graph", [4, 0, 0], SCRIPT, Cause::RetainedGraph),
        ("and its gradients'", [4, 8, 0], SCRIPT, Cause::RetainedGraph),
        ("gradients that are collected", [0, 8, 0], SCRIPT, Cause::Leaking),
        ("gradients and a result", [1, 8, 0], SCRIPT, Cause::Leaking),
        ("and a large batch", [4, 0, 6], SCRIPT, Cause::RetainedGraph),
        ("inputs of layers, without gradients", [4, 0, 0], off, Cause::Leaking),
    ] {
        let [modules, backward, own] = of_each;
        let limit = (modules + backward + own) as u64 * 8 * 16 * MIB;
        let explanation = with_script(&keeping(of_each), limit, script);
        assert_eq!(explanation.cause, cause, "{what}: {:?}", explanation.considered);
    }
}

#[test]
fn a_tensor_that_is_concatenated_with_itself_grows_whatever_it_counts_as() {
    let plain = SCRIPT.replace("out.backward(retain_graph=True)", "pass");
    let cat = plain.replace("out = model(step)", "kept = torch.cat([kept, model(step)])");
    for (what, script, others, request, grows) in [
        ("a buffer", cat.as_str(), 0, 1040, true),
        ("no concatenation", plain.as_str(), 0, 1040, false),
        ("one of several that stay", cat.as_str(), 1, 1040, false),
        ("twice as large, as by a skip connection", cat.as_str(), 0, 2000, false),
    ] {
        let mut run = Growing::default();
        let model = run.stack(&[MODULE, ("train.py", "train", 7)]);
        for _ in 0..=others {
            let block = run.alloc(model, 1024 * MIB, 1024 * MIB);
            run.track.set_noted(block, Some(Category::Buffers));
        }
        let limit = (1 + others) * 1024 * MIB + request * MIB - MIB;
        let explanation = with_script(&run.fail(model, request * MIB), limit, script);
        assert_eq!(explanation.cause == Cause::GrowingCache, grows, "{what}: {:?}", explanation.considered);
    }
}

#[test]
fn room_for_one_more_layer_of_a_first_forward_pass_is_not_fragmented() {
    // Layers that each keep 256 MiB, and what is free in pieces when the next one asks for as much.
    for (layers, unused, trained, cause) in [
        (4, 300, false, Cause::TooBig),
        (4, 600, false, Cause::Fragmented),
        (1, 300, false, Cause::Fragmented),
        // A step that was complete shows what one needs.
        (4, 300, true, Cause::Fragmented),
    ] {
        let mut run = Growing::default();
        let [model, backward] = [
            run.stack(&[MODULE, ("train.py", "train", 7)]),
            run.stack(&[BACKWARD, ("train.py", "train", 9)]),
        ];
        if trained {
            let gradient = run.alloc(backward, MIB, MIB);
            run.free(gradient);
        }
        for _ in 0..layers {
            run.alloc(model, 256 * MIB, 256 * MIB);
        }
        let limit = run.allocated + unused * MIB;
        let track = run.fail_beside(model, 256 * MIB, unused * MIB);
        let explanation = explained(&track, Some(limit), "").unwrap();
        assert_eq!(explanation.cause, cause, "{layers}, {unused} MiB: {:?}", explanation.considered);
    }
}

#[test]
fn only_optimizers_of_pytorch_are_told_to_be_fused() {
    for (frames, is_of_torch) in [
        (vec![(SGD, "_multi_tensor_sgd", 2), (WRAPPER, "wrapper", 5), ("train.py", "train", 10)], true),
        (vec![("shampoo.py", "step", 20), (WRAPPER, "wrapper", 5), ("train.py", "train", 10)], false),
    ] {
        let mut run = Growing::default();
        let (placed, update) = (run.stack(&PLACED), run.stack(&frames));
        run.alloc(placed, 512 * MIB, 512 * MIB);
        run.alloc(update, 512 * MIB, 512 * MIB);
        let explanation = explained(&run.fail(update, 256 * MIB), Some(1200 * MIB), "").unwrap();
        assert_eq!(explanation.cause, Cause::FirstStepSurprise, "{:?}", explanation.considered);
        let levers: Vec<Lever> = explanation.fixes.iter().map(|fix| fix.lever).collect();
        for lever in [Lever::FusedOptimizer, Lever::ForeachOff] {
            assert_eq!(levers.contains(&lever), is_of_torch, "{levers:?}");
        }
        assert!(is_of_torch || levers[0] == Lever::HostOptimizerState, "{levers:?}");
    }
}

#[test]
fn state_that_each_step_adds_to_is_growth() {
    for (steps, grows) in [(8, true), (3, false)] {
        let mut run = Growing::default();
        let [placed, backward, update] = [
            run.stack(&PLACED),
            run.stack(&[BACKWARD, ("train.py", "train", 9)]),
            run.stack(&[("/v/site-packages/torch/optim/lbfgs.py", "step", 3), ("train.py", "train", 10)]),
        ];
        run.alloc(placed, 64 * MIB, 64 * MIB);
        for step in 1..=steps {
            let state = run.alloc(update, 64 * MIB, 64 * MIB);
            run.track.set_noted(state, Some(Category::Optimizer));
            run.end_step(step);
        }
        let limit = run.allocated;
        let explanation = explained(&run.fail(backward, 32 * MIB), Some(limit), "").unwrap();
        let lever = explanation.fixes.first().map(|fix| fix.lever);
        let of_growth = (Cause::Leaking, Some(Lever::HostOptimizerState));
        assert_eq!((explanation.cause, lever) == of_growth, grows, "{:?}", explanation.considered);
    }
}

#[test]
fn a_pool_keeps_its_memory_from_a_request_that_no_other_block_holds() {
    // Of 1 GiB in blocks that are free, so much is in private pools; as much as the request is not reserved.
    for (locked, cause) in [(1000, Cause::PrivatePools), (900, Cause::Fragmented)] {
        let mut run = Growing::default();
        let own = run.stack(&[("train.py", "train", 7)]);
        run.alloc(own, 512 * MIB, 512 * MIB);
        let card =
            Card { limit: Some((512 + 1024 + 70) * MIB), in_private_pools: locked * MIB, ..Card::default() };
        let track = run.fail_beside(own, 75 * MIB, 1024 * MIB);
        let explanation = on_card(&track, card, "").unwrap();
        assert_eq!(explanation.cause, cause, "{:?}", explanation.considered);
    }
}

#[test]
fn what_a_function_computed_is_no_image_to_resize() {
    for (frames, lever) in [
        (
            vec![("/v/site-packages/torch/nn/functional.py", "unfold", 1), ("train.py", "train", 6)],
            Lever::ByParts,
        ),
        (vec![("train.py", "train", 6)], Lever::ResizeBeforeUpload),
    ] {
        let mut run = Growing::default();
        let (made, own) = (run.stack(&frames), run.stack(&[("train.py", "train", 8)]));
        run.alloc(made, 1536 * MIB, 1536 * MIB);
        let explanation = explained(&run.fail(own, 1536 * MIB), Some(2048 * MIB), "").unwrap();
        assert_eq!(explanation.cause, Cause::GiantRequest, "{:?}", explanation.considered);
        assert_eq!(explanation.fixes[0].lever, lever);
        // The failed request is one of two tensors; the other one's line is told as well.
        let lines: Vec<u32> = explanation.evidence.iter().map(|fact| fact.lines[0].line).collect();
        assert_eq!(lines, [8, 6]);
    }
}
