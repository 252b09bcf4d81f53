//! PyTorch's reductions (`all`, `any`, `sum`, `max`, `min`), along any dimensions.

use super::{
    effect::Arguments,
    functor::enclosing,
    memory::Memory,
    number::{Type, Value},
    signature::{Signature, type_parts},
    store::Origin,
    strides::Strides,
};

/// What a reduction computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fold {
    All,
    Any,
    Sum,
    Max,
    Min,
    /// Both, the least first.
    MinMax,
}

/// A reduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reduction {
    fold: Fold,
    /// What is read.
    input: Type,
    /// In what it is accumulated.
    accumulator: Type,
    output: Type,
}

/// `all` of what is not known.
pub(super) const ALL: &str = "all: read back, answered true";
/// `any` of what is not known.
pub(super) const ANY: &str = "any: read back, answered false";
/// Elements that are reduced.
const MOST: usize = 1 << 16;
/// Bytes of the configuration, which stands before the calculators of offsets.
const CONFIGURATION: usize = 64;

impl Reduction {
    /// From a kernel's name; nothing if it is of another family or reduces in another way.
    pub(super) fn of(signature: &Signature) -> Option<Self> {
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
        // Operations other than these have fields of their own.
        let [accumulator, function, ..] = wrapped.as_slice() else { return None };
        let fold = match enclosing(function) {
            _ if wrapper == "MinMaxOps" => Fold::MinMax,
            _ if wrapper != "func_wrapper_t" => return None,
            "and_kernel_cuda" => Fold::All,
            "or_kernel_cuda" => Fold::Any,
            // The lambda stands in the functor's own call operator.
            "sum_functor" => Fold::Sum,
            "MaxNanFunctor" => Fold::Max,
            "MinNanFunctor" => Fold::Min,
            _ => return None,
        };
        Some(Self {
            fold,
            input: Type::from_cpp(scalar)?,
            accumulator: Type::from_cpp(accumulator)?,
            output: Type::from_cpp(output)?,
        })
    }

    /// Applies a launch.
    pub(super) fn apply(&self, arguments: Arguments, memory: &Memory) {
        // The functor is empty; the value to start from follows it, or the two values.
        let size = self.accumulator.size();
        let values = if self.fold == Fold::MinMax { 2 } else { 1 };
        let configuration = (size + values * size).next_multiple_of(4);
        let inputs = configuration + CONFIGURATION;
        let outputs = inputs + Strides::bytes(1);
        let pointers = (outputs + Strides::bytes(2)).next_multiple_of(8);
        let (Some(source), Some(target), Some(bytes)) = (
            arguments.get_at::<u64>(0, pointers),
            arguments.get_at::<u64>(0, pointers + 8),
            arguments.bytes(0, pointers),
        ) else {
            return;
        };
        let word = |offset: usize| Type::I32.load(bytes.get(offset..)?).map(Value::int);
        let (Some(folded), Some(kept)) = (word(configuration + 4), word(configuration + 8)) else { return };
        let (folded, kept) = (folded.max(0) as usize, kept.max(0) as usize);
        let calculators = (Strides::read(&bytes[inputs..], 1), Strides::read(&bytes[outputs..], 2));
        let (Some(along), Some(across)) = calculators else { return };
        if self.fold == Fold::MinMax {
            let second = arguments.get_at::<u64>(0, pointers + 16);
            self.fold_into(Fold::Min, source, target, (folded, kept), &along, &across, memory);
            self.fold_into(
                Fold::Max,
                source,
                second.unwrap_or(target),
                (folded, kept),
                &along,
                &across,
                memory,
            );
        } else {
            self.fold_into(self.fold, source, target, (folded, kept), &along, &across, memory);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one launch in full")]
    fn fold_into(
        &self,
        fold: Fold,
        source: u64,
        target: u64,
        (folded, kept): (usize, usize),
        along: &Strides,
        across: &Strides,
        memory: &Memory,
    ) {
        let result = if memory.perhaps(source) && folded.saturating_mul(kept) <= MOST {
            self.compute(fold, source, folded, kept, along, across, memory)
        } else {
            None
        };
        let dense = kept <= 1 || across.is_dense(0, self.output.size());
        match (result, fold) {
            (Some((bytes, origin)), _) if dense => memory.write(target, &bytes, origin),
            (None, Fold::All) if dense && memory.answers() => {
                memory.fill(target, 1, kept as u64, Origin::Answer(ALL));
            }
            (None, Fold::Any) if dense && memory.answers() => {
                memory.fill(target, 0, kept as u64, Origin::Answer(ANY));
            }
            _ => memory.forget(target, across.span(0, self.output.size())),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one launch in full")]
    fn compute(
        &self,
        fold: Fold,
        source: u64,
        folded: usize,
        kept: usize,
        along: &Strides,
        across: &Strides,
        memory: &Memory,
    ) -> Option<(Vec<u8>, Origin)> {
        let span = along.span(0, 0) + across.span(1, 0) + self.input.size() as u64;
        let (bytes, origin) = memory.get(source, span)?;
        let mut out = vec![0; kept * self.output.size()];
        let (mut outer, mut inner) = (Vec::new(), Vec::new());
        for (index, target) in out.chunks_exact_mut(self.output.size()).enumerate() {
            across.offsets(index, &mut outer);
            let mut total: Option<Value> = None;
            for element in 0..folded {
                along.offsets(element, &mut inner);
                let value =
                    self.accumulator.round(self.input.load(bytes.get((outer[1] + inner[0]) as usize..)?)?);
                total = Some(total.map_or(value, |total| self.combine(fold, total, value)));
            }
            self.output.store(total?, target);
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
            Fold::Sum => self.accumulator.round(a.with(b, i64::wrapping_add, |a, b| a + b)),
            Fold::Max => a.with(b, i64::max, nan(f64::max)),
            Fold::Min | Fold::MinMax => a.with(b, i64::min, nan(f64::min)),
        }
    }
}
