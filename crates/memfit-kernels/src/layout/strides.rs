//! Offsets of the elements of strided tensors: PyTorch's `OffsetCalculator`, as passed to kernels.

use crate::launch::Arguments;

/// Maximum dimensions.
const MAX_DIMENSIONS: usize = 25;
/// Bytes of a divisor with its constants for fast division.
const DIVIDER_BYTES: usize = 12;

/// Byte offsets of the elements of several tensors that are iterated together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strides {
    /// Extent of each dimension and each tensor's stride in it, innermost dimension first.
    dimensions: Vec<(u32, Vec<u32>)>,
    tensors: usize,
}

impl Strides {
    /// Bytes of the calculator for `tensors` tensors.
    pub(crate) const fn bytes(tensors: usize) -> usize {
        4 + MAX_DIMENSIONS * DIVIDER_BYTES + MAX_DIMENSIONS * 4 * tensors
    }

    /// Reads the calculator for `tensors` tensors.
    pub(crate) fn read(bytes: &[u8], tensors: usize) -> Option<Self> {
        let word = |offset: usize| bytes.get(offset..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
        let count = word(0)? as usize;
        if count > MAX_DIMENSIONS {
            return None;
        }
        let strides = 4 + MAX_DIMENSIONS * DIVIDER_BYTES;
        let dimension = |index: usize| {
            let extent = word(4 + index * DIVIDER_BYTES).filter(|extent| *extent > 0)?;
            let own = (0..tensors)
                .map(|tensor| word(strides + 4 * (index * tensors + tensor)))
                .collect::<Option<_>>()?;
            Some((extent, own))
        };
        let dimensions = (0..count).map(dimension).collect::<Option<_>>()?;
        Some(Self { dimensions, tensors })
    }

    /// Bytes of memory traffic of iterating over one tensor. Each element counts once, with its own size or,
    /// if the elements are apart, the distance between neighbours, up to a memory sector. The calculator is
    /// read from the start of a launch's second argument.
    pub(crate) fn bytes_moved(arguments: Arguments, tensors: usize, tensor: usize, size: f64) -> Option<f64> {
        const SECTOR: f64 = 32.0;
        let word = |offset: usize| arguments.get_at::<u32>(1, offset);
        let count = word(0)? as usize;
        if count > MAX_DIMENSIONS {
            return None;
        }
        let strides = 4 + MAX_DIMENSIONS * DIVIDER_BYTES;
        let (mut elements, mut nearest) = (1.0, SECTOR);
        for dimension in 0..count {
            let stride = f64::from(word(strides + 4 * (dimension * tensors + tensor))?);
            let extent = f64::from(word(4 + dimension * DIVIDER_BYTES)?);
            if stride > 0.0 && extent > 1.0 {
                elements *= extent;
                nearest = nearest.min(stride);
            }
        }
        let bytes_per_element = if elements > 1.0 { nearest.max(size) } else { size };
        Some(elements * bytes_per_element)
    }

    /// Creates the calculator of contiguous tensors whose elements have these sizes.
    pub(crate) fn dense(elements: usize, sizes: &[usize]) -> Self {
        let strides = sizes.iter().map(|size| *size as u32).collect();
        Self { dimensions: vec![(elements as u32, strides)], tensors: sizes.len() }
    }

    /// Computes the byte offset of an element in each tensor.
    pub(crate) fn offsets(&self, element: usize, offsets: &mut Vec<u64>) {
        offsets.clear();
        offsets.resize(self.tensors, 0);
        let mut rest = element as u64;
        for (extent, strides) in &self.dimensions {
            let index = rest % u64::from(*extent);
            rest /= u64::from(*extent);
            for (offset, stride) in offsets.iter_mut().zip(strides) {
                *offset += index * u64::from(*stride);
            }
        }
    }

    /// Bytes from a tensor's first element to the end of the last.
    pub(crate) fn span(&self, tensor: usize, size: usize) -> u64 {
        let last: u64 = self
            .dimensions
            .iter()
            .map(|(extent, strides)| u64::from(extent - 1) * u64::from(strides[tensor]))
            .sum();
        last + size as u64
    }

    /// Returns `true` if two tensors have the same strides.
    pub(crate) fn same_strides(&self, a: usize, b: usize) -> bool {
        self.dimensions.iter().all(|(extent, strides)| *extent == 1 || strides[a] == strides[b])
    }

    /// Returns `true` if a tensor's elements are contiguous in iteration order.
    pub(crate) fn is_dense(&self, tensor: usize, size: usize) -> bool {
        let mut expected = size as u64;
        self.dimensions.iter().filter(|(extent, _)| *extent > 1).all(|(extent, strides)| {
            let fits = u64::from(strides[tensor]) == expected;
            expected *= u64::from(*extent);
            fits
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Builds the bytes of a calculator.
    pub(crate) fn calculator(dimensions: &[(u32, &[u32])], tensors: usize) -> Vec<u8> {
        let mut bytes = vec![0xcc; Strides::bytes(tensors)];
        bytes[..4].copy_from_slice(&(dimensions.len() as u32).to_le_bytes());
        for (index, (extent, strides)) in dimensions.iter().enumerate() {
            bytes[4 + 12 * index..8 + 12 * index].copy_from_slice(&extent.to_le_bytes());
            for (tensor, stride) in strides.iter().enumerate() {
                let at = 304 + 4 * (index * tensors + tensor);
                bytes[at..at + 4].copy_from_slice(&stride.to_le_bytes());
            }
        }
        bytes
    }

    #[test]
    fn offsets_follow_the_strides_of_a_transposed_tensor() {
        // 4 × 8 floats written densely, read from an 8 × 4 tensor's transpose.
        let bytes = calculator(&[(4, &[4, 32]), (8, &[16, 4])], 2);
        let strides = Strides::read(&bytes, 2).unwrap();
        let mut offsets = Vec::new();
        strides.offsets(5, &mut offsets);
        assert_eq!(offsets, [20, 36]);
        assert!(strides.is_dense(0, 4) && !strides.is_dense(1, 4));
        assert_eq!((strides.span(0, 4), strides.span(1, 4)), (128, 128));
    }

    #[test]
    fn malformed_calculators_are_refused() {
        assert_eq!(Strides::read(&[0; 3], 1), None);
        assert_eq!(Strides::read(&calculator(&[(0, &[4])], 1), 1), None, "an extent of zero");
        let mut bytes = calculator(&[], 1);
        assert!(Strides::read(&bytes, 1).unwrap().is_dense(0, 4), "a single element");
        bytes[0] = 26;
        assert_eq!(Strides::read(&bytes, 1), None);
    }
}
