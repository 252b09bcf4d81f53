//! Sizes that the host reads back: how many elements `nonzero`, `unique` and boolean indexing found.
//!
//! The kernels are CUB's and Thrust's. Where their input is known the size is counted; where it is not, it
//! lies between nothing and the number of items, where the policy says.

use memfit_vocabulary::Assumption;

use super::number::Type;
use crate::{
    launch::Arguments,
    layout::{ANY, Sizes},
    memory::{Mask, Memory, Ones, Origin},
    name::{Signature, type_parts},
};

/// Elements that are counted.
const MOST: u64 = 1 << 20;

/// A kernel that writes a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// The argument that is the address of the size, and its type.
    target: (usize, Type),
    /// The argument that is the number of items, and its type.
    items: (usize, Type),
    rule: Assumption,
    /// What is counted, for sizes that are a count of elements that are not zero.
    counted: Option<Counted>,
}

/// What a counting reduction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    /// Elements of this type, through an iterator that tells which are not zero.
    Elements(Type),
    /// Counts of the parts of the input, which another kernel has made.
    Partial,
}

impl Size {
    /// From a kernel's name; nothing if it writes no size.
    pub(crate) fn of(signature: &Signature) -> Option<Self> {
        let (target, items, rule, counted) = match signature.name() {
            "DeviceReduceSingleTileKernel" | "DeviceReduceKernel" => {
                (1, 2, Assumption::Nonzero, Some(counted(signature.param(0)?)?))
            }
            // Selecting by a mask writes the size that was counted before.
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

    /// The sizes that its layout gives the parameters.
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
            Some(Counted::Elements(element)) => count(element, items, arguments, memory),
            Some(Counted::Partial) => {
                arguments.get::<u64>(0).and_then(|source| partial(kind, source, memory))
            }
            None => None,
        };
        let known =
            memory.expected().filter(|size| *size <= items).map(|size| (size, Origin::True)).or(known);
        // What has elements has at least one that is unique.
        let least = u64::from(self.rule == Assumption::Unique).min(items);
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
        Some(Ones::Of(mask)) => Some(mask),
        None if !memory.perhaps(source) => {
            let mask = Mask::new(None);
            memory.mark_flags(source, items, Ones::Of(mask));
            Some(mask)
        }
        _ => None,
    }
}

/// Counts the elements that are not zero, if they are known.
fn count(element: Type, items: u64, arguments: Arguments, memory: &dyn Memory) -> Option<(u64, Origin)> {
    if items > MOST {
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

/// The counts of the parts: the first kernel leaves the whole count in the first of them.
fn partial(kind: Type, source: u64, memory: &dyn Memory) -> Option<(u64, Origin)> {
    let (bytes, origin) = memory.get(source, kind.size() as u64)?;
    Some((kind.load(&bytes)?.int() as u64, origin))
}

/// What the input iterator of a reduction counts.
fn counted(iterator: &str) -> Option<Counted> {
    if let Some(pointee) = iterator.strip_suffix('*') {
        return (integer(pointee.trim_end_matches(" const"))? == Type::I32).then_some(Counted::Partial);
    }
    let start = iterator.find("NonZeroOp<")?;
    let (_, arguments) = type_parts(&iterator[start..]);
    // Of a type that is not modelled nothing is ever known; its size is all that matters, and not even that.
    Some(Counted::Elements(Type::from_cpp(arguments.first()?).unwrap_or(Type::U8)))
}

fn integer(name: &str) -> Option<Type> {
    Some(match name.trim() {
        "int" | "unsigned int" => Type::I32,
        "long" | "unsigned long" | "long long" | "unsigned long long" => Type::I64,
        _ => return None,
    })
}
