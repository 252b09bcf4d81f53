//! Limits between causes: how large a model, a request or an optimizer's state must be, and which settings
//! help or harm.

use memfit_recording::TextId;

use super::*;

fn considers(explanation: &Explanation, cause: Cause) -> bool {
    explanation.considered.iter().any(|one| one.cause == cause)
}

fn fix_of(explanation: &Explanation, lever: Lever) -> &Fix {
    let fix = explanation.fixes.iter().find(|fix| fix.lever == lever);
    fix.unwrap_or_else(|| panic!("{lever}: {:?}", explanation.fixes))
}

#[test]
fn a_model_does_not_fit_if_its_move_fails_or_its_parameters_fill_half_the_gpu() {
    for (parameters, request, is_move, expected) in [
        (1024, 3584, true, true),
        // Another tensor, beside few parameters, as many as half the GPU, and more.
        (1024, 3584, false, false),
        (2048, 2560, false, false),
        (3072, 1536, false, true),
        // Little of the GPU would have been used.
        (1024, 512, true, false),
    ] {
        let mut run = Growing::default();
        let (placed, plain) = (run.stack(&PLACED), run.stack(&[("train.py", "train", 7)]));
        run.alloc(placed, parameters * MIB, parameters * MIB);
        let track = run.fail(if is_move { placed } else { plain }, request * MIB);
        let explanation = explained(&track, Some(4096 * MIB), "").unwrap();
        assert_eq!(considers(&explanation, Cause::DoesNotFit), expected, "{parameters} and {request} MiB");
    }
}

#[test]
fn a_step_that_creates_state_for_a_sixteenth_of_the_parameters_is_a_first_step() {
    const ADAM: &str = "/v/site-packages/torch/optim/adam.py";
    let of_second_step = |state: u64, limit: u64| {
        let mut run = Growing::default();
        let [placed, data, model, created, update] = [
            run.stack(&PLACED),
            run.stack(&[("train.py", "train", 6)]),
            run.stack(&[MODULE, ("train.py", "train", 7)]),
            run.stack(&[(ADAM, "_init_group", 1), ("train.py", "train", 10)]),
            run.stack(&[(ADAM, "_multi_tensor_adam", 2), ("train.py", "train", 10)]),
        ];
        for (stack, bytes) in [(data, 1024), (placed, 512), (created, 32)] {
            run.alloc(stack, bytes * MIB, bytes * MIB);
        }
        run.end_step(1);
        let activation = run.alloc(model, MIB, MIB);
        run.free(activation);
        run.alloc(created, state * MIB, state * MIB);
        explained(&run.fail(update, 64 * MIB), Some(limit * MIB), "").unwrap()
    };
    for (state, is_first) in [(32, true), (31, false)] {
        let explanation = of_second_step(state, 1600 + state);
        let cause = explanation.cause;
        assert_eq!(cause == Cause::FirstStepSurprise, is_first, "{:?}", explanation.considered);
    }
    // With a smaller limit, as a user may ask for, fewer temporaries are not enough, and state is offloaded.
    let offloaded = |limit: u64| {
        let fixes = of_second_step(512, limit).fixes;
        fixes.iter().find(|fix| fix.lever == Lever::HostOptimizerState).map(|fix| fix.saves)
    };
    assert_eq!((offloaded(2100), offloaded(2000)), (None, Some(576 * MIB)));
}

#[test]
fn one_request_that_is_far_larger_than_all_tensors_of_a_step_counts_as_one() {
    let mut run = Growing::default();
    let (placed, model) = (run.stack(&PLACED), run.stack(&[MODULE, ("train.py", "train", 7)]));
    run.alloc(placed, 2048 * MIB, 2048 * MIB);
    for _ in 0..4 {
        run.alloc(model, 64 * MIB, 64 * MIB);
    }
    let explanation = explained(&run.fail(model, 2048 * MIB), Some(4096 * MIB), "").unwrap();
    assert_eq!(explanation.cause, Cause::GiantRequest, "{:?}", explanation.considered);
    let text = &explanation.evidence[0].text;
    assert!(text.starts_with("one tensor of 2.00 GiB is most of"), "{text}");
}

#[test]
fn state_that_is_half_as_large_as_the_weights_is_no_sign_of_autocast() {
    let suggested = |category: Category| {
        let mut run = Growing::default();
        let [placed, model] = [run.stack(&PLACED), run.stack(&[MODULE, ("train.py", "train", 7)])];
        for _ in 0..4 {
            run.alloc(placed, 4 * MIB, 4 * MIB);
        }
        // On one line, four of half a weight's size and four others.
        for bytes in [2, 3].repeat(4) {
            let block = run.alloc(model, bytes * MIB, bytes * MIB);
            run.track.set_noted(block, Some(category));
        }
        run.alloc(model, 8 * MIB, 8 * MIB);
        let explanation = explained(&run.fail(model, 8 * MIB), Some(48 * MIB), "").unwrap();
        explanation.fixes.iter().any(|fix| fix.lever == Lever::AutocastBf16)
    };
    assert!(!suggested(Category::Activations), "copies and products");
    for category in [Category::Buffers, Category::Gradients, Category::Optimizer] {
        assert!(suggested(category), "{category:?}");
    }
}

#[test]
fn a_memory_fraction_is_dropped_where_it_is_set() {
    let fix = |conf: &str| {
        let card = Card { limit: Some(4 << 30), withheld: 8 << 30, ..Card::default() };
        let explanation = on_card(&unwound(false), card, conf).unwrap();
        let fix = explanation.fixes.iter().find(|fix| fix.how.contains("let the process use the whole GPU"));
        fix.unwrap().clone()
    };
    let in_environment = fix("per_process_memory_fraction:0.3");
    assert_eq!(in_environment.apply, Apply::Environment("PYTORCH_ALLOC_CONF", String::new()));
    let in_script = fix("max_split_size_mb:64");
    assert!(in_script.how.contains("set_per_process_memory_fraction"), "{}", in_script.how);
}

#[test]
fn expandable_segments_are_no_setting_that_harms_beside_a_memory_fraction_either() {
    let mut run = Growing::default();
    let placed = run.stack(&PLACED);
    for _ in 0..10 {
        run.alloc(placed, 30 * MIB, 30 * MIB);
    }
    let track = run.fail(placed, 30 * MIB);
    for conf in ["expandable_segments:True", "expandable_segments:True,per_process_memory_fraction:1.0"] {
        let explanation = explained(&track, Some(335 * MIB), conf).unwrap();
        assert!(!considers(&explanation, Cause::SettingThatHurts), "{conf}: {:?}", explanation.considered);
    }
}

#[test]
fn a_cached_block_that_small_tensors_split_is_kept_whole_by_max_split_size() {
    let mut run = Growing::default();
    let placed = run.stack(&PLACED);
    let cached = [512, 60].map(|bytes| run.alloc(placed, bytes * MIB, bytes * MIB));
    for block in cached {
        run.free(block);
    }
    // The first two share the smaller block, and the third one takes a part of the larger.
    for bytes in [30, 30, 50] {
        run.alloc(placed, bytes * MIB, bytes * MIB);
    }
    let Growing { mut track, allocated, .. } = run;
    let totals = Totals { allocated, reserved: 572 * MIB, time_us: None };
    track.add_moment(MomentKind::Oom(512 * MIB), 0, placed, totals);
    let explanation = explained(&track, Some(632 * MIB), "").unwrap();
    assert_eq!(explanation.cause, Cause::Fragmented, "{:?}", explanation.considered);
    let fix = fix_of(&explanation, Lever::MaxSplitSize);
    let how =
        "set PYTORCH_ALLOC_CONF=max_split_size_mb:64: the same calls reserve 622 MiB instead of 1.06 GiB";
    assert_eq!((fix.how.as_str(), fix.saves, fix.fits), (how, 462 * MIB, Some(true)));
}

impl Growing {
    /// Allocates a block of a category, for a tensor of a module.
    fn alloc_in(&mut self, stack: StackId, owner: TextId, bytes: u64, category: Category) {
        self.blocks += 1;
        self.allocated += bytes;
        let requested = Some(bytes);
        let block = Block { address: self.blocks << 32, bytes, requested, stack, owner, ..Block::default() };
        let totals = self.totals();
        let index = self.track.alloc(&block, totals);
        self.track.set_noted(index, Some(category));
    }
}

/// A first forward pass through some of eight layers, and a request that fails although enough is free in
/// pieces. Memory is cached between the layers' activations.
fn in_layer(reached: u64) -> Explanation {
    let mut run = Growing::default();
    let placed = run.stack(&PLACED);
    let forward = run.stack(&[MODULE, ("train.py", "train", 7)]);
    for layer in 0..8 {
        let owner = run.track.texts.intern(&format!("encoder.{layer}.linear"));
        run.alloc_in(placed, owner, 16 * MIB, Category::Parameters);
    }
    for layer in 0..reached {
        let owner = run.track.texts.intern(&format!("encoder.{layer}"));
        run.alloc_in(forward, owner, 100 * MIB, Category::Activations);
    }
    let limit = run.allocated + 400 * MIB;
    explained(&run.fail_beside(forward, 90 * MIB, 350 * MIB), Some(limit), "").unwrap()
}

#[test]
fn free_pieces_are_no_cause_where_the_layers_to_come_need_more_than_they_are() {
    // 310 MiB are left after the request, and each layer that has not run keeps 100 MiB.
    assert_eq!(in_layer(3).cause, Cause::TooBig);
    assert_eq!(in_layer(7).cause, Cause::Fragmented);
}

#[test]
fn a_gpu_that_is_full_but_for_the_request_is_not_fragmented() {
    for (left, cause) in [(2, Cause::TooBig), (64, Cause::Fragmented)] {
        let mut run = Growing::default();
        let own = run.stack(&[("train.py", "train", 7)]);
        for _ in 0..3 {
            run.alloc(own, 512 * MIB, 512 * MIB);
        }
        for step in 1..=3 {
            run.end_step(step);
        }
        let limit = (3 * 512 + 512 + left) * MIB;
        let explanation = explained(&run.fail_beside(own, 512 * MIB, 40 * MIB), Some(limit), "").unwrap();
        assert_eq!(explanation.cause, cause, "{:?}", explanation.considered);
    }
}

#[test]
fn gradients_beside_the_buckets_that_reduce_them_can_be_views() {
    let mut run = Growing::default();
    let placed = run.stack(&PLACED);
    let buckets = run.stack(&[
        ("/v/site-packages/torch/nn/parallel/distributed.py", "_ddp_init_helper", 9),
        ("train.py", "train", 5),
    ]);
    let backward = run.stack(&[BACKWARD, ("train.py", "train", 8)]);
    for (stack, category) in
        [(placed, Category::Parameters), (buckets, Category::Gradients), (backward, Category::Gradients)]
    {
        run.alloc_in(stack, TextId::NONE, 512 * MIB, category);
    }
    let track = run.fail(backward, 512 * MIB);
    let explanation = explained(&track, Some(1600 * MIB), "").unwrap();
    let fix = fix_of(&explanation, Lever::GradientAsBucketView);
    assert_eq!((fix.saves, fix.label()), (512 * MIB, memfit_vocabulary::Label::Exact));
    let alone = explained(&modules_without_buckets(), Some(1600 * MIB), "").unwrap();
    assert!(alone.fixes.iter().all(|fix| fix.lever != Lever::GradientAsBucketView));
}

fn modules_without_buckets() -> Track {
    let mut run = Growing::default();
    let placed = run.stack(&PLACED);
    let backward = run.stack(&[BACKWARD, ("train.py", "train", 8)]);
    for (stack, category) in [(placed, Category::Parameters), (backward, Category::Gradients)] {
        run.alloc_in(stack, TextId::NONE, 512 * MIB, category);
    }
    run.fail(backward, 1024 * MIB)
}

#[test]
fn what_another_function_made_is_not_computed_in_parts() {
    let mut run = Growing::default();
    let of = |run: &mut Growing, function, line| {
        run.stack(&[
            ("/v/site-packages/torch/nn/functional.py", "unfold", 1),
            ("train.py", function, line),
            ("train.py", "train", 8),
        ])
    };
    let (scores, upsampled) = (of(&mut run, "attend", 3), of(&mut run, "upsample", 5));
    for (stack, bytes) in [(scores, 1024), (upsampled, 768)] {
        run.alloc(stack, bytes * MIB, bytes * MIB);
    }
    let card = Card { limit: Some(2048 * MIB), ..Card::default() };
    let explanation = of_source(&run.fail(scores, 1024 * MIB), card, "", &|_| None).unwrap();
    assert_eq!(explanation.cause, Cause::GiantRequest, "{:?}", explanation.considered);
    let text = &explanation.evidence[0].text;
    assert!(text.starts_with("3 tensors of 768 MiB to 1.00 GiB, 2.75 GiB in total, are"), "{text}");
    let fix = fix_of(&explanation, Lever::ByParts);
    assert_eq!(fix.saves, 2 * 1024 * MIB / 4 * 3);
}

#[test]
fn outputs_of_the_first_layers_are_no_giants() {
    for (names, cause) in [(["conv", "norm"], Cause::TooBig), (["scores", "scores"], Cause::GiantRequest)] {
        let mut run = Growing::default();
        let model = run.stack(&[MODULE, ("train.py", "train", 7)]);
        for name in names {
            let module = run.track.texts.intern(name);
            run.alloc_in(model, module, 768 * MIB, Category::Activations);
        }
        let explanation = explained(&run.fail(model, 768 * MIB), Some(2048 * MIB), "").unwrap();
        assert_eq!(explanation.cause, cause, "{:?}", explanation.considered);
    }
}
