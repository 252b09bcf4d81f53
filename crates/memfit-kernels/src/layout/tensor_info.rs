//! Tensors as passed to PyTorch's older kernels: `TensorInfo`, an address with extents and strides.

use crate::launch::Arguments;

/// Maximum dimensions.
const MAX_DIMENSIONS: usize = 25;

/// A tensor, or its slices if a dimension was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    pub(crate) address: u64,
    /// Extent and stride of each dimension, in elements; the last runs fastest.
    dimensions: Vec<(u64, u64)>,
}

impl TensorInfo {
    /// Size in bytes with indices of this width.
    pub(crate) fn bytes(width: Width) -> usize {
        (8 + 2 * MAX_DIMENSIONS * width.bytes() + 4).next_multiple_of(8)
    }

    /// Reads an argument with indices of this width.
    pub(crate) fn read(arguments: Arguments, index: usize, width: Width) -> Option<Self> {
        let size = width.bytes();
        let count = arguments.get_at::<i32>(index, 8 + 2 * MAX_DIMENSIONS * size)?;
        let count = usize::try_from(count).ok().filter(|count| *count <= MAX_DIMENSIONS)?;
        let word = |place: usize| match width {
            Width::Narrow => arguments.get_at::<u32>(index, 8 + 4 * place).map(u64::from),
            Width::Wide => arguments.get_at::<u64>(index, 8 + 8 * place),
        };
        let dimension =
            |place: usize| Some((word(place).filter(|extent| *extent > 0)?, word(MAX_DIMENSIONS + place)?));
        Some(Self {
            address: arguments.get(index)?,
            dimensions: (0..count).map(dimension).collect::<Option<_>>()?,
        })
    }

    /// Offset of an element, or of the first of a slice, in elements.
    pub(crate) fn offset(&self, element: u64) -> u64 {
        let mut rest = element;
        let mut offset = 0u64;
        for (extent, stride) in self.dimensions.iter().rev() {
            offset = offset.wrapping_add((rest % extent).wrapping_mul(*stride));
            rest /= extent;
        }
        offset
    }

    /// Returns `true` if its elements are contiguous.
    pub(crate) fn is_dense(&self) -> bool {
        let mut expected = 1;
        self.dimensions.iter().rev().filter(|(extent, _)| *extent > 1).all(|(extent, stride)| {
            let fits = *stride == expected;
            expected = expected.saturating_mul(*extent);
            fits
        })
    }
}

/// Width of the extents and strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// 32 bits.
    Narrow,
    /// 64 bits.
    Wide,
}

impl Width {
    /// Parses the name of the index type in the kernel's signature.
    pub(crate) fn from_type_name(name: &str) -> Option<Self> {
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
