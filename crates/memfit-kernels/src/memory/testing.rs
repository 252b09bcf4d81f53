//! Memory for tests: byte by byte, in a map.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
};

use memfit_channel::ValuePolicy;

use super::{Found, Memory, Ones, Origin, Reach};

/// Known bytes, each with its origin, and blocks.
#[derive(Debug, Default)]
pub struct Bytes {
    policy: Option<ValuePolicy>,
    known: RefCell<BTreeMap<u64, (u8, Origin)>>,
    blocks: RefCell<BTreeMap<u64, u64>>,
    /// Number of ranges that were forgotten.
    pub forgotten: Cell<usize>,
}

impl Bytes {
    /// Creates memory without known contents; rules answer by this policy.
    pub fn new(policy: Option<ValuePolicy>) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Adds a block.
    pub fn block(&self, start: u64, size: u64) {
        self.blocks.borrow_mut().insert(start, size);
    }
}

impl Memory for Bytes {
    fn reach(&self, address: u64) -> Option<Reach> {
        let blocks = self.blocks.borrow();
        let (start, size) = blocks.range(..=address).next_back()?;
        let bytes = (start + size).checked_sub(address).filter(|bytes| *bytes > 0)?;
        Some(Reach { bytes, first: *start == address })
    }

    fn policy(&self) -> Option<ValuePolicy> {
        self.policy
    }

    fn perhaps(&self, address: u64) -> bool {
        self.known.borrow().contains_key(&address)
    }

    fn flags(&self, address: u64) -> Option<Ones> {
        match self.known.borrow().get(&address) {
            Some((_, Origin::Flags(ones))) => Some(*ones),
            _ => None,
        }
    }

    fn get(&self, address: u64, length: u64) -> Option<(Vec<u8>, Origin)> {
        if length > super::MAX_PIECE_BYTES as u64 {
            return None;
        }
        let mut bytes = vec![0; length as usize];
        let found = self.read(address, &mut bytes);
        let origin = found.answers.first().map_or(Origin::True, |rule| Origin::Answer(*rule));
        (found.known as u64 == length && !found.guessed).then_some((bytes, origin))
    }

    fn read(&self, address: u64, out: &mut [u8]) -> Found {
        let mut found = Found::default();
        for (at, (byte, origin)) in
            self.known.borrow().range(address..address.saturating_add(out.len() as u64))
        {
            out[(at - address) as usize] = *byte;
            found.known += 1;
            found.guessed |= !origin.is_known();
            found.answers.extend(origin.rule().filter(|rule| !found.answers.contains(rule)));
        }
        found
    }

    fn write(&self, address: u64, bytes: &[u8], origin: Origin) {
        let pairs = (address..).zip(bytes.iter().map(|byte| (*byte, origin)));
        self.known.borrow_mut().extend(pairs);
    }

    fn fill(&self, address: u64, byte: u8, length: u64, origin: Origin) {
        self.write(address, &vec![byte; length as usize], origin);
    }

    fn forget(&self, address: u64, length: u64) {
        self.forgotten.set(self.forgotten.get() + 1);
        let end = address.saturating_add(length);
        self.known.borrow_mut().retain(|at, _| !(address..end).contains(at));
    }

    fn forget_from(&self, address: u64) {
        let mut end = address;
        while self.known.borrow().contains_key(&end) {
            end += 1;
        }
        self.forget(address, end - address);
    }

    fn forget_block(&self, address: u64) {
        match self.reach(address) {
            Some(reach) => self.forget(address, reach.bytes),
            None => self.forget_from(address),
        }
    }
}
