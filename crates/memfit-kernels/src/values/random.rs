//! Random numbers that the device would draw: what the host reads of them is a number that could have been
//! drawn, and nothing follows from it.

use memfit_vocabulary::Assumption;

use super::number::{Type, Value};
use crate::{
    launch::Arguments,
    layout::{ANY, Sizes},
    memory::Memory,
    name::{Signature, type_parts},
};

/// Numbers that are guessed at: more of them are data.
const MOST: usize = 256;

/// Where the law's own fields begin: behind the address, and what the compiler wraps a lambda that captures
/// something with.
const LAW: usize = 16;
/// A range beyond this is not believed.
const MOST_RANGE: u64 = 1 << 40;

/// A kernel that draws numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Random {
    element: Type,
    law: Law,
}

/// What they are drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Law {
    /// Integers from a base on, so many.
    Range,
    /// Real numbers from a base on, within a range.
    Uniform,
    /// Numbers that are greater than zero.
    Positive,
    /// Any others: zero could be one of them.
    Other,
}

impl Random {
    /// From a kernel's name; nothing if it draws no numbers, or none that are known.
    pub(crate) fn of(signature: &Signature) -> Option<Self> {
        if signature.name() != "distribution_elementwise_grid_stride_kernel" {
            return None;
        }
        let store = signature.template(3)?;
        let start = store.find("distribution_nullary_kernel<")?;
        let element = Type::from_cpp(type_parts(&store[start..]).1.first()?)?;
        let law = if store.contains("random_from_to_kernel<") {
            Law::Range
        } else if store.contains("uniform_kernel<") {
            Law::Uniform
        } else if ["exponential_kernel<", "log_normal_kernel<", "geometric_kernel<"]
            .iter()
            .any(|name| store.contains(name))
        {
            Law::Positive
        } else {
            Law::Other
        };
        Some(Self { element, law })
    }

    /// The sizes that its layout gives the parameters.
    pub(super) fn sizes(&self) -> Sizes {
        let law = match self.law {
            Law::Range => LAW + 16,
            Law::Uniform => LAW + 2 * self.element.for_arithmetic().size(),
            Law::Positive | Law::Other => 8,
        };
        vec![8..=8, ANY, ANY, law..=usize::MAX]
    }

    /// Applies a launch: how many, the state, how to draw, where to store; there the address comes first,
    /// then the law's own.
    pub(super) fn apply(&self, arguments: Arguments, memory: &dyn Memory) -> Option<()> {
        let target = arguments.get::<u64>(3)?;
        memory.forget_from(target);
        let count = arguments.get::<i64>(0).and_then(|count| usize::try_from(count).ok())?;
        if count > MOST || !memory.answers() {
            return Some(());
        }
        let mut bytes = vec![0; count * self.element.size()];
        let value = self.likely(arguments, memory).unwrap_or(Value::Int(0));
        bytes.chunks_exact_mut(self.element.size()).for_each(|element| self.element.store(value, element));
        memory.guess(target, &bytes, Assumption::Random);
        Some(())
    }

    fn likely(&self, arguments: Arguments, memory: &dyn Memory) -> Option<Value> {
        let math = self.element.for_arithmetic();
        let real =
            |offset: usize| math.load(&arguments.bytes(3, offset + math.size())?[offset..]).map(Value::real);
        Some(match self.law {
            Law::Range => {
                let (range, base) = (arguments.get_at::<u64>(3, LAW)?, arguments.get_at::<i64>(3, LAW + 8)?);
                // What is no range that a script would ask for was laid out in another way.
                (1..=MOST_RANGE).contains(&range).then_some(())?;
                (-(MOST_RANGE as i64)..=MOST_RANGE as i64).contains(&base).then_some(())?;
                let above = memory.policy()?.between(0, range.checked_sub(1)?);
                Value::Int(base.checked_add_unsigned(above)?)
            }
            Law::Uniform => {
                let (range, base) = (real(LAW)?, real(LAW + math.size())?);
                let middle = base + range / 2.0;
                (middle.is_finite() && middle.abs() < 1e9).then_some(Value::Real(middle))?
            }
            Law::Positive => Value::Int(1),
            Law::Other => Value::Int(0),
        })
    }
}
