//! Sizes that the host reads back: number of elements that `nonzero`, `unique` and boolean indexing found.
//!
//! The kernels are CUB's and Thrust's. The size is counted if the input is known; otherwise the policy
//! chooses it between zero and the number of items.

use memfit_vocabulary::Assumption;

use super::number::Type;
use crate::{
    launch::Arguments,
    layout::{ANY, Sizes},
    memory::{Mask, Memory, Ones, Origin},
    name::{Signature, type_parts},
};

/// Maximum elements that are counted.
const MAX_ELEMENTS: u64 = 1 << 20;

/// A kernel that writes a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Argument with the address of the size, and its type.
    target: (usize, Type),
    /// Argument with the number of items, and its type.
    items: (usize, Type),
    rule: Assumption,
    /// Input that is counted, for sizes that count nonzero elements.
    counted: Option<Counted>,
}

/// Input of a counting reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    /// Elements of this type, through an iterator that marks which are not zero.
    Elements(Type),
    /// Partial counts that another kernel has computed.
    Partial,
}

impl Size {
    /// Recognises a kernel by its name; `None` if it writes no size.
    pub(crate) fn from_signature(signature: &Signature) -> Option<Self> {
        let (target, items, rule, counted) = match signature.name() {
            "DeviceReduceSingleTileKernel" | "DeviceReduceKernel" => {
                (1, 2, Assumption::Nonzero, Some(counted_input(signature.param(0)?)?))
            }
            // Selection by a mask writes the size that was counted before.
            "DeviceSelectSweepKernel" if signature.param(1)?.contains("NullType") => {
                (3, 7, Assumption::Unique, None)
            }
            "DeviceReduceByKeyKernel" => (4, 9, Assumption::Unique, None),
            "DeviceUniqueByKeySweepKernel" => (4, 7, Assumption::Unique, None),
            "_kernel_agent" if type_parts(signature.template(0)?).0 == "UniqueAgent" => {
                (3, 4, Assumption::Unique, None)
            }
            _ => return None,
        };
        let pointee = signature.param(target)?.strip_suffix('*')?;
        Some(Self {
            target: (target, integer(pointee)?),
            items: (items, integer(signature.param(items)?)?),
            rule,
            counted,
        })
    }

    /// Sizes of the parameters in its layout.
    pub(super) fn sizes(&self) -> Sizes {
        let (target, (items, kind)) = (self.target.0, self.items);
        let mut sizes = vec![ANY; target.max(items) + 1];
        (sizes[target], sizes[items]) = (8..=8, kind.size()..=kind.size());
        sizes
    }

    /// Applies a launch.
    pub(super) fn apply(&self, arguments: Arguments, memory: &dyn Memory) -> Option<()> {
        let (argument, kind) = self.target;
        let target = arguments.get::<u64>(argument)?;
        let items = match self.items.1 {
            Type::I32 => arguments.get::<i32>(self.items.0).map(i64::from),
            _ => arguments.get::<i64>(self.items.0),
        };
        let items = items.and_then(|items| u64::try_from(items).ok())?;
        let known = match self.counted {
            Some(Counted::Elements(element)) => count_nonzero(element, items, arguments, memory),
            Some(Counted::Partial) => {
                arguments.get::<u64>(0).and_then(|source| partial(kind, source, memory))
            }
            None => None,
        };
        let known =
            memory.expected().filter(|size| *size <= items).map(|size| (size, Origin::True)).or(known);
        // A nonempty input has at least one unique element, and integers in a range have no more than the
        // range.
        let (least, items) = match self.rule {
            Assumption::Unique => (items.min(1), memory.most_values().unwrap_or(items).min(items)),
            _ => (0, items),
        };
        let mask = match self.counted {
            Some(Counted::Elements(Type::Bool)) => mask(items, arguments, memory),
            _ => None,
        };
        let supposed = || {
            let policy = memory.policy()?;
            let size = mask.map_or_else(|| policy.between(least, items), |mask| mask.count(items, policy));
            Some((size, Origin::Answer(self.rule)))
        };
        let Some((size, origin)) = known.or_else(supposed) else {
            memory.forget(target, kind.size() as u64);
            return Some(());
        };
        let mut bytes = [0; 8];
        kind.store(super::number::Value::Int(size as i64), &mut bytes);
        memory.write(target, &bytes[..kind.size()], origin);
        Some(())
    }
}

/// The mask that is counted.
fn mask(items: u64, arguments: Arguments, memory: &dyn Memory) -> Option<Mask> {
    let source = [0, 8]
        .into_iter()
        .filter_map(|offset| arguments.get_at::<u64>(0, offset))
        .find(|word| memory.reach(*word).is_some())?;
    match memory.flags(source) {
        Some(Ones::OfMask(mask)) => Some(mask),
        None if !memory.perhaps(source) => {
            let mask = Mask::new(None);
            memory.mark_flags(source, items, Ones::OfMask(mask));
            Some(mask)
        }
        _ => None,
    }
}

/// Counts the nonzero elements, if they are known.
fn count_nonzero(
    element: Type,
    items: u64,
    arguments: Arguments,
    memory: &dyn Memory,
) -> Option<(u64, Origin)> {
    if items > MAX_ELEMENTS {
        return None;
    }
    // The iterator is an address and an empty functor, in an order that depends on the release.
    let source = [0, 8]
        .into_iter()
        .filter_map(|offset| arguments.get_at::<u64>(0, offset))
        .find(|word| memory.perhaps(*word))?;
    let (bytes, origin) = memory.get(source, items * element.size() as u64)?;
    let nonzero =
        |element_bytes: &&[u8]| element.load(element_bytes).is_some_and(super::number::Value::is_true);
    Some((bytes.chunks_exact(element.size()).filter(nonzero).count() as u64, origin))
}

/// Reads the partial counts: the first kernel leaves the whole count in the first of them.
fn partial(kind: Type, source: u64, memory: &dyn Memory) -> Option<(u64, Origin)> {
    let (bytes, origin) = memory.get(source, kind.size() as u64)?;
    Some((kind.load(&bytes)?.int() as u64, origin))
}

/// Input that a reduction's iterator counts.
fn counted_input(iterator: &str) -> Option<Counted> {
    if let Some(pointee) = iterator.strip_suffix('*') {
        return (integer(pointee.trim_end_matches(" const"))? == Type::I32).then_some(Counted::Partial);
    }
    let start = iterator.find("NonZeroOp<")?;
    let (_, arguments) = type_parts(&iterator[start..]);
    // Contents of an unmodelled type are never known, so its size does not matter.
    Some(Counted::Elements(Type::from_cpp(arguments.first()?).unwrap_or(Type::U8)))
}

fn integer(name: &str) -> Option<Type> {
    Some(match name.trim() {
        "int" | "unsigned int" => Type::I32,
        "long" | "unsigned long" | "long long" | "unsigned long long" => Type::I64,
        _ => return None,
    })
}
