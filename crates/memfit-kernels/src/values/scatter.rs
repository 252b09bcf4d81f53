//! `gather`, `scatter`, `scatter_add`, `index_select` and `one_hot`: elements moved by an index along a
//! dimension.
//!
//! Known elements are moved. Two facts hold even for an unknown index: ones scattered over zeros keep their
//! number, and ones added into bins add up to their number.

use memfit_vocabulary::Assumption;

use super::{
    arrange::element_size,
    histogram::spread,
    number::{Type, Value},
};
use crate::{
    launch::Arguments,
    layout::{Sizes, Strides},
    memory::{Memory, Ones, Origin},
    name::{Signature, type_parts},
};

/// Elements with their target addresses, and their common origin.
pub(super) type Moved = (Vec<(u64, Vec<u8>)>, Origin);

/// Maximum elements that are moved.
const MAX_ELEMENTS: usize = 1 << 16;

/// The kernel behind all of these operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scatter {
    index_use: IndexUse,
    /// Bytes per element.
    size: usize,
    index: Type,
}

/// Use of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IndexUse {
    /// The index selects the source.
    Gather,
    /// The index selects the target.
    Scatter,
    /// The index selects the target of one value.
    Fill,
    /// The index selects the sum that an element of this type is added to.
    Add(Type),
}

/// Fields of the launch's lambda, after the offset calculator.
struct Fields {
    index: u64,
    /// Extent of the indexed dimension.
    extent: i64,
    target: u64,
    /// Elements from one index to the next.
    stride: i64,
    /// Address of the source, or offset of the value.
    last: usize,
}

impl Scatter {
    /// Recognises the kernel by its name; `None` for others, and those that multiply or compare.
    pub(crate) fn from_signature(signature: &Signature) -> Option<Self> {
        if signature.name() != "_scatter_gather_elementwise_kernel" {
            return None;
        }
        let lambda = signature.template(2)?;
        let (start, fills) = match lambda.find("_cuda_scatter_fill_internal_kernel<") {
            Some(start) => (start, true),
            None => (lambda.find("_cuda_scatter_gather_internal_kernel<")?, false),
        };
        let (_, parts) = type_parts(&lambda[start..]);
        let (element, index) =
            if fills { (parts.first()?, parts.get(1)?) } else { (parts.get(1)?, parts.get(2)?) };
        let rest = &lambda[lambda.find("operator()<")?..];
        let index_use = match (type_parts(rest).1.first().map(|operation| type_parts(operation).0)?, fills) {
            ("TensorAssign", true) => IndexUse::Fill,
            ("TensorAssign", false) if *parts.first()? == "true" => IndexUse::Scatter,
            ("TensorAssign", false) => IndexUse::Gather,
            ("ReduceAdd", false) => IndexUse::Add(Type::from_cpp(element)?),
            _ => return None,
        };
        Some(Self { index_use, size: element_size(element)?, index: Type::from_cpp(index)? })
    }

    /// Sizes of the parameters in its layout: the last field is an address, or the value.
    pub(super) fn sizes(&self) -> Sizes {
        let (tensors, last) = if self.index_use == IndexUse::Fill { (2, self.size) } else { (3, 8) };
        let end = Strides::bytes(tensors).next_multiple_of(8) + 8 * 6 + last;
        vec![4..=4, end..=end.next_multiple_of(16)]
    }

    /// Applies a launch.
    pub(super) fn apply(&self, arguments: Arguments, memory: &dyn Memory) -> Option<()> {
        let tensors = if self.index_use == IndexUse::Fill { 2 } else { 3 };
        self.try_apply(tensors, arguments, memory)
    }

    fn try_apply(&self, tensors: usize, arguments: Arguments, memory: &dyn Memory) -> Option<()> {
        let start = Strides::bytes(tensors).next_multiple_of(8);
        let word = |field: usize| arguments.get_at::<u64>(1, start + 8 * field);
        // The index and its extent, an empty functor; the target, the stride, its number of elements; the
        // source.
        let fields = Fields {
            index: word(0)?,
            extent: word(1)? as i64,
            target: word(3)?,
            stride: word(4)? as i64,
            last: start + 8 * 6,
        };
        let count = usize::try_from(arguments.get::<i32>(0)?).ok()?;
        let strides = Strides::read(&arguments.bytes(1, start)?, tensors)?;
        let moved = if count <= MAX_ELEMENTS && memory.perhaps(fields.index) {
            self.moved_elements(count, &fields, &strides, arguments, memory)
        } else {
            None
        };
        match moved {
            Some((elements, origin)) => write_elements(elements, self.size, origin, fields.target, memory),
            None => self.assume_index(count, &fields, &strides, arguments, memory),
        }
        Some(())
    }

    /// Target and value of each element, if all of them are known.
    fn moved_elements(
        &self,
        count: usize,
        fields: &Fields,
        strides: &Strides,
        arguments: Arguments,
        memory: &dyn Memory,
    ) -> Option<Moved> {
        // The tensors are the target, the source if there is one, and the index.
        let place = if self.index_use == IndexUse::Fill { 1 } else { 2 };
        let (list, mut origin) = memory.get(fields.index, strides.span(place, self.index.size()))?;
        let value = arguments.bytes(1, fields.last + self.size)?[fields.last..].to_vec();
        let source = arguments.get_at::<u64>(1, fields.last)?;
        let mut elements: Vec<(u64, Vec<u8>)> = Vec::with_capacity(count);
        let mut sums = std::collections::BTreeMap::new();
        let mut offsets = Vec::new();
        for element in 0..count {
            strides.offsets(element, &mut offsets);
            let position = self.index.load(list.get(offsets[place] as usize..)?)?.int();
            (0..fields.extent).contains(&position).then_some(())?;
            let distance = position.checked_mul(fields.stride)?.checked_mul(self.size as i64)?;
            let (mut to, mut from) = (fields.target + offsets[0], source.wrapping_add(offsets[1]));
            match self.index_use {
                IndexUse::Gather => from = from.checked_add_signed(distance)?,
                _ => to = to.checked_add_signed(distance)?,
            }
            if self.index_use == IndexUse::Fill {
                elements.push((to, value.clone()));
                continue;
            }
            let (bytes, own) = memory.get(from, self.size as u64)?;
            origin = origin.and(own);
            let IndexUse::Add(kind) = self.index_use else {
                elements.push((to, bytes));
                continue;
            };
            let before = if let Some(sum) = sums.get(&to) {
                *sum
            } else {
                let (bytes, own) = memory.get(to, self.size as u64)?;
                origin = origin.and(own);
                kind.load(&bytes)?
            };
            let sum: Value = before.combine(kind.load(&bytes)?, i64::wrapping_add, |a, b| a + b);
            sums.insert(to, kind.round(sum));
        }
        if let IndexUse::Add(kind) = self.index_use {
            for (to, sum) in sums {
                let mut bytes = vec![0; self.size];
                kind.store(sum, &mut bytes);
                elements.push((to, bytes));
            }
        }
        Some((elements, origin))
    }

    /// Records the properties of an unknown index.
    fn assume_index(
        &self,
        count: usize,
        fields: &Fields,
        strides: &Strides,
        arguments: Arguments,
        memory: &dyn Memory,
    ) {
        let span = (fields.extent.max(0) as u64).saturating_mul(self.size as u64);
        let zeros = |length: u64| {
            memory
                .get(fields.target, length.max(1))
                .is_some_and(|(bytes, origin)| origin == Origin::True && bytes.iter().all(|byte| *byte == 0))
        };
        match self.index_use {
            IndexUse::Fill
                if memory.rules_answer() && zeros(self.size as u64) && self.fills_one(fields, arguments) =>
            {
                memory.forget_from(fields.target);
                memory.mark_flags(fields.target, self.size as u64, Ones::Exactly(count as u64));
            }
            IndexUse::Add(kind)
                if kind.is_integer()
                    && fields.stride == 1
                    && strides.span(0, 0) == 0
                    && span <= MAX_ELEMENTS as u64
                    && zeros(span)
                    && self.adds_ones(count, kind, strides, fields, arguments, memory) =>
            {
                let Some(policy) = memory.policy() else { return memory.forget_from(fields.target) };
                let counts = spread(count as u64, fields.extent as usize, count as u64, policy);
                let mut bytes = vec![0; span as usize];
                for (element, each) in bytes.chunks_exact_mut(self.size).zip(counts) {
                    kind.store(Value::Int(each as i64), element);
                }
                memory.write(fields.target, &bytes, Origin::Answer(Assumption::Histogram));
            }
            _ => memory.forget_from(fields.target),
        }
    }

    /// Returns `true` if the fill value is the integer one: a floating-point one has other bits, and is no
    /// flag.
    fn fills_one(&self, fields: &Fields, arguments: Arguments) -> bool {
        arguments.bytes(1, fields.last + self.size).is_some_and(|bytes| {
            let value = &bytes[fields.last..];
            value.first() == Some(&1) && value[1..].iter().all(|byte| *byte == 0)
        })
    }

    fn adds_ones(
        &self,
        count: usize,
        kind: Type,
        strides: &Strides,
        fields: &Fields,
        arguments: Arguments,
        memory: &dyn Memory,
    ) -> bool {
        let ones = || {
            let source = arguments.get_at::<u64>(1, fields.last)?;
            let (bytes, _) = memory.get(source, strides.span(1, self.size))?;
            let all = bytes.chunks_exact(self.size).all(|element| kind.load(element) == Some(Value::Int(1)));
            all.then_some(())
        };
        count > 0 && ones().is_some()
    }
}

/// Maximum pieces that are kept one by one; more would evict the script's uploads.
const MAX_PARTS: usize = 64;

/// Writes elements at their target addresses.
pub(super) fn write_elements(
    mut elements: Vec<(u64, Vec<u8>)>,
    size: usize,
    origin: Origin,
    target: u64,
    memory: &dyn Memory,
) {
    // Of two with the same target the later one stays, as good a choice as the device's.
    elements.sort_by_key(|(to, _)| *to);
    let consecutive = elements.windows(2).all(|pair| pair[1].0 == pair[0].0 + size as u64);
    if consecutive && let Some((start, _)) = elements.first() {
        let all: Vec<u8> = elements.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        return memory.write(*start, &all, origin);
    }
    let (Some(low), Some(high)) = (elements.first(), elements.last()) else { return };
    // Known holes are filled in, so that the whole stays one piece.
    let length = high.0 - low.0 + size as u64;
    if let Some((mut whole, own)) = memory.get(low.0, length) {
        let start = low.0;
        for (to, bytes) in &elements {
            let at = (to - start) as usize;
            whole[at..at + size].copy_from_slice(bytes);
        }
        memory.write(start, &whole, origin.and(own));
    } else if elements.len() <= MAX_PARTS {
        for (to, bytes) in &elements {
            memory.write(*to, bytes, origin);
        }
    } else {
        memory.forget_from(target);
        memory.forget(low.0, length);
    }
}
