//! Autocast is suggested unless operations work on half-precision copies of the weights already.

use super::*;

/// Four weights, and a forward pass in which the line of each allocates blocks of these sizes; then memory
/// runs out, before modules with this number of weights are called.
pub(super) fn multiplying(of_each: &[u64], uncalled: usize) -> Track {
    const WEIGHT: u64 = 1 << 20;
    const UNCALLED: u32 = 50;
    let at = |phase: Phase| EventContext { device: 0, phase: phase.code(), thread: 1, module: 1, step: 0 };
    let mut events: Vec<Event> = texts().collect();
    events.push(Event::Text { id: UNCALLED, text: "model.head".to_owned() });
    let (mut number, mut total) = (0, 0);
    let mut get = |events: &mut Vec<Event>, phase: Phase, stack: u32, bytes: u64| {
        number += 1;
        total += bytes;
        events.push(Event::Traced { device: 0, number, stack, stream: 0, time_us: 0 });
        let (place, address) = (at(phase), number << 32);
        events.push(Event::Alloc { place, address, bytes, allocated: total, reserved: total });
        address
    };
    for _ in 0..4 {
        let address = get(&mut events, Phase::Other, 1, WEIGHT);
        events.push(Event::Note { address, category: Category::Parameters.code(), owner: 1 });
    }
    for _ in 0..uncalled {
        let address = get(&mut events, Phase::Other, 1, WEIGHT);
        events.push(Event::Note { address, category: Category::Parameters.code(), owner: UNCALLED });
    }
    events.push(Event::Phase { place: at(Phase::Forward) });
    events.push(Event::ScopeEnter { place: at(Phase::Forward) });
    for bytes in [of_each; 4].concat() {
        get(&mut events, Phase::Forward, 2, bytes);
    }
    events.push(Event::ScopeExit { place: at(Phase::Forward) });
    events.push(Event::Oom { place: at(Phase::Forward), bytes: WEIGHT, allocated: total, reserved: total });
    Track::from_log(&EventLog { pid: 1, truncated: false, events }, None)
}

#[test]
fn autocast_is_no_remedy_where_it_is_on() {
    let suggested = |of_each: &[u64], uncalled: usize| {
        let explanation = explained(&multiplying(of_each, uncalled), Some(16 << 20), "").unwrap();
        explanation.fixes.iter().any(|fix| fix.lever == Lever::AutocastBf16)
    };
    // A half-precision copy of the weight, and the product.
    assert!(!suggested(&[1 << 19, 3 << 18], 0));
    assert!(!suggested(&[1 << 19, 3 << 18], 8), "memory ran out before most modules were called");
    assert!(suggested(&[3 << 18], 0));
    // The product happens to be half as large as the weight.
    assert!(suggested(&[1 << 19], 0));
}
