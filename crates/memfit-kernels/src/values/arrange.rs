//! Kernels that reorder numbers or accumulate them along the way: indexing, sorting, concatenation, `cumsum`.
//!
//! Scripts do this to lengths, labels and positions before they read them back. The result is computed if the
//! whole input is known and small; otherwise it is unknown.

use memfit_vocabulary::Assumption;

use super::{
    number::{Type, Value},
    scatter::{Moved, write_elements},
};
use crate::{
    launch::{Arguments, Grid},
    layout::{ANY, Sizes, Strides, TensorInfo, Width, capturing},
    memory::{Memory, Origin},
    name::{Signature, type_parts},
};

/// Maximum number of elements that are computed.
const MAX_ELEMENTS: usize = 1 << 16;
/// Maximum number of parts of a concatenation that are stored separately; more would evict contents that the
/// script uploaded.
const MAX_PARTS: usize = 64;
/// Maximum number of indexed dimensions.
const MAX_INDEXED_DIMENSIONS: usize = 25;

/// A kernel that reorders or accumulates numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arrange {
    /// `cumsum`, with the argument indices of the input, the output, the rows and their length.
    Scan { kind: Type, input: usize, output: usize, rows: Option<usize>, length: usize },
    /// Sorts keys in place, and values with them.
    Sort { key: Type, value: Type, descending: Option<bool> },
    /// `x[indices]`, or `x[indices] = y`, with elements of `size` bytes.
    Index { size: usize, writes: bool },
    /// `cat` of up to `max_inputs` tensors, with elements of `size` bytes.
    Concatenate { size: usize, max_inputs: usize, dimensions: usize },
}

impl Arrange {
    /// Recognises a kernel by its name; `None` for other families.
    pub(crate) fn from_signature(signature: &Signature) -> Option<Self> {
        let pointee = |index: usize| {
            let text = signature.param(index)?.strip_suffix('*')?;
            Type::from_cpp(text.trim_end_matches("const").trim_end())
        };
        match signature.name() {
            "DeviceScanKernel" => {
                let sums = type_parts(signature.param(4)?).0 == "plus"
                    && type_parts(signature.param(5)?).0 == "NullType";
                let kind = pointee(0).filter(|kind| sums && Some(*kind) == pointee(1))?;
                (signature.param(6) == Some("unsigned int")).then_some(Self::Scan {
                    kind,
                    input: 0,
                    output: 1,
                    rows: None,
                    length: 6,
                })
            }
            "tensor_kernel_scan_innermost_dim" => {
                let sums = type_parts(signature.template(1)?).0 == "plus";
                let kind = pointee(0).filter(|kind| sums && Some(*kind) == pointee(1))?;
                Some(Self::Scan { kind, input: 1, output: 0, rows: Some(2), length: 3 })
            }
            "bitonicSortKVInPlace" | "radixSortKVInPlace" | "warpMergeSortKVInPlace" => {
                let order = type_parts(signature.template(6)?).0;
                // With wide indices, the layout differs.
                let index = if signature.name() == "radixSortKVInPlace" { 6 } else { 7 };
                (signature.template(index)? == "unsigned int").then_some(())?;
                Some(Self::Sort {
                    key: Type::from_cpp(signature.template(4)?)?,
                    value: Type::from_cpp(signature.template(5)?)?,
                    descending: if signature.name() == "radixSortKVInPlace" {
                        None
                    } else {
                        Some(order == "GTOp")
                    },
                })
            }
            "index_elementwise_kernel" => {
                let lambda = signature.template(2)?.strip_prefix("void ").unwrap_or(signature.template(2)?);
                let start = lambda.find("gpu_index_kernel<")?;
                let (_, arguments) = type_parts(&lambda[start..]);
                let inner = arguments.first()?;
                let writes = inner.contains("index_put_kernel_impl<");
                if !writes && !inner.contains("index_kernel_impl<") {
                    return None;
                }
                let start = inner.find("_kernel_impl<")?;
                let (_, element) = type_parts(&inner[start..]);
                Some(Self::Index { size: element_size(element.first()?)?, writes })
            }
            name if name.starts_with("CatArrayBatchedCopy") => {
                let (metadata, fields) = type_parts(signature.param(1)?);
                if metadata != "CatArrInputTensorMetadata" || fields.get(1) != Some(&"unsigned int") {
                    return None;
                }
                let number = |text: &str| text.rsplit(')').next()?.parse::<usize>().ok();
                Some(Self::Concatenate {
                    size: element_size(signature.template(0)?)?,
                    max_inputs: number(fields.get(2)?).filter(|max_inputs| *max_inputs <= 1024)?,
                    dimensions: number(signature.template(2)?)?,
                })
            }
            _ => None,
        }
    }

    /// Sizes of the parameters in its layout.
    pub(super) fn sizes(&self) -> Sizes {
        match *self {
            Self::Scan { input, output, rows, length, .. } => {
                let mut sizes = vec![ANY; length + 1];
                (sizes[input], sizes[output], sizes[length]) = (8..=8, 8..=8, 4..=4);
                if let Some(rows) = rows {
                    sizes[rows] = 4..=4;
                }
                sizes
            }
            Self::Sort { .. } => {
                let info = TensorInfo::bytes(Width::Narrow);
                vec![info..=info, 4..=4, 4..=4, 4..=4, info..=info, 4..=4, 1..=1]
            }
            Self::Index { .. } => {
                // A functor follows the lists; it may be empty or have fields.
                let lists = Strides::bytes(3).next_multiple_of(8) + 24 + 24 * MAX_INDEXED_DIMENSIONS;
                vec![8..=8, capturing(lists)..=capturing(lists) + 16]
            }
            Self::Concatenate { max_inputs, .. } => {
                vec![8..=8, 21 * max_inputs..=usize::MAX, 32..=32, 4..=4, 4..=4]
            }
        }
    }

    /// Applies a launch.
    pub(super) fn apply(&self, arguments: Arguments, grid: Grid, memory: &dyn Memory) -> Option<()> {
        match *self {
            Self::Scan { kind, input, output, rows, length } => {
                let rows = rows.map_or(Some(1), |rows| arguments.get::<u32>(rows));
                scan(
                    kind,
                    arguments.get(input),
                    arguments.get(output),
                    rows,
                    arguments.get::<u32>(length),
                    memory,
                )
            }
            Self::Sort { key, value, descending } => sort(key, value, descending, arguments, memory),
            Self::Index { size, writes } => index(size, writes, arguments, memory),
            Self::Concatenate { size, max_inputs, dimensions } => {
                concatenate(size, max_inputs, dimensions, grid, arguments, memory)
            }
        }
    }
}

/// Size in bytes of an element type, or of PyTorch's `OpaqueType` that stands for all types of a size.
pub(super) fn element_size(text: &str) -> Option<usize> {
    let (name, arguments) = type_parts(text);
    if name != "OpaqueType" {
        return Type::from_cpp(text).map(Type::size);
    }
    // `(unsigned int)8` or `8`
    arguments.first()?.rsplit(')').next()?.parse().ok().filter(|size| (1..=16).contains(size))
}

fn scan(
    kind: Type,
    source: Option<u64>,
    target: Option<u64>,
    rows: Option<u32>,
    length: Option<u32>,
    memory: &dyn Memory,
) -> Option<()> {
    let (source, target, rows, length) = (source?, target?, rows? as usize, length? as usize);
    let bytes = rows.saturating_mul(length).saturating_mul(kind.size());
    let known = if bytes <= MAX_ELEMENTS * kind.size() { memory.get(source, bytes as u64) } else { None };
    let Some((mut content, origin)) = known else {
        memory.forget(target, bytes as u64);
        assume_scan(kind, source, target, rows, length, memory);
        return Some(());
    };
    for row in content.chunks_exact_mut((length * kind.size()).max(1)) {
        let mut sum: Option<Value> = None;
        for element in row.chunks_exact_mut(kind.size()) {
            let value = kind.load(element)?;
            let next =
                sum.map_or(value, |sum| kind.round(sum.combine(value, i64::wrapping_add, |a, b| a + b)));
            kind.store(next, element);
            sum = Some(next);
        }
    }
    memory.write(target, &content, origin);
    Some(())
}

/// Assumes running totals of unknown counts, since the last total may be read as a size. Counts are taken as
/// 1. If they are flags (0 or 1), their total has bounds, and the policy chooses a point between these.
fn assume_scan(kind: Type, source: u64, target: u64, rows: usize, length: usize, memory: &dyn Memory) {
    let Some(policy) = memory.policy().filter(|_| kind.is_integer() && rows * length <= MAX_ELEMENTS) else {
        return;
    };
    let flags = memory.flags(source).is_some();
    let mut bytes = vec![0; rows * length * kind.size()];
    for (index, element) in bytes.chunks_exact_mut(kind.size()).enumerate() {
        let reached = (index % length) as u64 + 1;
        let total = if flags { policy.between(0, reached) } else { reached };
        kind.store(Value::Int(total as i64), element);
    }
    let rule = if flags { Assumption::TrueCount } else { Assumption::RunningTotal };
    memory.write(target, &bytes, Origin::Guess(rule));
}

/// Reads keys, number of slices, length, stride; values, stride, order.
fn sort(
    key: Type,
    value: Type,
    descending: Option<bool>,
    arguments: Arguments,
    memory: &dyn Memory,
) -> Option<()> {
    let (keys, values) = (arguments.get::<u64>(0)?, arguments.get::<u64>(4)?);
    let (slices, length, stride) =
        (arguments.get::<u32>(1)?, arguments.get::<u32>(2)? as usize, arguments.get::<u32>(3)?);
    let descending = match descending {
        Some(descending) => descending,
        None => arguments.get::<u8>(6)? != 0,
    };
    let rows = |index: usize| {
        // Only contiguous rows are supported: PyTorch copies rows into this layout before it sorts them.
        slices == 1
            || TensorInfo::read(arguments, index, Width::Narrow)
                .is_some_and(|info| (0..u64::from(slices)).all(|row| info.offset(row) == row * length as u64))
    };
    let whole = length.saturating_mul(slices as usize);
    let dense = stride == 1 && arguments.get::<u32>(5)? == 1 && whole <= MAX_ELEMENTS && rows(0) && rows(4);
    let contents = if dense {
        let bytes = |kind: Type| (whole * kind.size()) as u64;
        memory.get(keys, bytes(key)).zip(memory.get(values, bytes(value)))
    } else {
        None
    };
    let Some(((key_bytes, key_origin), (value_bytes, value_origin))) = contents else {
        let bytes = whole.saturating_mul(value.size()) as u64;
        let order =
            if dense && value.is_integer() { memory.known_contents(values, bytes, true) } else { None };
        memory.forget_from(keys);
        memory.forget_from(values);
        // For unknown keys, any order is valid, including the current one.
        if let Some((order, _)) = order {
            memory.guess(values, &order, Assumption::Ranking);
        }
        return Some(());
    };
    let mut order: Vec<usize> = (0..whole).collect();
    let at = |index: &usize| key.load(&key_bytes[index * key.size()..]).unwrap_or(Value::Int(0));
    for row in order.chunks_exact_mut(length.max(1)) {
        row.sort_by(|a, b| {
            let ordering = at(a).order(at(b));
            if descending { ordering.reverse() } else { ordering }
        });
    }
    let permuted = |bytes: &[u8], size: usize| -> Vec<u8> {
        order.iter().flat_map(|index| bytes[index * size..(index + 1) * size].iter().copied()).collect()
    };
    memory.write(keys, &permuted(&key_bytes, key.size()), key_origin);
    memory.write(values, &permuted(&value_bytes, value.size()), key_origin.and(value_origin));
    Some(())
}

/// Reads the lambda's fields: offsets of output, input and index; addresses of output and input; number of
/// indices; the address of each index; the extent and the stride of each indexed dimension.
fn index(size: usize, writes: bool, arguments: Arguments, memory: &dyn Memory) -> Option<()> {
    const DIMENSIONS: usize = MAX_INDEXED_DIMENSIONS;
    let pointers = Strides::bytes(3).next_multiple_of(8);
    let (indices, addresses) = (pointers + 16, pointers + 24);
    let (extents, steps) = (addresses + 8 * DIMENSIONS, addresses + 16 * DIMENSIONS);
    let field = |offset: usize| arguments.get_at::<u64>(1, offset);
    let (target, source) = (field(pointers)?, field(pointers + 8)?);
    let compute = || -> Option<Moved> {
        let count = usize::try_from(arguments.get::<i64>(0)?).ok().filter(|count| *count <= MAX_ELEMENTS)?;
        let dimensions = arguments.get_at::<i32>(1, indices)?;
        let dimensions = usize::try_from(dimensions).ok().filter(|count| (1..=DIMENSIONS).contains(count))?;
        let strides = Strides::read(&arguments.bytes(1, pointers)?, 3)?;
        let mut origin = Origin::True;
        let mut lists = Vec::new();
        for dimension in 0..dimensions {
            let (content, own) = memory.get(field(addresses + 8 * dimension)?, strides.span(2, 8))?;
            origin = origin.and(own);
            lists.push((
                content,
                field(extents + 8 * dimension)? as i64,
                field(steps + 8 * dimension)? as i64,
            ));
        }
        let mut moved = Vec::with_capacity(count);
        let mut offsets = Vec::new();
        for element in 0..count {
            strides.offsets(element, &mut offsets);
            let mut distance = 0i64;
            for (content, extent, step) in &lists {
                let position = Type::I64.load(content.get(offsets[2] as usize..)?)?.int();
                let position = if position < 0 { position + extent } else { position };
                (0..*extent).contains(&position).then_some(())?;
                distance += position * step;
            }
            let (mut to, mut from) = (target + offsets[0], source + offsets[1]);
            let side = if writes { &mut to } else { &mut from };
            *side = side.checked_add_signed(distance)?;
            let (bytes, own) = memory.get(from, size as u64)?;
            origin = origin.and(own);
            moved.push((to, bytes));
        }
        Some((moved, origin))
    };
    let moved = if memory.perhaps(source) { compute() } else { None };
    let Some((moved, origin)) = moved else {
        memory.forget_from(target);
        return Some(());
    };
    write_elements(moved, size, origin, target, memory);
    Some(())
}

/// Reads the output; the inputs' addresses, offsets, extents and counts; the output's shape; the dimension.
fn concatenate(
    size: usize,
    max_inputs: usize,
    dimensions: usize,
    grid: Grid,
    arguments: Arguments,
    memory: &dyn Memory,
) -> Option<()> {
    /// Maximum dimensions of the shape.
    const DIMENSIONS: usize = 4;
    let target = arguments.get::<u64>(0)?;
    let inputs = (grid.blocks[1] as usize).min(max_inputs);
    let shape: [[u32; DIMENSIONS]; 2] = arguments.get(2)?;
    let along = usize::try_from(arguments.get::<i32>(3)?).ok()?;
    let step = u64::from(arguments.get::<u32>(4)?);
    let (1..=DIMENSIONS, true) = (dimensions, along < dimensions.max(1)) else { return None };
    let stride = u64::from(shape[0][along]) * step;
    // The contiguous parts of the output that each input fills: one for each index of the outer dimensions.
    let mut parts: Vec<(u64, Option<Vec<u8>>, usize)> = Vec::new();
    let (mut origin, mut elements) = (Origin::True, 0usize);
    for input in 0..inputs {
        let word = |list: usize| arguments.get_at::<u32>(1, 8 * max_inputs + 4 * (list * max_inputs + input));
        let (offset, extent, count) = (u64::from(word(0)?), word(1)?, word(2)? as usize);
        let dense = arguments.get_at::<u8>(1, 20 * max_inputs + input)? != 0;
        let source = arguments.get_at::<u64>(1, 8 * input)?;
        let content =
            if dense && count <= MAX_ELEMENTS { memory.get(source, (count * size) as u64) } else { None };
        let part = (extent.max(1) as usize).saturating_mul(step as usize).max(1);
        elements = elements.saturating_add(count);
        if let Some((_, own)) = content {
            origin = origin.and(own);
        }
        if elements > MAX_ELEMENTS || parts.len() + count / part > MAX_ELEMENTS {
            memory.forget(target, (elements * size) as u64);
            return Some(());
        }
        for (index, first) in (0..count).step_by(part).enumerate() {
            let length = part.min(count - first) * size;
            let bytes =
                content.as_ref().map(|(bytes, _)| bytes[first * size..first * size + length].to_vec());
            parts.push((offset * step + index as u64 * stride, bytes, length));
        }
    }
    let total = elements * size;
    let mut whole = vec![0; total];
    let complete = parts.iter().all(|(at, bytes, length)| {
        let at = (*at as usize).saturating_mul(size);
        let Some((bytes, room)) = bytes.as_ref().zip(whole.get_mut(at..at.saturating_add(*length))) else {
            return false;
        };
        room.copy_from_slice(bytes);
        true
    });
    if complete {
        memory.write(target, &whole, origin);
    } else if parts.len() <= MAX_PARTS {
        for (at, bytes, length) in &parts {
            let to = target + at * size as u64;
            match bytes {
                Some(bytes) => memory.write(to, bytes, origin),
                None => memory.forget(to, *length as u64),
            }
        }
    } else {
        memory.forget(target, total as u64);
    }
    Some(())
}

#[cfg(test)]
mod tests;
