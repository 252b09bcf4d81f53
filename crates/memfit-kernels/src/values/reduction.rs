//! PyTorch's reductions (`all`, `any`, `sum`, `mean`, `max`, `min`, `argmax`, `argmin`), along any
//! dimensions.

use memfit_vocabulary::Assumption;

use super::{
    functor::{enclosing, operand},
    histogram::spread,
    number::{Type, Value},
};
use crate::{
    launch::Arguments,
    layout::{Sizes, Strides},
    memory::{Mask, Memory, Ones, Origin},
    name::{Signature, type_parts},
};

/// Operation of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fold {
    All,
    Any,
    Sum,
    Mean,
    Max,
    Min,
    /// Both; the minimum is first.
    MinMax,
    /// Index of the maximum.
    ArgMax,
    /// Index of the minimum.
    ArgMin,
    /// The maximum and its index.
    MaxAndWhere,
    /// The minimum and its index.
    MinAndWhere,
}

impl Fold {
    /// Returns `true` if each value is accumulated together with its index.
    fn keeps_index(self) -> bool {
        matches!(self, Self::ArgMax | Self::ArgMin | Self::MaxAndWhere | Self::MinAndWhere)
    }

    /// Operations of the one or two outputs.
    fn outputs(self) -> (Self, Option<Self>) {
        match self {
            Self::MinMax => (Self::Min, Some(Self::Max)),
            Self::MaxAndWhere => (Self::Max, Some(Self::ArgMax)),
            Self::MinAndWhere => (Self::Min, Some(Self::ArgMin)),
            one => (one, None),
        }
    }
}

/// A reduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reduction {
    fold: Fold,
    /// Type of the input.
    input: Type,
    /// Type of the accumulator.
    accumulator: Type,
    output: Type,
}

/// Maximum elements that are reduced.
const MAX_ELEMENTS: usize = 1 << 16;
/// Bytes of the configuration, which precedes the offset calculators.
const CONFIGURATION_BYTES: usize = 64;

/// A launch, as described by its arguments.
struct Launch<'a> {
    source: u64,
    folded: usize,
    kept: usize,
    along: Strides,
    across: Strides,
    memory: &'a dyn Memory,
}

impl Reduction {
    /// Recognises a kernel by its name; `None` for other families and other reductions.
    pub(crate) fn from_signature(signature: &Signature) -> Option<Self> {
        if signature.name() != "reduce_kernel" {
            return None;
        }
        let (name, arguments) = type_parts(signature.template(2)?);
        let [scalar, operation, index, output, ..] = arguments.as_slice() else { return None };
        let (wrapper, wrapped) = type_parts(operation);
        // Tensors beyond 32-bit indices have another layout.
        if name != "ReduceOp" || *index != "unsigned int" {
            return None;
        }
        // Other operations have their own fields.
        let fold = match wrapper {
            "MinMaxOps" => Fold::MinMax,
            "ArgMaxOps" => Fold::ArgMax,
            "ArgMinOps" => Fold::ArgMin,
            "MaxOps" => Fold::MaxAndWhere,
            "MinOps" => Fold::MinAndWhere,
            "MeanOps" => Fold::Mean,
            "func_wrapper_t" => match enclosing(wrapped.get(1)?) {
                "and_kernel_cuda" => Fold::All,
                "or_kernel_cuda" => Fold::Any,
                // The lambda is in the functor's own call operator.
                "sum_functor" => Fold::Sum,
                "MaxNanFunctor" => Fold::Max,
                "MinNanFunctor" => Fold::Min,
                _ => return None,
            },
            _ => return None,
        };
        let named = || Type::from_cpp(wrapped.get(usize::from(fold == Fold::Mean))?);
        // The combined values have the type of the lambda's parameters: single precision, for sums in half.
        let combined =
            wrapped.get(1).filter(|_| wrapper == "func_wrapper_t").and_then(|inner| operand(inner));
        Some(Self {
            fold,
            input: Type::from_cpp(scalar)?,
            accumulator: combined.or_else(named)?,
            output: Type::from_cpp(output)?,
        })
    }

    /// Sizes of the parameters in its layout: the offsets are followed by six addresses, the index of the
    /// first output, two truth values and the number of outputs.
    pub(super) fn sizes(&self) -> Sizes {
        let end = self.pointers() + 6 * 8 + 16;
        vec![end..=end.next_multiple_of(16)]
    }

    /// Offset of the addresses.
    fn pointers(&self) -> usize {
        let outputs = self.configuration() + CONFIGURATION_BYTES + Strides::bytes(1);
        (outputs + Strides::bytes(2)).next_multiple_of(8)
    }

    /// Applies a launch.
    pub(super) fn apply(&self, arguments: Arguments, memory: &dyn Memory) -> Option<()> {
        self.try_apply(arguments, memory)
    }

    fn try_apply(&self, arguments: Arguments, memory: &dyn Memory) -> Option<()> {
        let inputs = self.configuration() + CONFIGURATION_BYTES;
        let outputs = inputs + Strides::bytes(1);
        let pointers = self.pointers();
        let bytes = arguments.bytes(0, pointers)?;
        let word = |offset: usize| Type::I32.load(bytes.get(offset..)?).map(Value::int);
        let count = |offset: usize| word(self.configuration() + offset).map(|count| count.max(0) as usize);
        let launch = Launch {
            source: arguments.get_at::<u64>(0, pointers)?,
            folded: count(4)?,
            kept: count(8)?,
            along: Strides::read(&bytes[inputs..], 1)?,
            across: Strides::read(&bytes[outputs..], 2)?,
            memory,
        };
        let target = arguments.get_at::<u64>(0, pointers + 8)?;
        let (first, second) = self.fold.outputs();
        self.fold_into(first, target, &launch);
        if let Some(second) = second {
            let target = arguments.get_at::<u64>(0, pointers + 16)?;
            self.fold_into(second, target, &launch);
        }
        Some(())
    }

    /// Offset of the configuration: after the functor and the initial value, or the two values.
    fn configuration(&self) -> usize {
        let size = self.accumulator.size();
        match self.fold {
            // An empty functor; a value and its 64-bit index.
            fold if fold.keeps_index() => 8 + (size.next_multiple_of(8) + 8),
            Fold::MinMax => (3 * size).next_multiple_of(4),
            // An empty functor, or a factor.
            _ => (2 * size).next_multiple_of(4),
        }
    }

    fn output_type(&self, fold: Fold) -> Type {
        match (fold, self.fold) {
            (Fold::ArgMax | Fold::ArgMin, _) => Type::I64,
            _ => self.output,
        }
    }

    fn fold_into(&self, fold: Fold, target: u64, launch: &Launch<'_>) {
        let Launch { folded, kept, memory, .. } = *launch;
        let output = self.output_type(fold);
        let result = if memory.perhaps(launch.source) && folded.saturating_mul(kept) <= MAX_ELEMENTS {
            self.compute(fold, output, launch)
        } else {
            None
        };
        let dense = kept <= 1 || launch.across.is_dense(0, output.size());
        let (bytes, origin) = match result {
            Some(result) if dense => result,
            // The truth of each row is no condition, but an element of a mask, which may be counted.
            None if dense && kept > 1 && output.size() == 1 && matches!(fold, Fold::All | Fold::Any) => {
                memory.forget(target, kept as u64);
                if memory.rules_answer() {
                    let (truth, rule) = Self::supposed_truth(fold, launch);
                    memory.mark_flags(target, kept as u64, Ones::OfMask(Mask::answering(truth, rule)));
                }
                return;
            }
            None if dense && kept <= MAX_ELEMENTS => match Self::assumed_result(fold, output, launch) {
                Some(supposed) => supposed,
                None => return memory.forget(target, launch.across.span(0, output.size())),
            },
            _ => return memory.forget(target, launch.across.span(0, output.size())),
        };
        if let Origin::Guess(rule) = origin {
            if !memory.guess(target, &bytes, rule) {
                memory.forget(target, bytes.len() as u64);
            }
        } else {
            memory.write(target, &bytes, origin);
        }
    }

    /// Result assumed for an unknown input.
    fn assumed_result(fold: Fold, output: Type, launch: &Launch<'_>) -> Option<(Vec<u8>, Origin)> {
        let Launch { folded, kept, memory, .. } = *launch;
        if let (Fold::Max | Fold::Min, true) = (fold, output.is_integer())
            && let Some(found) = Self::known_bounds(fold, output, launch)
        {
            return Some(found);
        }
        let policy = memory.policy()?;
        let zeros = || vec![0; kept * output.size()];
        Some(match fold {
            Fold::All | Fold::Any => {
                let (truth, rule) = Self::supposed_truth(fold, launch);
                let mut bytes = zeros();
                bytes
                    .chunks_exact_mut(output.size())
                    .for_each(|element| output.store(Value::from(truth), element));
                (bytes, Origin::Answer(rule))
            }
            Fold::Sum if output.is_integer() => match memory.flags(launch.source) {
                Some(ones) => {
                    let most = folded as u64;
                    let (counts, rule) = match ones {
                        Ones::Exactly(ones) if kept > 1 => {
                            (spread(ones, kept, most, policy), Assumption::Histogram)
                        }
                        Ones::Exactly(ones) => (vec![ones.min(most); kept], Assumption::TrueCount),
                        Ones::OfMask(mask) => {
                            let ones = mask.count(most * kept as u64, policy).div_ceil(kept.max(1) as u64);
                            (vec![ones; kept], Assumption::TrueCount)
                        }
                    };
                    let mut bytes = zeros();
                    for (element, count) in bytes.chunks_exact_mut(output.size()).zip(counts) {
                        output.store(Value::Int(count as i64), element);
                    }
                    (bytes, Origin::Answer(rule))
                }
                None => (zeros(), Origin::Guess(Assumption::IntegerSum)),
            },
            Fold::Max | Fold::Min if output.is_integer() => {
                (zeros(), Origin::Guess(Assumption::IntegerExtreme))
            }
            Fold::ArgMax | Fold::ArgMin => (zeros(), Origin::Guess(Assumption::Position)),
            _ => return None,
        })
    }

    /// Truth that `all` or `any` of an unknown input is read as, and the rule.
    fn supposed_truth(fold: Fold, launch: &Launch<'_>) -> (bool, Assumption) {
        let supposed = match launch.memory.flags(launch.source) {
            Some(Ones::OfMask(mask)) => mask.supposed.map(|truth| (truth, mask.rule)),
            _ => None,
        };
        supposed.unwrap_or(if fold == Fold::All {
            (true, Assumption::AllTrue)
        } else {
            (false, Assumption::UnknownAny)
        })
    }

    /// Extremes of an input of which only the extremes are known. For a part of it, or along a dimension,
    /// they are bounds.
    fn known_bounds(fold: Fold, output: Type, launch: &Launch<'_>) -> Option<(Vec<u8>, Origin)> {
        let Launch { source, folded, kept, memory, .. } = *launch;
        let size = output.size();
        let span = launch.along.span(0, 0) + launch.across.span(1, 0) + size as u64;
        let ((least, greatest), are_in_it) = memory.bounds(source, span, size)?;
        let whole = kept == 1 && span == (folded * size) as u64;
        let exact = whole && are_in_it;
        if !exact {
            memory.policy()?;
        }
        let value = if fold == Fold::Max { greatest } else { least };
        let mut bytes = vec![0; kept * size];
        bytes.chunks_exact_mut(size).for_each(|element| output.store(Value::Int(value), element));
        Some((bytes, if exact { Origin::True } else { Origin::Answer(Assumption::IntegerExtreme) }))
    }

    fn compute(&self, fold: Fold, output: Type, launch: &Launch<'_>) -> Option<(Vec<u8>, Origin)> {
        let Launch { folded, kept, along, across, .. } = launch;
        let span = along.span(0, 0) + across.span(1, 0) + self.input.size() as u64;
        let (bytes, origin) = launch.memory.get(launch.source, span)?;
        let mut out = vec![0; kept * output.size()];
        let (mut outer, mut inner) = (Vec::new(), Vec::new());
        for (index, target) in out.chunks_exact_mut(output.size()).enumerate() {
            across.offsets(index, &mut outer);
            let mut total: Option<Value> = None;
            let mut best = 0;
            for element in 0..*folded {
                along.offsets(element, &mut inner);
                let value =
                    self.accumulator.round(self.input.load(bytes.get((outer[1] + inner[0]) as usize..)?)?);
                let next = total.map_or(value, |total| self.combine(fold, total, value));
                // The first among equals.
                if total.is_some_and(|total| total != next) {
                    best = element;
                }
                total = Some(next);
            }
            let result = match fold {
                Fold::ArgMax | Fold::ArgMin => total.map(|_| Value::Int(best as i64)),
                Fold::Mean => total.map(|total| Value::Real(total.real() / *folded as f64)),
                _ => total,
            };
            output.store(result?, target);
        }
        Some((out, origin))
    }

    fn combine(&self, fold: Fold, a: Value, b: Value) -> Value {
        let nan = |choose: fn(f64, f64) -> f64| {
            move |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { choose(a, b) }
        };
        match fold {
            Fold::All => Value::from(a.is_true() && b.is_true()),
            Fold::Any => Value::from(a.is_true() || b.is_true()),
            Fold::Sum | Fold::Mean => self.accumulator.round(a.combine(b, i64::wrapping_add, |a, b| a + b)),
            Fold::Max | Fold::ArgMax | Fold::MaxAndWhere => a.combine(b, i64::max, nan(f64::max)),
            Fold::Min | Fold::ArgMin | Fold::MinAndWhere | Fold::MinMax => {
                a.combine(b, i64::min, nan(f64::min))
            }
        }
    }
}
