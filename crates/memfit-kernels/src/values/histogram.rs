//! `bincount` and `histc`: number of elements in each bin, as in routing to experts.
//!
//! Known elements are counted. The counts of unknown ones still add up to the number of elements: the policy
//! chooses between an even spread and everything in as few bins as can hold it.

use memfit_channel::ValuePolicy;
use memfit_vocabulary::Assumption;

use super::number::{Type, Value};
use crate::{
    launch::Arguments,
    layout::{ANY, Sizes, TensorInfo, Width},
    memory::{Memory, Origin},
    name::{Signature, type_parts},
};

/// Maximum elements that are counted.
const MAX_ELEMENTS: u64 = 1 << 20;
/// Maximum bins that are filled in.
const MAX_BINS: u64 = 1 << 16;

/// The kernel that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Histogram {
    output: Type,
    input: Type,
    width: Width,
    /// `true` if another tensor weights the elements.
    weighted: bool,
}

impl Histogram {
    /// Recognises the kernel by its name; `None` for others.
    pub(crate) fn from_signature(signature: &Signature) -> Option<Self> {
        if signature.name() != "kernelHistogram1D" {
            return None;
        }
        let element = |index: usize| {
            Some(type_parts(signature.param(index)?).1.first().copied()?.trim_end_matches("const").trim_end())
        };
        Some(Self {
            output: Type::from_cpp(element(0)?)?,
            input: Type::from_cpp(element(2)?)?,
            width: Width::from_type_name(signature.template(2)?)?,
            weighted: !signature.template(7)?.ends_with("#2}"),
        })
    }

    /// Sizes of the parameters in its layout.
    pub(super) fn sizes(&self) -> Sizes {
        let (info, index) = (TensorInfo::bytes(self.width), self.width.bytes());
        vec![info..=info, ANY, info..=info, index..=index, 4..=8, 4..=8, index..=index]
    }

    /// Applies a launch. Its arguments are the counts, a buffer, the elements; the number of bins and their
    /// range; the number of elements.
    pub(super) fn apply(&self, arguments: Arguments, memory: &dyn Memory) -> Option<()> {
        self.try_apply(arguments, memory)
    }

    fn try_apply(&self, arguments: Arguments, memory: &dyn Memory) -> Option<()> {
        let target = TensorInfo::read(arguments, 0, self.width)?;
        let source = TensorInfo::read(arguments, 2, self.width)?;
        let number = |index| match self.width {
            Width::Narrow => arguments.get::<i32>(index).map(i64::from),
            Width::Wide => arguments.get::<i64>(index),
        };
        let bins = u64::try_from(number(3)?).ok()?;
        let elements = u64::try_from(number(6)?).ok()?;
        let size = self.output.size();
        let span = bins.saturating_mul(size as u64);
        if self.weighted || bins == 0 || bins > MAX_BINS || !target.is_dense() {
            memory.forget(target.address, span);
            return Some(());
        }
        let bounds = self.bound(arguments, 4).zip(self.bound(arguments, 5));
        let counted = bounds.and_then(|bounds| self.count(&source, elements, bins, bounds, memory));
        let (counts, origin) = match (counted, memory.policy()) {
            (Some(known), _) => known,
            (None, Some(policy)) => {
                // With one bin, the number of bins was not given, so it was read back too.
                let rule = if bins == 1 { Assumption::BinCount } else { Assumption::Histogram };
                (spread(elements, bins as usize, elements, policy), Origin::Answer(rule))
            }
            (None, None) => {
                memory.forget(target.address, span);
                return Some(());
            }
        };
        let mut bytes = vec![0; span as usize];
        for (element, count) in bytes.chunks_exact_mut(size).zip(counts) {
            self.output.store(Value::Int(count as i64), element);
        }
        memory.write(target.address, &bytes, origin);
        Some(())
    }

    /// A bound of the range, in the type that the input is accumulated in.
    fn bound(&self, arguments: Arguments, index: usize) -> Option<f64> {
        Some(match self.input {
            Type::F16 | Type::Bf16 | Type::F32 => arguments.get::<f32>(index)?.into(),
            Type::F64 => arguments.get::<f64>(index)?,
            _ => arguments.get::<i64>(index)? as f64,
        })
    }

    fn count(
        &self,
        source: &TensorInfo,
        elements: u64,
        bins: u64,
        (low, high): (f64, f64),
        memory: &dyn Memory,
    ) -> Option<(Vec<u64>, Origin)> {
        if elements > MAX_ELEMENTS || !source.is_dense() {
            return None;
        }
        let (bytes, origin) = memory.get(source.address, elements * self.input.size() as u64)?;
        let mut counts = vec![0; bins as usize];
        for element in bytes.chunks_exact(self.input.size()) {
            let value = self.input.load(element)?.real();
            if (low..=high).contains(&value) && high > low {
                let bin = ((value - low) * bins as f64 / (high - low)) as u64;
                *counts.get_mut(bin.min(bins - 1) as usize)? += 1;
            }
        }
        Some((counts, origin))
    }
}

/// Distributes items over bins that hold `room` each: evenly at the policy's lower end, in as few bins as
/// possible at its upper end. No bin stays empty unnecessarily: scripts skip empty bins, with all that they
/// would have allocated. Items beyond the total capacity are dropped.
pub(super) fn spread(things: u64, bins: usize, room: u64, policy: ValuePolicy) -> Vec<u64> {
    let all = bins as u64;
    let things = things.min(room.saturating_mul(all));
    let least = u64::from(things >= all && room > 0);
    // Number of things in the first `first` bins.
    let even = |first: u64| (u128::from(things) * u128::from(first) / u128::from(all.max(1))) as u64;
    let crowded = |first: u64| room.saturating_mul(first).min(things - least * (all - first));
    let within = |first: u64| policy.between(even(first), crowded(first).max(even(first)));
    (0..all).map(|bin| within(bin + 1).saturating_sub(within(bin))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ends_are_even_and_crowded() {
        let policy = |part: f64| ValuePolicy::at_fraction(part).unwrap();
        for (things, bins, room, part, expected) in [
            (10, 4, 10, 1.0, vec![7, 1, 1, 1]),
            (10, 4, 4, 1.0, vec![4, 4, 1, 1]),
            (10, 4, 10, 0.0, vec![2, 3, 2, 3]),
            (8, 4, 8, 0.5, vec![4, 1, 2, 1]),
            (3, 4, 3, 1.0, vec![3, 0, 0, 0]),
            (0, 3, 5, 1.0, vec![0, 0, 0]),
            (100, 2, 3, 1.0, vec![3, 3]),
            (7, 0, 3, 1.0, vec![]),
        ] {
            assert_eq!(spread(things, bins, room, policy(part)), expected, "{things} {bins} {room} {part}");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost(things in 0..1_000_000u64, bins in 1..300usize, part in 0.0..=1.0f64) {
            let counts = spread(things, bins, things, ValuePolicy::at_fraction(part).unwrap());
            prop_assert_eq!(counts.iter().sum::<u64>(), things);
            prop_assert_eq!(counts.len(), bins);
        }
    }
}
