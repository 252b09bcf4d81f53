//! Functors of PyTorch's elementwise kernels: the modelled computations for one element.
//!
//! A kernel's name contains the C++ type of its functor; the launch contains the functor's fields, such as
//! the number that is added. The modelled operations are those that scripts apply to labels, lengths, masks
//! and single numbers before reading them.

use super::number::{Type, Value};
use crate::{layout::capturing, name::type_parts};

/// A functor: its operation and types.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Functor {
    pub(super) rule: Option<Rule>,
    /// Types of its parameters.
    pub(super) inputs: Vec<Type>,
    /// Type of its result.
    pub(super) output: Type,
    /// A parameter that is a field of the functor instead of an element: its index, offset and type.
    given: Option<(usize, usize, Type)>,
    /// Size of the functor in bytes.
    pub(super) size: usize,
}

/// Operation of a functor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Fill,
    Copy,
    Absolute,
    Negative,
    BitNot,
    LogicalNot,
    /// Equal or not equal, as selected by the functor's first field.
    Equality,
    /// ≥, >, ≤ or <, as selected by the functor's first field.
    Order,
    /// a + alpha × b, with alpha at this offset.
    Add(usize),
    Multiply,
    Divide,
    DivideDown,
    Remainder,
    Greater,
    Lesser,
    And,
    Or,
    Xor,
    LogicalAnd,
    LogicalOr,
    LogicalXor,
    /// Limits at these offsets; the functor's first field selects the ones that apply.
    Clamp(usize, usize),
    /// The first parameter selects between the others.
    Where,
    /// A field replaces the first parameter if the second is true.
    MaskedFill,
}

fn aligned(offset: usize, kind: Type) -> usize {
    offset.next_multiple_of(kind.size())
}

impl Functor {
    /// Parses the functor's C++ type; `None` if its parameters and result cannot be determined.
    pub(super) fn from_cpp(text: &str) -> Option<Self> {
        if text.ends_with('}') {
            return lambda(text);
        }
        let (name, arguments) = type_parts(text);
        let types: Vec<Option<Type>> = arguments.iter().map(|argument| Type::from_cpp(argument)).collect();
        let first = types.first().copied().flatten()?;
        let math = first.for_arithmetic();
        let simple =
            |rule, inputs, output, size| Some(Self { rule: Some(rule), inputs, output, given: None, size });
        match name {
            "FillFunctor" => simple(Rule::Fill, vec![], first, first.size()),
            "AbsFunctor" => simple(Rule::Absolute, vec![first], first, 1),
            "CompareFunctor" => simple(Rule::Order, vec![first; 2], Type::Bool, 4),
            "CUDAFunctor_add" => simple(Rule::Add(0), vec![first; 2], first, math.size()),
            "CUDAFunctorOnSelf_add" | "CUDAFunctorOnOther_add" => {
                let which = usize::from(name == "CUDAFunctorOnSelf_add");
                let rule = Some(Rule::Add(math.size()));
                let given = Some((which, 0, math));
                Some(Self { rule, inputs: vec![first], output: first, given, size: 2 * math.size() })
            }
            "BinaryFunctor" | "AUnaryFunctor" | "BUnaryFunctor" => {
                let (second, output) = (types.get(1).copied().flatten()?, types.get(2).copied().flatten()?);
                let (rule, inner) = inner(arguments.get(3)?);
                // The field has the type of the inner functor's parameter.
                let operand = operand(arguments.get(3)?);
                let field = |kind: Type| {
                    let kind = operand.unwrap_or(kind.for_arithmetic());
                    (aligned(inner, kind), kind)
                };
                let (inputs, given) = match name {
                    "AUnaryFunctor" => (vec![second], Some((0, field(first)))),
                    "BUnaryFunctor" => (vec![first], Some((1, field(second)))),
                    _ => (vec![first, second], None),
                };
                let given = given.map(|(index, (offset, kind))| (index, offset, kind));
                // A field larger than a byte in the inner functor is an integer.
                let size = given.map_or(inner, |(_, offset, kind)| {
                    (offset + kind.size()).next_multiple_of(inner.max(kind.size()))
                });
                Some(Self { rule, inputs, output, given, size })
            }
            _ => None,
        }
    }

    /// Returns `true` if zeros and ones stay zeros and ones, so that a mask's properties hold for its copy.
    pub(super) fn carries_flags(&self) -> bool {
        self.rule == Some(Rule::Copy) && (self.inputs == [Type::Bool] || self.output.is_integer())
    }

    /// Returns `true` if all its parameters are elements.
    pub(super) fn takes_elements(&self) -> bool {
        self.given.is_none()
    }

    /// Returns `true` if one operand may decide the result.
    pub(super) fn is_decisive(&self) -> bool {
        self.takes_elements()
            && matches!(
                self.rule,
                Some(Rule::And | Rule::LogicalAnd | Rule::Multiply | Rule::Or | Rule::LogicalOr)
            )
    }

    /// Returns `true` if the deciding operand is true, and the result with it.
    pub(super) fn absorbs_into_true(&self) -> bool {
        matches!(self.rule, Some(Rule::Or | Rule::LogicalOr))
    }

    /// Returns `true` if an operand decides the result for any other operand: zero times anything, false and
    /// anything.
    pub(super) fn decides(&self, operand: Value) -> bool {
        let integers = self.output.is_integer();
        match self.rule {
            Some(Rule::And | Rule::LogicalAnd) => !operand.is_true(),
            Some(Rule::Multiply) => integers && !operand.is_true(),
            Some(Rule::LogicalOr) => operand.is_true(),
            Some(Rule::Or) => self.output == Type::Bool && operand.is_true(),
            _ => false,
        }
    }

    /// Bytes of the functor that evaluation needs.
    pub(super) fn fields(&self) -> usize {
        self.size.max(8)
    }

    /// Computes one element.
    pub(super) fn evaluate(&self, fields: &[u8], elements: &[Value]) -> Option<Value> {
        let mut parameters = elements.to_vec();
        if let Some((index, offset, kind)) = self.given {
            parameters.insert(index, kind.load(fields.get(offset..)?)?);
        }
        let choice = || Type::I32.load(fields).map(Value::int);
        let math = self.inputs.first().copied().unwrap_or(self.output).for_arithmetic();
        let field = |offset: usize| math.load(fields.get(offset..)?);
        Some(match (self.rule?, parameters.as_slice()) {
            (Rule::Fill, []) => self.output.load(fields)?,
            (Rule::Copy, [a]) => *a,
            (Rule::Absolute, [a]) => a.combine(*a, |a, _| a.wrapping_abs(), |a, _| a.abs()),
            (Rule::Negative, [a]) => a.combine(*a, |a, _| a.wrapping_neg(), |a, _| -a),
            (Rule::BitNot, [a]) if self.output == Type::Bool => Value::from(!a.is_true()),
            (Rule::BitNot, [a]) => Value::Int(!a.int()),
            (Rule::LogicalNot, [a]) => Value::from(!a.is_true()),
            (Rule::Equality, [a, b]) => Value::from((a == b) == (choice()? == 0)),
            (Rule::Order, [a, b]) => Value::from(ordered(choice()?, *a, *b)?),
            (Rule::Add(alpha), [a, b]) => {
                let scaled = b.combine(field(alpha)?, i64::wrapping_mul, |b, alpha| b * alpha);
                a.combine(math.round(scaled), i64::wrapping_add, |a, b| a + b)
            }
            (Rule::Multiply, [a, b]) => a.combine(*b, i64::wrapping_mul, |a, b| a * b),
            (Rule::Divide, [a, b]) => Value::Real(a.real() / b.real()),
            (Rule::DivideDown, [a, b]) => divide_down(*a, *b)?,
            (Rule::Remainder, [a, b]) => remainder(*a, *b)?,
            (Rule::Greater, [a, b]) => a.combine(*b, i64::max, larger),
            (Rule::Lesser, [a, b]) => a.combine(*b, i64::min, smaller),
            (Rule::And, [Value::Int(a), Value::Int(b)]) => Value::Int(a & b),
            (Rule::Or, [Value::Int(a), Value::Int(b)]) => Value::Int(a | b),
            (Rule::Xor, [Value::Int(a), Value::Int(b)]) => Value::Int(a ^ b),
            (Rule::LogicalAnd, [a, b]) => Value::from(a.is_true() && b.is_true()),
            (Rule::LogicalOr, [a, b]) => Value::from(a.is_true() || b.is_true()),
            (Rule::LogicalXor, [a, b]) => Value::from(a.is_true() != b.is_true()),
            (Rule::Clamp(low, high), [a]) => {
                let at_least = |limit: Value| a.combine(limit, i64::max, larger);
                let at_most = |a: Value, limit: Value| a.combine(limit, i64::min, smaller);
                match choice()? {
                    0 => at_least(field(low)?),
                    1 => at_most(*a, field(low)?),
                    _ => at_most(at_least(field(low)?), field(high)?),
                }
            }
            (Rule::Where, [condition, a, b]) => {
                if condition.is_true() {
                    *a
                } else {
                    *b
                }
            }
            (Rule::MaskedFill, [a, mask]) => {
                if mask.is_true() {
                    self.output.load(fields)?
                } else {
                    *a
                }
            }
            _ => return None,
        })
    }

    /// The result that holds for all elements of tensors with unknown but finite contents: comparing a tensor
    /// with itself, or with infinity (which is how `isfinite`, `isnan` and `isinf` are implemented), or
    /// checking that it is not negative.
    pub(super) fn always(&self, fields: &[u8], same_operands: bool) -> Option<Value> {
        if self.rule == Some(Rule::Order) {
            // Scripts check that values are not negative if they cannot well be: variances, lengths, weights.
            let (_, offset, kind) = self.given?;
            let limit = kind.load(fields.get(offset..)?)?;
            let at_least = Type::I32.load(fields)? == Value::Int(0);
            return (at_least && limit.real() <= 0.0).then(|| Value::from(true));
        }
        if self.rule != Some(Rule::Equality) {
            return None;
        }
        let unequal = Type::I32.load(fields)?.is_true();
        if same_operands {
            return Some(Value::from(!unequal));
        }
        let (_, offset, kind) = self.given?;
        let infinite = !kind.load(fields.get(offset..)?)?.real().is_finite();
        infinite.then(|| Value::from(unequal))
    }
}

/// Kernels propagate NaN.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

fn smaller(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
}

fn ordered(relation: i64, a: Value, b: Value) -> Option<bool> {
    let order = match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(&b)),
        _ => a.real().partial_cmp(&b.real()),
    };
    // Nothing is greater or less than NaN.
    let Some(order) = order else { return Some(false) };
    match relation {
        0 => Some(order.is_ge()),
        1 => Some(order.is_gt()),
        2 => Some(order.is_le()),
        3 => Some(order.is_lt()),
        _ => None,
    }
}

fn divide_down(a: Value, b: Value) -> Option<Value> {
    if let (Value::Int(a), Value::Int(b)) = (a, b) {
        let quotient = a.checked_div(b)?;
        return Some(Value::Int(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient }));
    }
    Some(Value::Real((a.real() / b.real()).floor()))
}

/// Remainder with the sign of the divisor, as in Python.
fn remainder(a: Value, b: Value) -> Option<Value> {
    if let (Value::Int(a), Value::Int(b)) = (a, b) {
        let rest = a.checked_rem(b)?;
        return Some(Value::Int(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }));
    }
    let rest = a.real() % b.real();
    let flip = rest != 0.0 && (rest < 0.0) != (b.real() < 0.0);
    Some(Value::Real(if flip { rest + b.real() } else { rest }))
}

/// Type of a functor's parameters: its template argument, or the parameter in a lambda's name.
pub(super) fn operand(text: &str) -> Option<Type> {
    if text.ends_with('}') {
        return Type::from_cpp(text.rsplit_once("{lambda(")?.1.split([',', ')']).next()?);
    }
    type_parts(text).1.first().and_then(|kind| Type::from_cpp(kind))
}

/// Rule of a functor of two parameters, if it is modelled, and its size in bytes.
fn inner(text: &str) -> (Option<Rule>, usize) {
    if text.ends_with('}') {
        return (two_parameters(enclosing(text)), 1);
    }
    match type_parts(text).0 {
        "CompareEqFunctor" => (Some(Rule::Equality), 4),
        "MulFunctor" => (Some(Rule::Multiply), 1),
        "DivFunctor" => (Some(Rule::Divide), 1),
        "BitwiseAndFunctor" => (Some(Rule::And), 1),
        "BitwiseOrFunctor" => (Some(Rule::Or), 1),
        "BitwiseXorFunctor" => (Some(Rule::Xor), 1),
        _ => (None, 1),
    }
}

fn two_parameters(function: &str) -> Option<Rule> {
    Some(match function {
        "logical_and_kernel_cuda" => Rule::LogicalAnd,
        "logical_or_kernel_cuda" => Rule::LogicalOr,
        "logical_xor_kernel_cuda" => Rule::LogicalXor,
        "div_floor_kernel_cuda" => Rule::DivideDown,
        "remainder_kernel_cuda" => Rule::Remainder,
        "maximum_kernel_cuda" => Rule::Greater,
        "minimum_kernel_cuda" => Rule::Lesser,
        _ => return None,
    })
}

/// Name of the function that contains a lambda, without namespaces and template arguments.
pub(super) fn enclosing(text: &str) -> &str {
    // Function templates are spelt with their return type.
    let end = text.find(['<', '(']).unwrap_or(text.len());
    let head = &text[..end];
    &head[head.rfind([' ', ':']).map_or(0, |index| index + 1)..]
}

fn lambda(text: &str) -> Option<Functor> {
    let parameters = text.rsplit_once("{lambda(")?.1.rsplit_once(")#")?.0;
    let parameters: Vec<&str> = parameters.split(", ").collect();
    let function = enclosing(text);
    if function == "where_kernel_impl" {
        let kind = bits(parameters.get(1)?)?;
        let inputs = vec![Type::Bool, kind, kind];
        return Some(Functor { rule: Some(Rule::Where), inputs, output: kind, given: None, size: 8 });
    }
    let inputs: Vec<Type> = parameters.iter().map(|name| Type::from_cpp(name)).collect::<Option<_>>()?;
    let first = *inputs.first()?;
    let math = first.for_arithmetic();
    let simple = |rule, output| {
        Some(Functor { rule: Some(rule), inputs: inputs.clone(), output, given: None, size: 1 })
    };
    match function {
        "direct_copy_kernel_cuda" => simple(Rule::Copy, first),
        "converting_copy_kernel_cuda" => {
            let start = text.find('<')?;
            let target = text[start..].split(", ").nth(1)?.split('>').next()?;
            simple(Rule::Copy, Type::from_cpp(target)?)
        }
        "bfloat16_copy_kernel_cuda" => simple(Rule::Copy, Type::Bf16),
        "float16_copy_kernel_cuda" => simple(Rule::Copy, Type::F16),
        "bfloat16tofloat32_copy_kernel_cuda" | "float16tofloat32_copy_kernel_cuda" => {
            simple(Rule::Copy, Type::F32)
        }
        "neg_kernel_cuda" => simple(Rule::Negative, first),
        "bitwise_not_kernel_cuda" => simple(Rule::BitNot, first),
        "logical_not_kernel_cuda" => simple(Rule::LogicalNot, Type::Bool),
        "compare_scalar_kernel" => {
            let offset = aligned(4, first);
            let given = Some((1, offset, first));
            let size = capturing(offset + first.size());
            Some(Functor { rule: Some(Rule::Order), inputs, output: Type::Bool, given, size })
        }
        "launch_clamp_scalar" => {
            let low = aligned(4, math);
            let high = low + math.size();
            let rule = Some(Rule::Clamp(low, high));
            Some(Functor { rule, inputs, output: first, given: None, size: capturing(high + math.size()) })
        }
        "masked_fill_kernel" => {
            let size = capturing(first.size());
            Some(Functor { rule: Some(Rule::MaskedFill), inputs, output: first, given: None, size })
        }
        _ => {
            let rule = if inputs.len() == 2 { two_parameters(function) } else { None };
            Some(Functor { rule, inputs, output: first, given: None, size: 1 })
        }
    }
}

/// Type for data that is only moved: an integer of its size.
fn bits(name: &str) -> Option<Type> {
    Some(match name {
        "unsigned int" => Type::I32,
        "unsigned long" => Type::I64,
        "unsigned short" => Type::I16,
        _ => Type::from_cpp(name)?,
    })
}

#[cfg(test)]
mod tests;
