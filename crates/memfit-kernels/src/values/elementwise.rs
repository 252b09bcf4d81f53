//! PyTorch's elementwise kernels: the elements that a launch computes, and their operands.

use super::{
    functor::{Functor, Rule},
    number::{Type, Value},
    range::Range,
};
use crate::{
    launch::Arguments,
    layout::{ANY, Sizes, Strides, capturing},
    memory::{Extremes, Mask, Memory, Ones, Origin},
    name::{Signature, type_parts},
};

/// Order in which a kernel moves its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// One after the other, in elements of one size.
    Dense,
    /// One after the other, in elements that may differ in size.
    Converting,
    /// By strides.
    Strided,
}

/// Layout of a launch's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Count, functor, addresses; contiguous tensors of the functor's types.
    Dense,
    /// The same, then offsets of the inputs and of the output, then the loaders and storers of elements.
    Unrolled { strided_inputs: bool, strided_output: bool, cast: bool },
    /// Count, and a lambda that holds offsets, addresses, functor and perhaps the tensors' types.
    Strided { cast: bool },
    /// Count, and the numbers that define a range, address.
    Range(Range),
}

/// An elementwise kernel.
#[derive(Clone, Debug)]
pub(crate) struct Elementwise {
    form: Form,
    /// `None` if the functor's types cannot be determined.
    functor: Option<Functor>,
    /// Number of input tensors.
    inputs: usize,
    /// Bytes per element derived from the name, for a functor of unknown types.
    element: f64,
}

/// Output and inputs of the widest functor.
const MAX_TENSORS: usize = 8;
/// Maximum elements that are computed, for types whose values scripts read.
pub(super) const MAX_INTEGERS: usize = 1 << 16;
/// The same for floating-point numbers, which are mostly pixels and weights.
pub(super) const MAX_REALS: usize = 1 << 12;
/// Maximum elements that are written one by one.
const MAX_SCATTERED: usize = 1 << 6;

/// Tensors of a launch: the output, then the inputs.
struct Tensors {
    count: usize,
    addresses: [u64; MAX_TENSORS],
}

/// A launch with its types, strides and functor fields.
struct Work {
    types: Vec<Type>,
    strides: Strides,
    fields: Vec<u8>,
}

impl Elementwise {
    /// Recognises a kernel by its name; `None` for other families.
    pub(crate) fn from_signature(signature: &Signature) -> Option<Self> {
        match signature.name() {
            "vectorized_elementwise_kernel" => {
                Self::new(Form::Dense, signature.template(1)?, signature.template(2)?)
            }
            "unrolled_elementwise_kernel" => {
                let strided = |index| {
                    signature.template(index).is_some_and(|text| type_parts(text).0 == "OffsetCalculator")
                };
                let cast = signature.template(5).is_some_and(|text| type_parts(text).0 == "LoadWithCast");
                let form = Form::Unrolled { strided_inputs: strided(3), strided_output: strided(4), cast };
                Self::new(form, signature.template(0)?, signature.template(1)?)
            }
            "elementwise_kernel" => {
                let lambda = signature.template(2)?;
                let start = lambda.find("gpu_kernel_impl")?;
                let (name, arguments) = type_parts(&lambda[start..]);
                let cast = match name {
                    "gpu_kernel_impl" => true,
                    "gpu_kernel_impl_nocast" => false,
                    _ => return None,
                };
                let functor = Functor::from_cpp(arguments.first()?)?;
                let inputs = functor.inputs.len();
                (inputs < MAX_TENSORS).then_some(Self {
                    form: Form::Strided { cast },
                    functor: Some(functor),
                    inputs,
                    element: 4.0,
                })
            }
            "elementwise_kernel_with_index" => {
                let range = Range::from_cpp(signature.template(1)?)?;
                Some(Self { form: Form::Range(range), functor: None, inputs: 0, element: 4.0 })
            }
            _ => None,
        }
    }

    fn new(form: Form, functor: &str, addresses: &str) -> Option<Self> {
        // `std::array<char*, (unsigned long)3>`
        let (_, parts) = type_parts(addresses);
        let digits = parts.get(1)?.rsplit(')').next()?.trim_end_matches("ul");
        let tensors: usize = digits.parse().ok().filter(|tensors| (1..=MAX_TENSORS).contains(tensors))?;
        let element = Type::mentioned(functor) as f64;
        let functor = Functor::from_cpp(functor).filter(|functor| functor.inputs.len() + 1 == tensors);
        Some(Self { form, functor, inputs: tensors - 1, element })
    }

    /// Bytes that a launch reads and writes. Broadcast data is read from memory once, then from the cache.
    pub(crate) fn bytes(&self, arguments: Arguments) -> Option<f64> {
        let count = f64::from(arguments.get::<i32>(0).filter(|count| *count > 0)?);
        if let Form::Range(range) = self.form {
            return Some(count * range.kind().size() as f64);
        }
        let size = |tensor: usize| match &self.functor {
            Some(functor) if tensor == 0 => functor.output.size() as f64,
            Some(functor) => functor.inputs.get(tensor - 1).map_or(4.0, |kind| kind.size() as f64),
            None => self.element,
        };
        let all = self.inputs + 1;
        Some(match self.form {
            Form::Strided { .. } => (0..all)
                .map(|tensor| {
                    Strides::bytes_moved(arguments, all, tensor, size(tensor)).unwrap_or(size(tensor) * count)
                })
                .sum(),
            _ => (0..all).map(|tensor| size(tensor) * count).sum(),
        })
    }

    /// Order in which it moves its operands.
    pub(crate) fn access(&self) -> Access {
        match self.form {
            Form::Dense => Access::Dense,
            Form::Unrolled { strided_inputs: false, strided_output: false, .. } | Form::Range(_) => {
                Access::Converting
            }
            Form::Unrolled { .. } | Form::Strided { .. } => Access::Strided,
        }
    }

    /// Sizes of the parameters in its layout.
    pub(super) fn sizes(&self) -> Sizes {
        let all = self.inputs + 1;
        // The fields of an unmodelled functor are not read.
        let modelled = self.functor.as_ref().filter(|functor| functor.rule.is_some());
        let fields = |before: usize, behind: usize| match modelled {
            Some(functor) => {
                let end = before + functor.size + behind;
                end..=if before == 0 { end.next_multiple_of(8) } else { capturing(end) }
            }
            None => before..=usize::MAX,
        };
        let dense = || vec![4..=4, fields(0, 0), 8 * all..=8 * all];
        match self.form {
            Form::Dense | Form::Unrolled { cast: false, .. } => dense(),
            Form::Unrolled { cast: true, .. } => {
                let places = self.inputs.max(1);
                let loader = places.next_multiple_of(4) + 4 * places;
                [dense(), vec![ANY, ANY, loader..=loader, 8..=8]].concat()
            }
            Form::Strided { cast } => {
                let start = Strides::bytes(all).next_multiple_of(8) + 8 * all;
                vec![4..=4, fields(start, if cast { all } else { 0 })]
            }
            Form::Range(range) => {
                let lambda = capturing(range.fields());
                vec![4..=8, lambda..=lambda, 8..=8]
            }
        }
    }

    /// Applies a launch.
    pub(super) fn apply(&self, arguments: Arguments, memory: &dyn Memory) -> Option<()> {
        if let Form::Range(range) = self.form {
            return range.apply(arguments, memory);
        }
        let tensors = self.tensors(arguments)?;
        if tensors.count == 0 {
            return Some(());
        }
        let inputs = &tensors.addresses[1..=self.inputs];
        let known = inputs.iter().all(|address| memory.perhaps(*address));
        let Some(functor) = &self.functor else {
            // The type of the elements is unknown, too.
            memory.forget_block(tensors.addresses[0]);
            return Some(());
        };
        let masked = functor.carries_flags() && memory.rules_answer();
        let half_known = functor.is_decisive() && inputs.iter().any(|address| memory.perhaps(*address));
        if !known && self.form == Form::Dense && functor.output != Type::Bool && !masked && !half_known {
            // By far the most common case: nothing is known, and nothing can be derived.
            memory.forget(tensors.addresses[0], (tensors.count * functor.output.size()) as u64);
            return Some(());
        }
        let Some(work) = self.work(functor, &tensors, arguments) else {
            memory.forget_block(tensors.addresses[0]);
            return Some(());
        };
        let computed = if known { compute(functor, &tensors, &work, memory) } else { None };
        let computed = computed
            .or_else(|| half_known.then(|| compute_decided(functor, &tensors, &work, memory)).flatten());
        if let Some((bytes, origin)) = computed {
            write_output(&bytes, origin, &tensors, &work, memory);
        } else if !assume(functor, &tensors, &work, memory) {
            memory.forget(tensors.addresses[0], work.strides.span(0, work.types[0].size()));
            if masked {
                carry_flags(&tensors, &work, memory);
                carry_extremes(&tensors, &work, memory);
            }
        }
        Some(())
    }

    #[inline]
    fn tensors(&self, arguments: Arguments) -> Option<Tensors> {
        let count = usize::try_from(arguments.get::<i32>(0)?).ok()?;
        let mut addresses = [0; MAX_TENSORS];
        let (argument, offset) = match self.form {
            Form::Strided { .. } => (1, Strides::bytes(self.inputs + 1).next_multiple_of(8)),
            _ => (2, 0),
        };
        for (index, address) in addresses[..=self.inputs].iter_mut().enumerate() {
            *address = arguments.get_at(argument, offset + 8 * index)?;
        }
        Some(Tensors { count, addresses })
    }

    fn work(&self, functor: &Functor, tensors: &Tensors, arguments: Arguments) -> Option<Work> {
        let all = self.inputs + 1;
        let own: Vec<Type> = std::iter::once(functor.output).chain(functor.inputs.iter().copied()).collect();
        let dense = |types: &[Type]| {
            let sizes: Vec<usize> = types.iter().map(|kind| kind.size()).collect();
            Strides::dense(tensors.count, &sizes)
        };
        match self.form {
            Form::Dense | Form::Unrolled { strided_inputs: false, strided_output: false, cast: false } => {
                Some(Work { strides: dense(&own), types: own, fields: arguments.bytes(1, functor.fields())? })
            }
            Form::Unrolled { strided_inputs: false, strided_output: false, cast: true } => {
                let stored: u8 = arguments.get(6)?;
                let mut types = vec![Type::from_code(stored)?];
                for index in 0..self.inputs {
                    types.push(Type::from_code(arguments.get_at(5, index)?)?);
                }
                Some(Work { strides: dense(&types), types, fields: arguments.bytes(1, functor.fields())? })
            }
            Form::Strided { cast } => {
                let calculator = Strides::bytes(all);
                let start = calculator.next_multiple_of(8) + 8 * all;
                let bytes = arguments.bytes(1, start + functor.fields() + all)?;
                let types = if cast {
                    let codes = start + functor.size;
                    bytes
                        .get(codes..codes + all)?
                        .iter()
                        .map(|code| Type::from_code(*code))
                        .collect::<Option<_>>()?
                } else {
                    own
                };
                let strides = Strides::read(&bytes, all)?;
                Some(Work { types, strides, fields: bytes[start..].to_vec() })
            }
            Form::Unrolled { .. } | Form::Range(_) => None,
        }
    }
}

/// Carries flags: truth values converted to numbers are zeros and ones, which bounds their sum.
fn carry_flags(tensors: &Tensors, work: &Work, memory: &dyn Memory) {
    let [_, input] = work.types.as_slice() else { return };
    let flags = memory.flags(tensors.addresses[1]);
    let flags =
        flags.or_else(|| (*input == Type::Bool).then(|| Ones::OfMask(mask(1, tensors, work, memory))));
    if let Some(ones) = flags
        && work.strides.is_dense(0, work.types[0].size())
    {
        let bytes = (tensors.count * work.types[0].size()) as u64;
        // Ones wider than a byte are not read as the host would read them.
        let ones = match ones {
            Ones::OfMask(mask) if work.types[0].size() > 1 => Ones::OfMask(mask.unsupposed()),
            ones => ones,
        };
        memory.mark_flags(tensors.addresses[0], bytes, ones);
    }
}

/// Carries extremes: integers that are copied as integers keep the least and the greatest. A strided input
/// may leave them out.
fn carry_extremes(tensors: &Tensors, work: &Work, memory: &dyn Memory) {
    let [Type::U8 | Type::I32 | Type::I64, Type::U8 | Type::I32 | Type::I64] = work.types[..] else { return };
    let [output, input] = [0, 1].map(|tensor| work.types[tensor].size());
    let span = work.strides.span(1, input);
    let Some((range, occur)) = memory.bounds(tensors.addresses[1], span, input) else { return };
    let length = (tensors.count * output) as u64;
    let whole = if occur && work.strides.is_dense(1, input) { length } else { length.saturating_add(1) };
    if work.strides.is_dense(0, output)
        && let Some(extremes) = Extremes::of_integers(output, range, whole)
    {
        memory.mark_extremes(tensors.addresses[0], length, extremes);
    }
}

/// Returns the mask that represents a tensor of unknown truth values; creates and records it if necessary.
fn mask(tensor: usize, tensors: &Tensors, work: &Work, memory: &dyn Memory) -> Mask {
    let address = tensors.addresses[tensor];
    if let Some(Ones::OfMask(mask)) = memory.flags(address) {
        return mask;
    }
    let mask = Mask::new(None);
    if !memory.perhaps(address) && work.strides.is_dense(tensor, 1) && memory.rules_answer() {
        memory.mark_flags(address, tensors.count as u64, Ones::OfMask(mask));
    }
    mask
}

/// Records answers that hold for all finite numbers, for single truth values, and relates masks to their
/// complements. Returns `false` if nothing can be derived.
fn assume(functor: &Functor, tensors: &Tensors, work: &Work, memory: &dyn Memory) -> bool {
    let [Type::Bool, inputs @ ..] = work.types.as_slice() else { return false };
    let same = inputs.len() == 2
        && tensors.addresses[1] == tensors.addresses[2]
        && inputs[0] == inputs[1]
        && work.strides.same_strides(1, 2);
    let truths = inputs.iter().all(|kind| *kind == Type::Bool) && functor.takes_elements();
    let known = |tensor: usize| match memory.flags(tensors.addresses[tensor]) {
        Some(Ones::OfMask(mask)) => Some(mask),
        _ => None,
    };
    let made = match (functor.rule, inputs.len()) {
        (Some(Rule::BitNot | Rule::LogicalNot), 1) if truths => Some(!mask(1, tensors, work, memory)),
        (Some(Rule::And | Rule::LogicalAnd | Rule::Multiply), 2) if truths => {
            known(1).zip(known(2)).and_then(|(a, b)| a.combining(b, |a, b| a && b))
        }
        (Some(Rule::Or | Rule::LogicalOr), 2) if truths => {
            known(1).zip(known(2)).and_then(|(a, b)| a.combining(b, |a, b| a || b))
        }
        _ => functor.always(&work.fields, same).map(|value| Mask::new(Some(value.is_true()))),
    };
    match made.filter(|_| work.strides.is_dense(0, 1) && memory.rules_answer()) {
        Some(mask) => {
            memory.forget(tensors.addresses[0], tensors.count as u64);
            memory.mark_flags(tensors.addresses[0], tensors.count as u64, Ones::OfMask(mask));
            true
        }
        None => false,
    }
}

/// Computes the output's elements if one input alone decides them all.
fn compute_decided(
    functor: &Functor,
    tensors: &Tensors,
    work: &Work,
    memory: &dyn Memory,
) -> Option<(Vec<u8>, Origin)> {
    let ([output, inputs @ ..], true) = (work.types.as_slice(), tensors.count <= MAX_INTEGERS) else {
        return None;
    };
    inputs.iter().enumerate().find_map(|(index, kind)| {
        let span = work.strides.span(index + 1, kind.size());
        let (bytes, origin) = memory.get(tensors.addresses[index + 1], span)?;
        let mut elements = bytes.chunks_exact(kind.size()).map_while(|element| kind.load(element));
        let all = elements.all(|value| functor.decides(functor.inputs[index].round(value)));
        // The deciding value is the result: zero, or true.
        let value = Value::from(functor.absorbs_into_true());
        let mut out = vec![0; tensors.count * output.size()];
        out.chunks_exact_mut(output.size()).for_each(|element| output.store(value, element));
        all.then_some((out, origin))
    })
}

/// Computes the output's elements in order, if all inputs are known and there are few enough.
fn compute(
    functor: &Functor,
    tensors: &Tensors,
    work: &Work,
    memory: &dyn Memory,
) -> Option<(Vec<u8>, Origin)> {
    let integers = work.types.iter().all(|kind| kind.is_integer());
    if tensors.count > if integers { MAX_INTEGERS } else { MAX_REALS } {
        return None;
    }
    functor.rule?;
    let mut origin = Origin::True;
    let mut contents = Vec::new();
    for (index, kind) in work.types.iter().enumerate().skip(1) {
        let span = work.strides.span(index, kind.size());
        let (bytes, own) = memory.get(tensors.addresses[index], span)?;
        origin = origin.and(own);
        contents.push(bytes);
    }
    let size = work.types[0].size();
    let mut out = vec![0; tensors.count * size];
    let mut offsets = Vec::new();
    let mut elements: Vec<Value> = Vec::new();
    for (element, target) in out.chunks_exact_mut(size).enumerate() {
        work.strides.offsets(element, &mut offsets);
        elements.clear();
        for (index, content) in contents.iter().enumerate() {
            let loaded = work.types[index + 1].load(content.get(offsets[index + 1] as usize..)?)?;
            elements.push(functor.inputs[index].round(loaded));
        }
        let value = functor.output.round(functor.evaluate(&work.fields, &elements)?);
        work.types[0].store(value, target);
    }
    Some((out, origin))
}

/// Writes the output's elements at their addresses.
fn write_output(bytes: &[u8], origin: Origin, tensors: &Tensors, work: &Work, memory: &dyn Memory) {
    let size = work.types[0].size();
    let start = tensors.addresses[0];
    if work.strides.is_dense(0, size) {
        memory.write(start, bytes, origin);
    } else if tensors.count <= MAX_SCATTERED {
        let mut offsets = Vec::new();
        for (element, value) in bytes.chunks_exact(size).enumerate() {
            work.strides.offsets(element, &mut offsets);
            memory.write(start + offsets[0], value, origin);
        }
    } else {
        memory.forget(start, work.strides.span(0, size));
    }
}
