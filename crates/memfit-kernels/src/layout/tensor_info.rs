//! Tensors as PyTorch's older kernels are handed them: `TensorInfo`, an address with extents and strides.

use crate::launch::Arguments;

/// Dimensions that it has room for.
const DIMENSIONS: usize = 25;

/// A tensor, or the slices of one where a dimension was taken out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    pub(crate) address: u64,
    /// Extent and stride of each dimension, in elements; the last runs fastest.
    dimensions: Vec<(u64, u64)>,
}

impl TensorInfo {
    /// Its bytes with indices of this width.
    pub(crate) fn bytes(width: Width) -> usize {
        (8 + 2 * DIMENSIONS * width.bytes() + 4).next_multiple_of(8)
    }

    /// Reads an argument with indices of this width.
    pub(crate) fn read(arguments: Arguments, index: usize, width: Width) -> Option<Self> {
        let size = width.bytes();
        let count = arguments.get_at::<i32>(index, 8 + 2 * DIMENSIONS * size)?;
        let count = usize::try_from(count).ok().filter(|count| *count <= DIMENSIONS)?;
        let word = |place: usize| match width {
            Width::Narrow => arguments.get_at::<u32>(index, 8 + 4 * place).map(u64::from),
            Width::Wide => arguments.get_at::<u64>(index, 8 + 8 * place),
        };
        let dimension =
            |place: usize| Some((word(place).filter(|extent| *extent > 0)?, word(DIMENSIONS + place)?));
        Some(Self {
            address: arguments.get(index)?,
            dimensions: (0..count).map(dimension).collect::<Option<_>>()?,
        })
    }

    /// The offset of an element, or of the first of a slice, in elements.
    pub(crate) fn offset(&self, element: u64) -> u64 {
        let mut rest = element;
        let mut offset = 0u64;
        for (extent, stride) in self.dimensions.iter().rev() {
            offset = offset.wrapping_add((rest % extent).wrapping_mul(*stride));
            rest /= extent;
        }
        offset
    }

    /// Whether its elements follow one another.
    pub(crate) fn is_dense(&self) -> bool {
        let mut expected = 1;
        self.dimensions.iter().rev().filter(|(extent, _)| *extent > 1).all(|(extent, stride)| {
            let fits = *stride == expected;
            expected = expected.saturating_mul(*extent);
            fits
        })
    }
}

/// How wide the extents and strides are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// 32 bits.
    Narrow,
    /// 64 bits.
    Wide,
}

impl Width {
    /// From the name of the index type in the kernel's signature.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "unsigned int" | "int" => Self::Narrow,
            "long" | "unsigned long" => Self::Wide,
            _ => return None,
        })
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Narrow => 4,
            Self::Wide => 8,
        }
    }
}
