//! `topk`: the greatest or least elements of each row, and their indices.

use memfit_vocabulary::Assumption;

use super::number::Type;
use crate::{
    launch::Arguments,
    layout::{Sizes, TensorInfo, Width},
    memory::{MAX_GUESS_BYTES, Memory, Origin},
    name::{Signature, type_parts},
};

/// Maximum elements that are read.
const MAX_ELEMENTS: u64 = 1 << 16;

/// The kernel that selects them; PyTorch sorts them with another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopK {
    element: Type,
    width: Width,
    /// Width of the number of rows: PyTorch has two kernels of that name, and one always passes 32 bits.
    rows: Width,
}

impl TopK {
    /// Recognises the kernel by its name; `None` for others.
    pub(crate) fn from_signature(signature: &Signature) -> Option<Self> {
        if signature.name() != "gatherTopK" {
            return None;
        }
        let (_, parts) = type_parts(signature.param(0)?);
        let element = parts.first()?.trim_end_matches("const").trim_end();
        let width = Width::from_type_name(parts.get(1)?)?;
        let rows = Width::from_type_name(signature.param(4)?)?;
        Some(Self { element: Type::from_cpp(element)?, width, rows })
    }

    /// Sizes of the kernel's parameters, in their order.
    pub(super) fn sizes(&self) -> Sizes {
        let (info, index) = (TensorInfo::bytes(self.width), self.width.bytes());
        let (info, index) = (info..=info, index..=index);
        let row = [info.clone(), index.clone()];
        let rows = self.rows.bytes()..=self.rows.bytes();
        let input = [&row[..], &[index.clone(), 1..=1, rows, index]].concat();
        [&input[..], &row, &row].concat()
    }

    /// Applies a launch. Its arguments are the input, the length of its rows, k, whether to take the
    /// greatest, the number of rows, the stride within a row; the values and their stride; the indices and
    /// theirs.
    pub(super) fn apply(&self, arguments: Arguments, memory: &dyn Memory) -> Option<()> {
        let wide = |index, width| match width {
            Width::Narrow => arguments.get::<u32>(index).map(u64::from),
            Width::Wide => arguments.get::<u64>(index),
        };
        let number = |index| wide(index, self.width);
        let source = TensorInfo::read(arguments, 0, self.width)?;
        let values = TensorInfo::read(arguments, 6, self.width)?;
        let indices = TensorInfo::read(arguments, 8, self.width)?;
        let (length, wanted, rows, stride) = (number(1)?, number(2)?, wide(4, self.rows)?, number(5)?);
        let greatest = arguments.get::<u8>(3)? != 0;
        let dense = number(7)? == 1 && number(9)? == 1;
        // Output rows that are not contiguous are rare.
        let plain = dense
            && (0..rows.min(MAX_ELEMENTS))
                .all(|row| values.offset(row) == row * wanted && indices.offset(row) == row * wanted);
        let mut picked = (Vec::new(), Vec::new(), Origin::True);
        let complete = plain
            && length.saturating_mul(rows) <= MAX_ELEMENTS
            && (0..rows).all(|row| {
                let start = source.address + source.offset(row) * self.element.size() as u64;
                self.pick(start, (length, stride, wanted), greatest, memory, &mut picked).is_some()
            });
        if complete {
            memory.write(values.address, &picked.0, picked.2);
            memory.write(indices.address, &picked.1, picked.2);
        } else {
            memory.forget_from(values.address);
            memory.forget_from(indices.address);
            if plain {
                assume_positions(length, wanted, rows, indices.address, memory);
            }
        }
        Some(())
    }

    fn pick(
        &self,
        start: u64,
        (length, stride, wanted): (u64, u64, u64),
        greatest: bool,
        memory: &dyn Memory,
        (values, indices, origin): &mut (Vec<u8>, Vec<u8>, Origin),
    ) -> Option<()> {
        let size = self.element.size() as u64;
        let span = length.checked_sub(1)?.checked_mul(stride)?.checked_add(1)?.checked_mul(size)?;
        let (bytes, own) = memory.get(start, span)?;
        *origin = origin.and(own);
        let at = |index: usize| index * (stride * size) as usize;
        let mut order = (0..length as usize)
            .map(|index| Some((self.element.load(bytes.get(at(index)..)?)?, index)))
            .collect::<Option<Vec<_>>>()?;
        order.sort_by(|(a, _), (b, _)| {
            let ordering = a.order(*b);
            if greatest { ordering.reverse() } else { ordering }
        });
        for (_, index) in order.iter().take(wanted as usize) {
            values.extend_from_slice(bytes.get(at(*index)..at(*index) + size as usize)?);
            indices.extend_from_slice(&(*index as i64).to_le_bytes());
        }
        Some(())
    }
}

/// Assumes positions of unknown elements: distinct within a row and in range. Avoids the first position if
/// possible, since a position may be a divisor.
fn assume_positions(length: u64, wanted: u64, rows: u64, indices: u64, memory: &dyn Memory) {
    if wanted.saturating_mul(rows) > (MAX_GUESS_BYTES / size_of::<i64>()) as u64 {
        return;
    }
    let first = u64::from(wanted + 1 < length);
    let row = (first..first + wanted).flat_map(|position| (position as i64).to_le_bytes());
    let bytes: Vec<u8> = (0..rows).flat_map(|_| row.clone()).collect();
    memory.guess(indices, &bytes, Assumption::Ranking);
}
