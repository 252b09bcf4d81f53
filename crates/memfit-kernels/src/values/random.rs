//! Random numbers that the device would draw: the host reads a plausible number, and nothing is derived from
//! it.

use memfit_vocabulary::Assumption;

use super::number::{Type, Value};
use crate::{
    launch::Arguments,
    layout::{ANY, Sizes},
    memory::Memory,
    name::{Signature, type_parts},
};

/// Maximum numbers that are guessed: more of them are data.
const MAX_GUESSES: usize = 256;

/// Offset of the distribution's own fields: after the address, and what the compiler wraps a capturing lambda
/// with.
const FIELDS_OFFSET: usize = 16;
/// Offset of the fields of a uniform distribution, which begin at a multiple of the size of their type.
const UNIFORM_OFFSET: usize = 12;
/// Maximum range that is plausible.
const MAX_RANGE: u64 = 1 << 40;

/// A kernel that draws numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Random {
    element: Type,
    distribution: Distribution,
}

/// Distribution that they are drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distribution {
    /// Integers from a base on, within a range.
    Range,
    /// Real numbers from a base on, within a range.
    Uniform,
    /// Any other.
    Other,
}

impl Random {
    /// Recognises a kernel by its name; `None` if it draws no numbers, or none of a known distribution.
    pub(crate) fn from_signature(signature: &Signature) -> Option<Self> {
        if signature.name() != "distribution_elementwise_grid_stride_kernel" {
            return None;
        }
        let store = signature.template(3)?;
        let start = store.find("distribution_nullary_kernel<")?;
        let element = Type::from_cpp(type_parts(&store[start..]).1.first()?)?;
        let distribution = if store.contains("random_from_to_kernel<") {
            Distribution::Range
        } else if store.contains("uniform_kernel<") {
            Distribution::Uniform
        } else {
            Distribution::Other
        };
        Some(Self { element, distribution })
    }

    /// Sizes of the parameters in its layout.
    pub(super) fn sizes(&self) -> Sizes {
        let distribution = match self.distribution {
            Distribution::Range => FIELDS_OFFSET + 16,
            Distribution::Uniform => UNIFORM_OFFSET + self.element.for_arithmetic().size(),
            Distribution::Other => 8,
        };
        vec![8..=8, ANY, ANY, distribution..=usize::MAX]
    }

    /// Applies a launch. Its arguments are the count, the state, the drawing function, and the storing
    /// lambda, which begins with the address, followed by the distribution's fields.
    pub(super) fn apply(&self, arguments: Arguments, memory: &dyn Memory) -> Option<()> {
        let target = arguments.get::<u64>(3)?;
        memory.forget_from(target);
        let count = arguments.get::<i64>(0).and_then(|count| usize::try_from(count).ok())?;
        if count > MAX_GUESSES || !memory.rules_answer() {
            return Some(());
        }
        let mut bytes = vec![0; count * self.element.size()];
        let Some(value) = self.plausible_value(arguments, memory) else { return Some(()) };
        bytes.chunks_exact_mut(self.element.size()).for_each(|element| self.element.store(value, element));
        memory.guess(target, &bytes, Assumption::Random);
        Some(())
    }

    /// Range and lower end of uniform numbers. The lambda holds the range in the type of the arithmetic, then
    /// both ends in the elements' own type, which confirm the layout.
    fn uniform_bounds(&self, arguments: Arguments) -> Option<(f64, f64)> {
        let (math, own) = (self.element.for_arithmetic(), self.element);
        let start = UNIFORM_OFFSET.next_multiple_of(math.size());
        let end = start + math.size() + 2 * own.size();
        let bytes = arguments.bytes(3, end)?;
        let range = math.load(bytes.get(start..)?)?.real();
        let from = own.load(bytes.get(end - 2 * own.size()..)?)?.real();
        let to = own.load(bytes.get(end - own.size()..)?)?.real();
        let fits = range > 0.0 && range < MAX_RANGE as f64 && (from + range - to).abs() <= range * 0.01;
        fits.then_some((range, from))
    }

    fn plausible_value(&self, arguments: Arguments, memory: &dyn Memory) -> Option<Value> {
        Some(match self.distribution {
            Distribution::Range => {
                let (range, base) = (
                    arguments.get_at::<u64>(3, FIELDS_OFFSET)?,
                    arguments.get_at::<i64>(3, FIELDS_OFFSET + 8)?,
                );
                // An implausible range indicates another layout.
                (1..=MAX_RANGE).contains(&range).then_some(())?;
                (-(MAX_RANGE as i64)..=MAX_RANGE as i64).contains(&base).then_some(())?;
                let above = memory.policy()?.between(0, range.checked_sub(1)?);
                Value::Int(base.checked_add_unsigned(above)?)
            }
            Distribution::Uniform => {
                let (range, base) = self.uniform_bounds(arguments)?;
                // Neither end: a script may take a logarithm, and the upper one is not drawn. All types
                // represent it exactly.
                let share = memory.policy()?.between(1, 255) as f64 / 256.0;
                Value::Real(base + range * share)
            }
            // They have no bounds.
            Distribution::Other => return None,
        })
    }
}
