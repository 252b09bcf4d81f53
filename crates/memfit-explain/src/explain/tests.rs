//! Properties of every explanation, including those of recordings that no allocator would produce.

use memfit_allocator::{Release, ReplayConditions, Settings};
use memfit_channel::events::{Event, EventContext, EventLog, REFUSED_FLAG, SegmentChange};
use memfit_recording::{Block, Frame, MomentKind, StackId, Totals, Track};
use memfit_vocabulary::{Category, Phase};
use proptest::prelude::*;

use super::*;
use crate::{Card, Holder, Kin, OtherProcess, Refused};

mod answers;
mod autocast;
mod kept;
mod limits;
mod recordings;
mod requests;
mod steps;

/// Source file that the stacks refer to.
const SCRIPT: &str = "import torch\nimport os\n\ndef train(model, optimizer):\n    kept = []\n    for step in range(9):\n        out = model(step)\n        kept.append(out)\n        out.backward(retain_graph=True)\n        optimizer.step()\n";

fn source(file: &str) -> Option<String> {
    (file == "train.py").then(|| SCRIPT.to_owned())
}

fn explained(track: &Track, limit: Option<u64>, conf: &str) -> Option<Explanation> {
    on_card(track, Card { limit, ..Card::default() }, conf)
}

fn on_card(track: &Track, card: Card, conf: &str) -> Option<Explanation> {
    of_source(track, card, conf, &source)
}

fn of_source(
    track: &Track,
    card: Card,
    conf: &str,
    source: &dyn Fn(&str) -> Option<String>,
) -> Option<Explanation> {
    let release: Release = "2.9".parse().unwrap();
    let settings = Settings::parse(conf, release).unwrap_or_default();
    let given = ReplayConditions { settings, release, capacity: 1 << 34 };
    explain(&Case { track, device: 0, card, given, alloc_conf: conf.to_owned(), source })
}

/// Explanation on a GPU of 4 GiB, for a script with another text.
fn of_program(track: &Track, program: &str) -> Explanation {
    let source = |file: &str| (file == "train.py").then(|| program.to_owned());
    of_source(track, Card { limit: Some(4 << 30), ..Card::default() }, "", &source).unwrap()
}

fn sums_up(holder: &Holder) -> bool {
    let children: u64 = holder.children.iter().map(|child| child.bytes).sum();
    (holder.children.is_empty() || children == holder.bytes) && holder.children.iter().all(sums_up)
}

fn texts() -> impl Iterator<Item = Event> {
    let names = [
        "model.conv",
        "train.py",
        "train",
        "/v/site-packages/torch/nn/modules/module.py",
        "_call_impl",
        "/v/site-packages/torch/optim/adam.py",
        "_init_group",
    ];
    let frames = [(3, 2, 7), (3, 2, 8), (5, 4, 20), (7, 6, 30)];
    let stacks: [&[u32]; 4] = [&[1], &[3, 1], &[4, 2], &[]];
    let texts = (1..).zip(names).map(|(id, text)| Event::Text { id, text: text.to_owned() });
    let frames = (1..).zip(frames).map(|(id, (name, file, line))| Event::Frame { id, name, file, line });
    let stacks = (1..).zip(stacks).map(|(id, frames)| Event::Stack { id, frames: frames.to_vec() });
    texts.chain(frames).chain(stacks)
}

/// Any event that a log can contain, consistent or not.
fn event() -> impl Strategy<Value = Event> {
    let sizes = prop_oneof![0..4096_u64, 0..(1_u64 << 32), Just(u64::MAX)];
    (0..9_u8, 0..16_u64, sizes, any::<u32>(), any::<u32>(), 0..4_u8).prop_map(
        |(kind, address, bytes, allocated, reserved, small)| {
            let place = EventContext { device: 0, phase: small, thread: 1, module: 1, step: 0 };
            let (allocated, reserved) = (u64::from(allocated), u64::from(reserved));
            let address = address << 12;
            let stack = u32::from(small);
            match kind {
                0 | 1 => Event::Alloc { place, address, bytes, allocated, reserved },
                2 => Event::Free { place, address, bytes, allocated, reserved },
                3 => Event::Phase { place },
                4 => Event::Step { step: u32::from(small) },
                5 => Event::Oom { place, bytes, allocated, reserved },
                6 => Event::Note { address, category: small * 3, owner: 1 },
                7 => Event::Traced {
                    device: 0,
                    number: (address >> 12) | if small == 3 { REFUSED_FLAG } else { 0 },
                    stack,
                    stream: u64::from(small) / 2,
                    time_us: 0,
                },
                _ => {
                    let change = if small % 2 == 0 { SegmentChange::Alloc } else { SegmentChange::Free };
                    Event::Segment {
                        device: 0,
                        change,
                        number: 0,
                        address,
                        bytes,
                        stack,
                        stream: 0,
                        time_us: 0,
                    }
                }
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Any log is explained without a panic, and the tree sums to the reserved bytes.
    #[test]
    fn any_log_is_explained(
        events in proptest::collection::vec(event(), 1..80),
        limit in proptest::option::of(any::<u64>()),
        conf in prop_oneof![Just(""), Just("expandable_segments:True"), Just("max_split_size_mb:32,roundup_power2_divisions:4")],
    ) {
        let events = texts().chain(events).collect();
        let track = Track::from_log(&EventLog { pid: 1, truncated: false, events }, None);
        let Some(explanation) = explained(&track, limit, conf) else { return Ok(()) };
        let held: u64 = explanation.holders.iter().map(|holder| holder.bytes).sum();
        prop_assert_eq!(held, explanation.moment.reserved);
        prop_assert!(explanation.holders.iter().all(sums_up));
        prop_assert!(explanation.moment.allocated <= explanation.moment.reserved);
        // A cause has evidence, and a failure has a cause.
        prop_assert_eq!(explanation.cause == Cause::None, explanation.evidence.is_empty());
        prop_assert!(explanation.moment.requested.is_none() || explanation.cause != Cause::None);
    }
}

/// Steps that each leak a block allocated by the same line.
fn growing(steps: u32, each: u64) -> Track {
    let mut events: Vec<Event> = texts().collect();
    let mut total = 0;
    for step in 1..=steps {
        let place = EventContext { device: 0, phase: Phase::Forward.code(), thread: 1, module: 1, step: 0 };
        let number = u64::from(step);
        events.push(Event::Phase { place });
        events.push(Event::Traced { device: 0, number, stack: 1, stream: 0, time_us: 0 });
        total += each;
        events.push(Event::Alloc {
            place,
            address: number << 32,
            bytes: each,
            allocated: total,
            reserved: total,
        });
        events.push(Event::Phase { place: EventContext { phase: Phase::Other.code(), ..place } });
        events.push(Event::Step { step });
    }
    Track::from_log(&EventLog { pid: 1, truncated: false, events }, None)
}

#[test]
fn growing_memory_is_named_before_the_card_is_full() {
    let each = 64 << 20;
    let explanation = explained(&growing(5, each), Some(each * 12), "").unwrap();
    assert_eq!(explanation.cause, Cause::Leaking);
    let leak = &explanation.leaks[0];
    assert_eq!((leak.per_step, leak.steps, leak.bytes), (each, 5, each * 5));
    assert_eq!(leak.line.as_ref().map(|line| line.line), Some(7));
    // Twelve blocks fit, and the thirteenth does not.
    assert_eq!(leak.dies_at, Some(13));
}

#[test]
fn remedies_that_only_delay_the_error_are_left_out() {
    let each = 64 << 20;
    let mut track = growing(12, each);
    let full = Totals { allocated: 12 * each, reserved: 12 * each, time_us: None };
    track.add_moment(MomentKind::Oom(each), 0, StackId::NONE, full);
    let explanation = explained(&track, Some(each * 12), "").unwrap();
    assert_eq!(explanation.cause, Cause::Leaking, "{:?}", explanation.considered);
    let levers: Vec<Lever> = explanation.fixes.iter().map(|fix| fix.lever).collect();
    assert_eq!(levers, [Lever::KeepOnCpu]);
    assert_eq!(explanation.fixes[0].fits, Some(true));
}

/// Steps that each keep a block and free the one from `room` steps before.
fn pooled(steps: u32, each: u64, room: u32) -> Track {
    let mut events: Vec<Event> = texts().collect();
    let (mut total, mut live) = (0, Vec::new());
    for step in 1..=steps {
        let place = EventContext { device: 0, phase: Phase::Forward.code(), thread: 1, module: 1, step: 0 };
        let number = u64::from(step);
        events.push(Event::Phase { place });
        events.push(Event::Traced { device: 0, number, stack: 1, stream: 0, time_us: 0 });
        if live.len() == room as usize {
            total -= each;
            let address = live.remove(0);
            events.push(Event::Free { place, address, bytes: each, allocated: total, reserved: total });
        }
        total += each;
        live.push(number << 32);
        let address = number << 32;
        events.push(Event::Alloc { place, address, bytes: each, allocated: total, reserved: total });
        events.push(Event::Phase { place: EventContext { phase: Phase::Other.code(), ..place } });
        events.push(Event::Step { step });
    }
    let place = EventContext { device: 0, phase: Phase::Forward.code(), thread: 1, module: 1, step: 0 };
    events.push(Event::Oom { place, bytes: each, allocated: total, reserved: total });
    Track::from_log(&EventLog { pid: 1, truncated: false, events }, None)
}

#[test]
fn a_pool_that_is_full_does_not_grow() {
    let each = 64 << 20;
    let leaks = |steps| explained(&pooled(steps, each, 12), Some(each * 13), "").unwrap().leaks.len();
    assert_eq!(leaks(10), 1, "nobody can tell yet that it ends");
    assert_eq!(leaks(12 + 20), 0);
}

#[test]
fn a_few_steps_are_not_taken_for_growth() {
    assert_eq!(explained(&growing(2, 64 << 20), None, "").unwrap().cause, Cause::None);
}

#[test]
fn a_worker_without_room_for_a_context_is_the_cause() {
    let line = crate::Line { file: "train.py".to_owned(), line: 7, function: "train".to_owned(), text: None };
    let refused = Refused { worker: Some(3), lines: vec![line], ..Refused::default() };
    let card = Card { refused: Some(refused), ..Card::default() };
    let explanation = on_card(&growing(2, 64 << 20), card, "").unwrap();
    assert_eq!(explanation.cause, Cause::Outside);
    let [fact] = &explanation.evidence[..] else { panic!("{:?}", explanation.evidence) };
    assert!(fact.text.contains("DataLoader worker process 3"), "{}", fact.text);
    assert_eq!(fact.lines[0].text.as_deref(), Some("out = model(step)"));
    assert_eq!(explanation.fixes[0].lever, Lever::CpuOnlyWorkers);
}

#[test]
fn a_worker_that_took_the_card_before_the_training_had_a_context_is_named() {
    let line = |line| crate::Line { file: "train.py".to_owned(), line, function: "f".to_owned(), text: None };
    let refused = Refused { trains: true, lines: vec![line(3)], ..Refused::default() };
    let other =
        |kin| OtherProcess { pid: 4711, kin, lines: vec![line(7)], reserved: 3 << 30, bytes: 3 << 30 };
    for (kin, named, lever) in [
        (
            Kin::LoaderWorker,
            "process 4711, a worker of the script's own loader, held 3.00 GiB",
            Lever::CpuOnlyWorkers,
        ),
        (Kin::OfScript, "process 4711 of the same script held 3.00 GiB", Lever::EndOtherProcess),
    ] {
        let card = Card { refused: Some(refused.clone()), others: vec![other(kin)], ..Card::default() };
        let explanation = on_card(&growing(2, 64 << 20), card, "").unwrap();
        assert_eq!(explanation.cause, Cause::OtherProcesses);
        let [fact, taken] = &explanation.evidence[..] else { panic!("{:?}", explanation.evidence) };
        assert!(fact.text.contains(named), "{}", fact.text);
        assert_eq!((fact.lines[0].line, taken.lines[0].line), (3, 7));
        assert_eq!((explanation.fixes[0].lever, explanation.fixes[0].saves), (lever, 3 << 30));
    }
}

/// One training step, then an evaluation that concatenates each batch's result with those before it, in a new
/// block each time.
fn collecting(rounds: u32, each: u64) -> Track {
    let at = |phase: Phase| EventContext { device: 0, phase: phase.code(), thread: 1, module: 1, step: 0 };
    let mut events: Vec<Event> = texts().collect();
    for phase in [Phase::Forward, Phase::Backward, Phase::Optimizer, Phase::Other] {
        events.push(Event::Phase { place: at(phase) });
    }
    events.push(Event::Step { step: 1 });
    let place = at(Phase::Forward);
    for round in 1..=rounds {
        let number = u64::from(round);
        let (bytes, before) = (number * each, (number - 1) * each);
        events.push(Event::Phase { place });
        events.push(Event::ScopeEnter { place });
        events.push(Event::ScopeExit { place });
        events.push(Event::Phase { place: at(Phase::Other) });
        events.push(Event::Traced { device: 0, number, stack: 1, stream: 0, time_us: 0 });
        let both = bytes + before;
        events.push(Event::Alloc { place, address: number << 32, bytes, allocated: both, reserved: both });
        if round > 1 {
            let address = (number - 1) << 32;
            events.push(Event::Free { place, address, bytes: before, allocated: bytes, reserved: bytes });
        }
    }
    let bytes = u64::from(rounds) * each;
    events.extend([Event::Phase { place }, Event::ScopeEnter { place }, Event::ScopeExit { place }]);
    events.push(Event::Oom { place, bytes: bytes + each, allocated: bytes, reserved: bytes });
    Track::from_log(&EventLog { pid: 1, truncated: false, events }, None)
}

#[test]
fn tensors_recreated_larger_each_step_count_as_growth() {
    let explanation = explained(&collecting(12, 1 << 27), Some(2 << 30), "").unwrap();
    assert_eq!(explanation.cause, Cause::GrowingCache, "{:?}", explanation.considered);
    let [leak] = &explanation.leaks[..] else { panic!("{:?}", explanation.leaks) };
    assert_eq!((leak.per_step, leak.bytes), (1 << 27, 12 << 27));
    assert!(explanation.evidence[0].text.contains("rebuilt each forward pass with 128 MiB more in it"));
    // Two enlargements do not count as growth.
    assert_eq!(explained(&collecting(3, 1 << 27), Some(1 << 29), "").unwrap().leaks, []);
}

/// A forward pass of four operations, of which the last fails; its tensors are freed as the exception
/// unwinds.
fn unwound(unwinds: bool) -> Track {
    let mut track = Track::default();
    let text = |track: &mut Track, text: &str| track.texts.intern(text);
    let frames = [
        ("/v/site-packages/torch/nn/modules/linear.py", "forward", 1),
        ("/v/site-packages/torch/nn/modules/module.py", "_call_impl", 2),
        ("train.py", "train", 7),
    ];
    let frames: Vec<_> = frames
        .iter()
        .map(|(file, name, line)| {
            let (file, name) = (text(&mut track, file), text(&mut track, name));
            track.stacks.intern_frame(Frame { file, name, line: *line })
        })
        .collect();
    let stack = track.stacks.intern(&frames);
    let totals = |blocks: u64| Totals { allocated: blocks << 30, reserved: blocks << 30, time_us: None };
    let blocks: Vec<u32> = (0..4_u64)
        .map(|place| {
            let block = Block { address: place << 32, bytes: 1 << 30, stack, ..Block::default() };
            track.alloc(&block, totals(place + 1))
        })
        .collect();
    track.add_moment(MomentKind::Oom(1 << 30), 0, stack, totals(4));
    if unwinds {
        for (left, block) in blocks.into_iter().enumerate() {
            track.free(block, 0, StackId::NONE, totals(3 - left as u64));
        }
    }
    track
}

#[test]
fn blocks_freed_while_the_exception_unwinds_are_judged_at_the_failing_request() {
    let of = |track: &Track| {
        let explained = explained(track, Some(4 << 30), "").unwrap();
        explained.holders.iter().map(|holder| (holder.name.clone(), holder.bytes)).collect::<Vec<_>>()
    };
    let (went, stayed) = (of(&unwound(true)), of(&unwound(false)));
    assert_eq!(went, stayed);
    assert!(went.iter().any(|(name, bytes)| name == "activations" && *bytes == 4 << 30), "{went:?}");
}

#[test]
fn no_remedy_is_about_a_graph_where_gradients_are_off() {
    let levers = |program: &str| {
        let explanation = of_program(&unwound(true), program);
        explanation.fixes.iter().map(|fix| fix.lever).collect::<Vec<_>>()
    };
    let about_graphs = [Lever::Checkpointing, Lever::ActivationOffload, Lever::NoGrad, Lever::MicroBatch];
    let body = "    for _ in range(3):\n        #\n        out = model(1)\n";
    let on = levers(&format!("import torch\n\n\ndef train():\n{body}"));
    let off = levers(&format!("import torch\n\n@torch.no_grad()\ndef train():\n{body}"));
    assert!(on.contains(&Lever::Checkpointing), "{on:?}");
    assert!(off.iter().all(|lever| !about_graphs.contains(lever)), "{off:?}");
}

#[test]
fn a_process_that_may_not_use_the_whole_gpu_is_told_so() {
    let card = Card { limit: Some(4 << 30), withheld: 8 << 30, ..Card::default() };
    let explanation = on_card(&unwound(false), card.clone(), "").unwrap();
    assert_eq!(explanation.cause, Cause::SettingThatHurts, "{:?}", explanation.considered);
    let evidence_text = &explanation.evidence[0].text;
    assert!(
        evidence_text.contains("may not use more than 4.00 GiB") && evidence_text.contains("8.00 GiB"),
        "{evidence_text}"
    );
    assert_eq!((explanation.fixes[0].lever, explanation.fixes[0].fits), (Lever::DropSetting, Some(true)));
    // Set in the environment, it is dropped there; the other settings stay.
    let conf = "per_process_memory_fraction:0.3,max_split_size_mb:64";
    let explanation = on_card(&unwound(false), card, conf).unwrap();
    let kept = Apply::Environment("PYTORCH_ALLOC_CONF", "max_split_size_mb:64".to_owned());
    assert!(explanation.fixes.iter().any(|fix| fix.apply == kept), "{:?}", explanation.fixes);
    let conf = "roundup_power2_divisions:[256:1,512:2],per_process_memory_fraction:0.3";
    let card = Card { limit: Some(4 << 30), withheld: 8 << 30, ..Card::default() };
    let explanation = on_card(&unwound(false), card, conf).unwrap();
    let list = Apply::Environment("PYTORCH_ALLOC_CONF", "roundup_power2_divisions:[256:1,512:2]".to_owned());
    assert!(explanation.fixes.iter().any(|fix| fix.apply == list), "{:?}", explanation.fixes);
    // Too little is withheld to matter.
    let card = Card { limit: Some(4 << 30), withheld: 1 << 29, ..Card::default() };
    assert_ne!(on_card(&unwound(false), card, "").unwrap().cause, Cause::SettingThatHurts);
}

#[test]
fn pools_that_only_the_message_tells_of_are_the_cause_if_their_memory_was_missing() {
    let cause = |in_private_pools: u64| {
        let card = Card { limit: Some(11 << 29), in_private_pools, ..Card::default() };
        on_card(&unwound(false), card, "").unwrap().cause
    };
    assert_eq!(cause(1 << 30), Cause::PrivatePools);
    // There was free memory in addition to this one, or as much as was requested.
    assert!([1 << 28, 1 << 29].map(cause).iter().all(|cause| *cause != Cause::PrivatePools));
}

/// Eight layers that a script calls one by one, each followed by an operation of its own on the same line.
fn layer_by_layer() -> Track {
    let mut track = Track::default();
    let mut stack = |module: bool| {
        let library = [
            ("/v/site-packages/torch/nn/modules/linear.py", "forward", 1),
            ("/v/site-packages/torch/nn/modules/module.py", "_call_impl", 2),
        ];
        let of_library = library.into_iter().filter(|_| module);
        let frames: Vec<_> = of_library
            .chain([("train.py", "<module>", 4)])
            .map(|(file, name, line)| {
                let (file, name) = (track.texts.intern(file), track.texts.intern(name));
                track.stacks.intern_frame(Frame { file, name, line })
            })
            .collect();
        track.stacks.intern(&frames)
    };
    let stacks = [stack(true), stack(false)];
    let totals = |blocks: u64| Totals { allocated: blocks << 28, reserved: blocks << 28, time_us: None };
    for place in 0..16_u64 {
        let stack = stacks[place as usize % 2];
        let block = Block { address: place << 32, bytes: 1 << 28, stack, ..Block::default() };
        track.alloc(&block, totals(place + 1));
    }
    track.add_moment(MomentKind::Oom(1 << 28), 0, stacks[0], totals(16));
    track
}

#[test]
fn layers_called_one_by_one_are_no_leak_if_their_backward_pass_was_to_come() {
    let cause = |behind: &str| {
        let program = format!(
            "import torch\nfor batch in loader:\n    for layer in layers:\n        x = x + layer(x)\n{behind}"
        );
        of_program(&layer_by_layer(), &program).cause
    };
    assert_eq!(cause("    x.mean().backward()\n"), Cause::TooBig);
    // Nothing in the source tells that the values are needed.
    assert_eq!(cause("print(x)\n"), Cause::Leaking);
}

/// Trainings one after the other, each with a model of 1 GiB and state of as much; only some stay.
fn trained_in_turn(trainings: u64, all_stay: bool) -> Track {
    const MODEL: u64 = 1 << 30;
    let at = |phase: Phase| EventContext { device: 0, phase: phase.code(), thread: 1, module: 1, step: 0 };
    let mut events: Vec<Event> = texts().collect();
    let mut total = 0;
    for training in 1..=trainings {
        for (part, category) in [(0, Category::Parameters), (1, Category::Optimizer)] {
            let address = (training * 2 + part) << 32;
            let number = training * 2 + part - 1;
            let phase = if part == 0 { Phase::Other } else { Phase::Optimizer };
            if part == 1 {
                for phase in [Phase::Forward, Phase::Backward, Phase::Optimizer] {
                    events.push(Event::Phase { place: at(phase) });
                }
            }
            total += MODEL;
            events.push(Event::Traced { device: 0, number, stack: 1, stream: 0, time_us: 0 });
            let place = at(phase);
            events.push(Event::Alloc { place, address, bytes: MODEL, allocated: total, reserved: total });
            events.push(Event::Note { address, category: category.code(), owner: 1 });
        }
        events.push(Event::Step { step: training as u32 });
        events.push(Event::Phase { place: at(Phase::Other) });
        if !all_stay {
            for part in 0..2 {
                total -= MODEL;
                let (place, address) = (at(Phase::Other), (training * 2 + part) << 32);
                events.push(Event::Free { place, address, bytes: MODEL, allocated: total, reserved: total });
            }
        }
    }
    let place = at(Phase::Forward);
    events.push(Event::Phase { place });
    events.push(Event::Oom { place, bytes: MODEL, allocated: total, reserved: total });
    Track::from_log(&EventLog { pid: 1, truncated: false, events }, None)
}

#[test]
fn models_of_earlier_trainings_that_stay_are_a_leak() {
    let explanation = explained(&trained_in_turn(4, true), Some(8 << 30), "").unwrap();
    assert_eq!(explanation.cause, Cause::Leaking, "{:?}", explanation.considered);
    let fact = &explanation.evidence[0];
    assert!(fact.text.contains("4 models made by this line are still on the GPU"), "{}", fact.text);
    assert_eq!((fact.bytes, fact.lines[0].line), (6 << 30, 7));
    assert_eq!(explanation.fixes[0].lever, Lever::KeepOnCpu);
    // Two may be one that is about to replace the other, and models that are freed are none.
    for track in [trained_in_turn(2, true), trained_in_turn(4, false)] {
        let explanation = explained(&track, Some(4 << 30), "").unwrap();
        assert_ne!(explanation.cause, Cause::Leaking, "{:?}", explanation.considered);
    }
}

const MIB: u64 = 1 << 20;

/// A track that grows by one block at a time.
#[derive(Default)]
struct Growing {
    track: Track,
    allocated: u64,
    blocks: u64,
}

impl Growing {
    /// Stack of these frames, innermost first.
    fn stack(&mut self, frames: &[(&str, &str, u32)]) -> StackId {
        let track = &mut self.track;
        let mut intern = |(file, name, line): &(&str, &str, u32)| {
            let (file, name) = (track.texts.intern(file), track.texts.intern(name));
            track.stacks.intern_frame(Frame { file, name, line: *line })
        };
        let frames: Vec<_> = frames.iter().map(&mut intern).collect();
        track.stacks.intern(&frames)
    }

    fn totals(&self) -> Totals {
        Totals { allocated: self.allocated, reserved: self.allocated, time_us: None }
    }

    /// Allocates a block of this size for a tensor that may be smaller.
    fn alloc(&mut self, stack: StackId, requested: u64, bytes: u64) -> u32 {
        self.blocks += 1;
        self.allocated += bytes;
        let requested = Some(requested);
        let block = Block { address: self.blocks << 32, bytes, requested, stack, ..Block::default() };
        let totals = self.totals();
        self.track.alloc(&block, totals)
    }

    fn free(&mut self, block: u32) {
        self.allocated -= self.track.block(block).unwrap().bytes;
        let totals = self.totals();
        self.track.free(block, 0, StackId::NONE, totals);
    }

    fn end_step(&mut self, step: u32) {
        let totals = self.totals();
        self.track.add_moment(MomentKind::Step(step), 0, StackId::NONE, totals);
    }

    fn fail(self, stack: StackId, bytes: u64) -> Track {
        self.fail_beside(stack, bytes, 0)
    }

    /// Memory runs out although the allocator holds `unused` bytes in no block.
    fn fail_beside(mut self, stack: StackId, bytes: u64, unused: u64) -> Track {
        let totals = Totals { reserved: self.allocated + unused, ..self.totals() };
        self.track.add_moment(MomentKind::Oom(bytes), 0, stack, totals);
        self.track
    }
}

const PLACED: [(&str, &str, u32); 2] =
    [("/v/site-packages/torch/nn/modules/linear.py", "__init__", 1), ("train.py", "train", 4)];
const MODULE: (&str, &str, u32) = ("/v/site-packages/torch/nn/modules/module.py", "_call_impl", 2);
const BACKWARD: (&str, &str, u32) = ("/v/site-packages/torch/autograd/graph.py", "_engine_run_backward", 1);
