//! Tests of the breakdown: synthetic logs, and properties that hold for any log.

use memfit_channel::events::{Event, EventContext, EventLog};
use proptest::prelude::*;

use super::*;
use crate::out_of_memory;

/// Builds the log of a small training step by step and keeps the allocator's totals.
#[derive(Default)]
struct Script {
    events: Vec<Event>,
    place: EventContext,
    scopes: Vec<u32>,
    sizes: HashMap<u64, u64>,
    allocated: u64,
    reserved: u64,
    allocs: u64,
}

impl Script {
    fn phase(&mut self, phase: Phase) -> &mut Self {
        self.place.phase = phase.code();
        self.events.push(Event::Phase { place: self.place });
        self
    }

    fn enter(&mut self, module: u32) -> &mut Self {
        self.scopes.push(module);
        self.place.module = module;
        self.events.push(Event::ScopeEnter { place: self.place });
        self
    }

    fn exit(&mut self) -> &mut Self {
        self.events.push(Event::ScopeExit { place: self.place });
        self.scopes.pop();
        self.place.module = self.scopes.last().copied().unwrap_or(0);
        self
    }

    /// Allocates a block of `asked` bytes, rounded up to 512 as the allocator does.
    fn alloc(&mut self, address: u64, asked: u64) -> &mut Self {
        let bytes = asked.next_multiple_of(512);
        self.sizes.insert(address, bytes);
        self.allocated += bytes;
        self.allocs += 1;
        self.reserved = self.reserved.max(self.allocated + 1024);
        let Self { place, allocated, reserved, .. } = *self;
        self.events.push(Event::Alloc { place, address, bytes, allocated, reserved });
        self.events.push(Event::Requested { device: 0, number: self.allocs, address, bytes: asked });
        self
    }

    fn free(&mut self, address: u64) -> &mut Self {
        let bytes = self.sizes.remove(&address).expect("a live block");
        self.allocated -= bytes;
        let Self { place, allocated, reserved, .. } = *self;
        self.events.push(Event::Free { place, address, bytes, allocated, reserved });
        self
    }

    fn note(&mut self, address: u64, category: Category, owner: u32) -> &mut Self {
        self.events.push(Event::Note { address, category: category.code(), owner });
        self
    }

    fn step(&mut self) -> &mut Self {
        self.place.step += 1;
        self.events.push(Event::Step { step: self.place.step });
        self
    }

    fn track(&self) -> Track {
        let names = ["model", "model.conv", "model.relu"];
        let texts = (1..).zip(names).map(|(id, text)| Event::Text { id, text: text.to_owned() });
        let events = texts.chain(self.events.iter().cloned()).collect();
        Track::from_log(&EventLog { pid: 7, truncated: false, events }, None)
    }
}

/// One step of a model with a convolution and a ReLU.
fn training() -> Script {
    let mut script =
        Script { place: EventContext { thread: 1, ..EventContext::default() }, ..Script::default() };
    script.alloc(0x10_0000, 4000).note(0x10_0000, Category::Parameters, 2);
    script.alloc(0x20_0000, 3000).note(0x20_0010, Category::Inputs, 0);
    script.phase(Phase::Forward).enter(1).enter(2);
    script.alloc(0x30_0000, 700).note(0x30_0000, Category::Workspace, 0).free(0x30_0000);
    script.alloc(0x31_0000, 900).free(0x31_0000);
    script.alloc(0x32_0000, 10_000).exit();
    script.enter(3).alloc(0x33_0000, 5000).note(0x33_0000, Category::Inputs, 0).exit().exit();
    script.alloc(0x34_0000, 4);
    script.phase(Phase::Backward);
    script.place.module = 2;
    script.alloc(0x40_0000, 4000).alloc(0x41_0000, 20_000);
    script
}

fn finish(script: &mut Script) -> &mut Script {
    script.free(0x41_0000).free(0x32_0000).free(0x33_0000).free(0x34_0000);
    script.place.module = 0;
    script.note(0x40_0000, Category::Gradients, 2);
    script.phase(Phase::Optimizer).alloc(0x50_0000, 600).free(0x50_0000).phase(Phase::Other).step()
}

fn bytes(composition: &Composition) -> Vec<(Category, u64)> {
    composition
        .by_category
        .iter()
        .map(|(&category, &bytes)| (category, bytes))
        .filter(|(_, bytes)| *bytes > 0)
        .collect()
}

#[test]
fn a_training_step_is_told_apart() {
    let composition = at_peak(&finish(&mut training()).track(), 0).unwrap();
    assert_eq!((composition.step, composition.phase), (1, Phase::Backward));
    assert_eq!(
        bytes(&composition),
        [
            (Category::Parameters, 4000),
            (Category::Gradients, 4000),
            (Category::Activations, 10_000 + 5000 + 4),
            (Category::Inputs, 3000),
            (Category::Temporary, 20_000),
            (Category::Rounding, 96 + 96 + 240 + 120 + 508 + 72 + 480),
            (Category::Fragmentation, 1024),
        ]
    );
    assert_eq!(
        composition.modules,
        [
            ModuleBytes { name: "model.conv".into(), bytes: 4000 + 4000 + 20_000 + 10_000 },
            ModuleBytes { name: "model.relu".into(), bytes: 5000 },
        ]
    );
    assert_eq!(composition.outside_modules, 3000 + 4, "the batch and the loss");
    assert_eq!(composition.unmeasured, 0);
}

#[test]
fn blocks_freed_within_their_call_are_temporary_and_others_activations() {
    let track = finish(&mut training()).track();
    let category_at = |address| {
        let block = track.blocks().iter().find(|block| block.address == address).unwrap();
        crate::category(&track, &block)
    };
    assert_eq!(category_at(0x30_0000), Category::Workspace, "told");
    assert_eq!(category_at(0x31_0000), Category::Temporary, "freed within the convolution");
    assert_eq!(category_at(0x32_0000), Category::Activations, "the convolution's output");
    assert_eq!(
        category_at(0x33_0000),
        Category::Activations,
        "made from host memory within a call: not the batch"
    );
    assert_eq!(category_at(0x34_0000), Category::Activations, "the loss, kept until the backward");
    assert_eq!(category_at(0x50_0000), Category::Temporary, "of the optimizer's step");
}

#[test]
fn a_model_without_modules_has_activations_too() {
    let mut script =
        Script { place: EventContext { thread: 1, ..EventContext::default() }, ..Script::default() };
    script.alloc(0x10_0000, 512).alloc(0x20_0000, 512);
    script.phase(Phase::Backward).free(0x10_0000).phase(Phase::Other).free(0x20_0000);
    let track = script.track();
    let categories: Vec<_> = track.blocks().iter().map(|block| crate::category(&track, &block)).collect();
    assert_eq!(categories, [Category::Activations, Category::Unknown]);
}

#[test]
fn blocks_freed_between_phases_are_temporary_and_batches_made_ahead_are_inputs() {
    let mut script = Script::default();
    // A mask that is freed before the forward pass, the batch, and a tensor that stays.
    script.alloc(0x10_0000, 4096).alloc(0x20_0000, 3000).alloc(0x30_0000, 512).free(0x10_0000);
    script.phase(Phase::Forward);
    script.note(0x20_0000, Category::Inputs, 0);
    script.phase(Phase::Backward).phase(Phase::Other).free(0x20_0000);
    // The next batch, and another tensor.
    script.alloc(0x40_0000, 3000).alloc(0x50_0000, 1500);
    let track = script.track();
    let categories: Vec<_> = track.blocks().iter().map(|block| crate::category(&track, &block)).collect();
    assert_eq!(
        categories,
        [Category::Temporary, Category::Inputs, Category::Unknown, Category::Inputs, Category::Unknown]
    );
}

#[test]
fn a_recording_without_phases_tells_nothing_apart() {
    let mut script = Script::default();
    script.alloc(0x10_0000, 4096).free(0x10_0000);
    let track = script.track();
    assert_eq!(crate::category(&track, &track.blocks().iter().next().unwrap()), Category::Unknown);
}

#[test]
fn a_step_that_does_not_end_is_told_apart_too() {
    let mut script = training();
    script.events.push(Event::Oom {
        place: script.place,
        bytes: 1 << 30,
        allocated: script.allocated,
        reserved: script.reserved,
    });
    let track = script.track();
    let failure = out_of_memory(&track)[0];
    assert_eq!((failure.requested, failure.allocated), (1 << 30, script.allocated));
    let composition = composition_at(&track, 0, failure.moment);
    assert_eq!(composition.by_category[&Category::Activations], 10_000 + 5000 + 4);
    assert_eq!(composition.by_category[&Category::Temporary], 4000 + 20_000);
}

#[test]
fn the_peak_is_its_first_moment() {
    let mut script = training();
    finish(&mut script).free(0x40_0000);
    let first = peak_moment(&script.track(), 0);
    let most = script.track().moment(first.unwrap()).unwrap().allocated;
    let missing = most - script.allocated;
    script.phase(Phase::Backward).alloc(0x60_0000, missing);
    let track = script.track();
    assert_eq!(script.allocated, most, "reached a second time");
    assert_eq!(peak_moment(&track, 0), first);
    assert_eq!(peak_moment(&track, 1), None);
    assert_eq!(at_peak(&track, 1), None);
}

proptest! {
    /// For any log, the categories sum to the reserved bytes.
    #[test]
    fn categories_sum_to_reserved_memory(
        events in proptest::collection::vec((0..4_u8, 0..8_u64, 0..4000_u64, any::<u32>(), any::<u32>(), 0..12_u8), 1..120),
        phase in 0..4_u8,
    ) {
        let place = EventContext { device: 0, phase, thread: 1, module: 1, step: 0 };
        let events = events.into_iter().map(|(kind, address, bytes, allocated, reserved, category)| {
            let (address, allocated, reserved) = (address * 4096, u64::from(allocated), u64::from(reserved));
            match kind {
                0 => Event::Alloc { place, address, bytes, allocated, reserved },
                1 => Event::Free { place, address, bytes, allocated, reserved },
                2 => Event::Note { address, category, owner: 0 },
                _ => Event::Requested { device: 0, number: 0, address, bytes },
            }
        }).collect();
        let track = Track::from_log(&EventLog { pid: 1, truncated: false, events }, None);
        for moment in 0..track.next_moment() {
            let composition = composition_at(&track, 0, moment);
            prop_assert_eq!(composition.by_category.values().sum::<u64>(), composition.reserved);
            prop_assert!(composition.reserved >= composition.allocated);
        }
    }
}

#[test]
fn equally_large_modules_are_in_the_order_of_their_numbers() {
    let mut names = ["blocks.10", "head", "blocks.2", "blocks.2.norm", "blocks.1"];
    names.sort_by_key(|name| in_order(name));
    assert_eq!(names, ["blocks.1", "blocks.2", "blocks.2.norm", "blocks.10", "head"]);
}
