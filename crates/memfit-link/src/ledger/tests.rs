use super::*;
use crate::{CardSetup, PROTOCOL, ValuePolicy};

const MIB: u64 = 1 << 20;

pub(super) fn setup(capacities: &[u64]) -> Setup {
    let none = SizedInterval::default();
    let card = |&capacity: &u64| CardSetup {
        device: serde_json::Value::Null,
        capacity,
        context: none,
        libraries: none,
        communicator: none,
    };
    Setup {
        protocol: PROTOCOL,
        cards: capacities.iter().map(card).collect(),
        steps: 3,
        forward_steps: 0,
        cover_full: false,
        stacks: false,
        values: ValuePolicy::default(),
    }
}
