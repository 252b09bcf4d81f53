//! Ranges of numbers: `arange` and `linspace`.

use super::{
    elementwise::{MAX_INTEGERS, MAX_REALS},
    functor::enclosing,
    number::{Type, Value},
};
use crate::{
    launch::Arguments,
    memory::{Memory, Origin},
};

/// Types of `linspace`'s floating-point lambdas, in the order of their dispatch; `None` for complex numbers.
const FLOATING: [Option<Type>; 6] =
    [Some(Type::F64), Some(Type::F32), None, None, Some(Type::F16), Some(Type::Bf16)];

/// A kernel that makes a range of numbers, with the type of its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Range {
    /// First value and step, in the type in which the kernel computes.
    Arange(Type),
    /// First and last value, number of values, step, half of their number. The second half is computed from
    /// the end.
    Linspace(Type),
}

impl Range {
    /// Parses the name of the lambda of a kernel.
    pub(super) fn from_cpp(lambda: &str) -> Option<Self> {
        let mut positions = lambda
            .split("{lambda()#")
            .skip(1)
            .map_while(|rest| rest.split('}').next()?.parse::<usize>().ok());
        match enclosing(lambda) {
            "arange_cuda_out" => positions.last().and_then(Type::from_dispatch).map(Self::Arange),
            "linspace_cuda_out" => {
                let kind = match (positions.next()?, positions.next()?) {
                    (1, place) => Type::from_dispatch(place).filter(|kind| kind.is_integer()),
                    (2, place) => FLOATING.get(place.checked_sub(1)?).copied().flatten(),
                    _ => None,
                };
                kind.map(Self::Linspace)
            }
            _ => None,
        }
    }

    /// Type of the elements.
    pub(super) fn kind(self) -> Type {
        let (Self::Arange(kind) | Self::Linspace(kind)) = self;
        kind
    }

    /// Type in which the kernel computes. `arange` computes small integers in 64 bits.
    fn math(self) -> Type {
        match self {
            Self::Arange(kind) if kind.is_integer() => Type::I64,
            Self::Arange(kind) => kind.for_arithmetic(),
            Self::Linspace(Type::F64) => Type::F64,
            Self::Linspace(_) => Type::F32,
        }
    }

    /// Bytes of the lambda's fields.
    pub(super) fn fields(self) -> usize {
        match self {
            Self::Arange(_) => 2 * self.math().size(),
            Self::Linspace(kind) => (2 * kind.size()).next_multiple_of(8) + 24,
        }
    }

    /// Applies a launch.
    pub(super) fn apply(self, arguments: Arguments, memory: &dyn Memory) -> Option<()> {
        let (count, target) = (arguments.get::<i32>(0)?, arguments.get::<u64>(2)?);
        let count = usize::try_from(count).unwrap_or(0);
        let kind = self.kind();
        let most = if kind.is_integer() { MAX_INTEGERS } else { MAX_REALS };
        let fields = arguments.bytes(1, self.fields()).filter(|_| count <= most);
        let values = fields.and_then(|fields: Vec<u8>| match self {
            Self::Arange(_) => self.steps(&fields, count),
            Self::Linspace(_) => self.between(&fields, count),
        });
        let Some(values) = values else {
            memory.forget(target, (count * kind.size()) as u64);
            return Some(());
        };
        let mut bytes = vec![0; count * kind.size()];
        for (value, element) in values.into_iter().zip(bytes.chunks_exact_mut(kind.size())) {
            kind.store(value, element);
        }
        memory.write(target, &bytes, Origin::True);
        Some(())
    }

    fn steps(self, fields: &[u8], count: usize) -> Option<Vec<Value>> {
        let math = self.math();
        let (first, step) = (math.load(fields)?, math.load(fields.get(math.size()..)?)?);
        let value = |index: usize| {
            let index = Value::Int(index as i64);
            let distance = math.round(step.combine(index, i64::wrapping_mul, |step, index| step * index));
            first.combine(distance, i64::wrapping_add, |first, distance| first + distance)
        };
        Some((0..count).map(value).collect())
    }

    fn between(self, fields: &[u8], count: usize) -> Option<Vec<Value>> {
        let (kind, math) = (self.kind(), self.math());
        let rest = fields.get((2 * kind.size()).next_multiple_of(8)..)?;
        let rounded = |value: Value| math.round(Value::Real(value.real())).real();
        let (first, last) = (rounded(kind.load(fields)?), rounded(kind.load(fields.get(kind.size()..)?)?));
        let all = Type::I64.load(rest)?.int();
        let step = math.load(rest.get(8..)?)?.real();
        let half = Type::I64.load(rest.get(16..)?)?.int();
        // Product and sum are one operation of the GPU.
        let value = |index: i64| {
            let value = if index < half {
                step.mul_add(index as f64, first)
            } else {
                (-step).mul_add(all.saturating_sub(index).saturating_sub(1) as f64, last)
            };
            math.round(Value::Real(value))
        };
        Some((0..count as i64).map(value).collect())
    }
}
