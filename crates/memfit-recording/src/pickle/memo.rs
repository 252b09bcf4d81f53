//! Memo of a pickle: the values that later operations may refer to.
//!
//! Python memoizes every container and every text, so that there are millions of entries and nearly all are
//! one of these two. An entry takes four bytes; other values are in a side table.

use super::heap::Value;

/// Number of low bits that hold the kind of an entry. The other bits hold its index.
const KIND_BITS: u32 = 2;
const OBJECT: u32 = 0;
const TEXT: u32 = 1;
/// The index is that of the side table.
const OTHER: u32 = 2;

/// Largest index that fits into an entry.
const MAX_INLINE: u64 = (1 << (u32::BITS - KIND_BITS)) - 1;

/// Entries of the memo, in order.
#[derive(Debug, Default)]
pub(super) struct Memo {
    places: Vec<u32>,
    others: Vec<Value>,
}

impl Memo {
    pub(super) fn with_capacity(places: usize) -> Self {
        Self { places: Vec::with_capacity(places), ..Self::default() }
    }

    pub(super) const fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns an entry.
    #[inline]
    pub(super) fn get(&self, place: usize) -> Option<Value> {
        let code = *self.places.get(place)?;
        let number = code >> KIND_BITS;
        match code & ((1 << KIND_BITS) - 1) {
            OBJECT => Some(Value::Object(u64::from(number))),
            TEXT => Some(Value::Text(u64::from(number))),
            _ => self.others.get(number as usize).copied(),
        }
    }

    #[inline]
    pub(super) fn push(&mut self, value: Value) {
        let code = self.code(value);
        self.places.push(code);
    }

    /// Overwrites an existing entry.
    pub(super) fn set(&mut self, place: usize, value: Value) {
        let code = self.code(value);
        self.places[place] = code;
    }

    #[inline]
    fn code(&mut self, value: Value) -> u32 {
        match value {
            Value::Object(number) if number <= MAX_INLINE => (number as u32) << KIND_BITS | OBJECT,
            Value::Text(number) if number <= MAX_INLINE => (number as u32) << KIND_BITS | TEXT,
            other => {
                self.others.push(other);
                (self.others.len() as u32 - 1) << KIND_BITS | OTHER
            }
        }
    }

    /// Memory in bytes.
    pub(super) const fn memory(&self) -> usize {
        self.places.len() * size_of::<u32>() + self.others.len() * size_of::<Value>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_back() {
        let values = [
            Value::Object(0),
            Value::Object(MAX_INLINE),
            Value::Object(MAX_INLINE + 1),
            Value::Text(7),
            Value::Text(u64::from(u32::MAX)),
            Value::Int(-1),
            Value::None,
            Value::Float(0.5),
        ];
        let mut memo = Memo::default();
        for value in values {
            memo.push(value);
        }
        let found: Vec<Value> = (0..values.len()).filter_map(|place| memo.get(place)).collect();
        assert_eq!(found, values);
        assert_eq!((memo.len(), memo.get(values.len())), (values.len(), None));
        memo.set(0, Value::True);
        assert_eq!(memo.get(0), Some(Value::True));
    }
}
