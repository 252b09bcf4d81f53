//! Reductions of contents that are known on all ranks.

use memfit_kernels::values::number::{Type, Value};

/// `ncclRedOp_t`.
pub(super) mod operation {
    pub(super) const SUM: i32 = 0;
    pub(super) const PRODUCT: i32 = 1;
    pub(super) const MAX: i32 = 2;
    pub(super) const MIN: i32 = 3;
    pub(super) const AVERAGE: i32 = 4;
}

/// Bytes per element of an `ncclDataType_t`.
pub(super) fn element_size(kind: i32) -> Option<usize> {
    Some(match kind {
        0 | 1 | 10 | 11 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => return None,
    })
}

/// Type of an element; `None` if this operation cannot be computed on it.
fn computable_type(kind: i32, operation: i32) -> Option<Type> {
    // Sums and products of unsigned numbers have the same bits as those of signed ones; their order differs.
    let ordered = matches!(operation, operation::MAX | operation::MIN | operation::AVERAGE);
    Some(match kind {
        0 => Type::I8,
        1 => Type::U8,
        2 => Type::I32,
        3 if !ordered => Type::I32,
        4 => Type::I64,
        5 if !ordered => Type::I64,
        6 => Type::F16,
        7 => Type::F32,
        8 => Type::F64,
        9 => Type::Bf16,
        _ => return None,
    })
}

/// Combines the ranks' contributions element by element. `None` if the program defined the operation itself,
/// or the type cannot be computed on.
pub(super) fn reduce(parts: &[&[u8]], kind: i32, operation: i32) -> Option<Vec<u8>> {
    let element = computable_type(kind, operation)?;
    let (first, rest) = parts.split_first()?;
    let mut result = first.to_vec();
    for (index, position) in result.chunks_exact_mut(element.size()).enumerate() {
        let mut value = element.load(position)?;
        for part in rest {
            value = combine(value, element.load(part.get(index * element.size()..)?)?, operation)?;
        }
        if operation == operation::AVERAGE {
            let count = parts.len() as i64;
            value = value.combine(Value::Int(count), |sum, count| sum / count, |sum, count| sum / count);
        }
        element.store(value, position);
    }
    Some(result)
}

fn combine(a: Value, b: Value, operation: i32) -> Option<Value> {
    Some(match operation {
        operation::SUM | operation::AVERAGE => a.combine(b, i64::wrapping_add, |a, b| a + b),
        operation::PRODUCT => a.combine(b, i64::wrapping_mul, |a, b| a * b),
        operation::MAX => a.combine(b, i64::max, f64::max),
        operation::MIN => a.combine(b, i64::min, f64::min),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<const N: usize, T, const S: usize>(values: [T; N], to: fn(T) -> [u8; S]) -> Vec<u8> {
        values.into_iter().flat_map(to).collect()
    }

    #[test]
    fn reductions_are_done_element_by_element() {
        let (a, b) = (bytes([1, -5, 7], i64::to_le_bytes), bytes([10, 2, -7], i64::to_le_bytes));
        for (operation, wanted) in [
            (operation::SUM, [11, -3, 0]),
            (operation::PRODUCT, [10, -10, -49]),
            (operation::MAX, [10, 2, 7]),
            (operation::MIN, [1, -5, -7]),
            (operation::AVERAGE, [5, -1, 0]),
        ] {
            assert_eq!(reduce(&[&a, &b], 4, operation), Some(bytes(wanted, i64::to_le_bytes)), "{operation}");
        }
        let thirds = bytes([1.0, 2.0], f32::to_le_bytes);
        let average =
            reduce(&[&thirds, &thirds, &bytes([4.0, 5.0], f32::to_le_bytes)], 7, operation::AVERAGE);
        assert_eq!(average, Some(bytes([2.0, 3.0], f32::to_le_bytes)));
    }

    #[test]
    fn unsupported_reductions_return_none() {
        let part = [0; 8];
        assert_eq!(reduce(&[&part, &part], 4, 5), None, "an operation of the program's own");
        assert_eq!(reduce(&[&part, &part], 5, operation::MAX), None, "the order of unsigned numbers");
        assert_eq!(reduce(&[&part, &part], 10, operation::SUM), None, "eight-bit floats");
        assert_eq!(reduce(&[&part, &part[..4]], 4, operation::SUM), None, "too short");
        assert_eq!(reduce(&[], 4, operation::SUM), None);
    }
}
