//! Element types of tensors, and their values.

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A truth value.
    Bool,
    /// Eight bits, unsigned.
    U8,
    /// Eight bits, signed.
    I8,
    /// Sixteen bits, signed.
    I16,
    /// Thirty-two bits, signed.
    I32,
    /// Sixty-four bits, signed.
    I64,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
}

/// Value of an element. Arithmetic on it is exact enough that storing rounds once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Integers and truth values.
    Int(i64),
    /// Everything else.
    Real(f64),
}

impl Type {
    /// Parses the name of a C++ type.
    pub fn from_cpp(name: &str) -> Option<Self> {
        Some(match name {
            "bool" => Self::Bool,
            "unsigned char" => Self::U8,
            "signed char" | "char" => Self::I8,
            "short" => Self::I16,
            "int" => Self::I32,
            "long" | "long long" => Self::I64,
            "c10::Half" | "__half" => Self::F16,
            "c10::BFloat16" | "__nv_bfloat16" => Self::Bf16,
            "float" => Self::F32,
            "double" => Self::F64,
            _ => return None,
        })
    }

    /// Bytes per element, from the types mentioned in a longer name: the narrowest of several.
    pub fn mentioned(name: &str) -> usize {
        let has = |part: &str| name.contains(part);
        match name {
            _ if has("BFloat16") || has("Half") => 2,
            _ if has("float") => 4,
            _ if has("double") || has("complex") || has("long") => 8,
            _ if has("bool") || has("char") => 1,
            _ => 4,
        }
    }

    /// Decodes PyTorch's number of the type (`c10::ScalarType`).
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::I16,
            3 => Self::I32,
            4 => Self::I64,
            5 => Self::F16,
            6 => Self::F32,
            7 => Self::F64,
            11 => Self::Bool,
            15 => Self::Bf16,
            _ => return None,
        })
    }

    /// Type at a lambda's position in PyTorch's dispatch over all types, which names them in this order.
    pub fn from_dispatch(position: usize) -> Option<Self> {
        const ORDER: [Type; 7] = [Type::U8, Type::I8, Type::I32, Type::I64, Type::I16, Type::F64, Type::F32];
        ORDER.get(position.checked_sub(1)?).copied()
    }

    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }

    /// Type in which kernels compute with it.
    #[must_use]
    pub fn for_arithmetic(self) -> Self {
        if matches!(self, Self::F16 | Self::Bf16) { Self::F32 } else { self }
    }

    /// Returns `true` for integers and truth values.
    pub fn is_integer(self) -> bool {
        matches!(self, Self::Bool | Self::U8 | Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }

    /// Reads the value at the start of `bytes`; `None` if they are too short.
    pub fn load(self, bytes: &[u8]) -> Option<Value> {
        Some(match self {
            Self::Bool => Value::Int(i64::from(*bytes.first()? != 0)),
            Self::U8 => Value::Int(i64::from(*bytes.first()?)),
            Self::I8 => Value::Int(i64::from(*bytes.first()? as i8)),
            Self::I16 => Value::Int(i64::from(i16::from_le_bytes(*bytes.first_chunk()?))),
            Self::I32 => Value::Int(i64::from(i32::from_le_bytes(*bytes.first_chunk()?))),
            Self::I64 => Value::Int(i64::from_le_bytes(*bytes.first_chunk()?)),
            Self::F16 => Value::Real(half::f16::from_le_bytes(*bytes.first_chunk()?).to_f64()),
            Self::Bf16 => Value::Real(half::bf16::from_le_bytes(*bytes.first_chunk()?).to_f64()),
            Self::F32 => Value::Real(f64::from(f32::from_le_bytes(*bytes.first_chunk()?))),
            Self::F64 => Value::Real(f64::from_le_bytes(*bytes.first_chunk()?)),
        })
    }

    /// Writes a value to the start of `bytes`, converted as C converts it.
    pub fn store(self, value: Value, bytes: &mut [u8]) {
        let mut put = |source: &[u8]| bytes[..source.len()].copy_from_slice(source);
        match self {
            Self::Bool => put(&[u8::from(value.is_true())]),
            Self::U8 | Self::I8 => put(&[value.int() as u8]),
            Self::I16 => put(&(value.int() as i16).to_le_bytes()),
            Self::I32 => put(&(value.int() as i32).to_le_bytes()),
            Self::I64 => put(&value.int().to_le_bytes()),
            Self::F16 => put(&half::f16::from_f64(value.real()).to_le_bytes()),
            Self::Bf16 => put(&half::bf16::from_f64(value.real()).to_le_bytes()),
            Self::F32 => put(&(value.real() as f32).to_le_bytes()),
            Self::F64 => put(&value.real().to_le_bytes()),
        }
    }

    /// Returns the value after a round trip through this type.
    pub fn round(self, value: Value) -> Value {
        let mut bytes = [0; 8];
        self.store(value, &mut bytes);
        self.load(&bytes).unwrap_or(value)
    }
}

impl Value {
    /// Value as an integer, converted as C converts it.
    pub fn int(self) -> i64 {
        match self {
            Self::Int(value) => value,
            Self::Real(value) => value as i64,
        }
    }

    /// Value as a floating-point number.
    pub fn real(self) -> f64 {
        match self {
            Self::Int(value) => value as f64,
            Self::Real(value) => value,
        }
    }

    /// Returns `true` if it is not zero.
    pub fn is_true(self) -> bool {
        match self {
            Self::Int(value) => value != 0,
            Self::Real(value) => value != 0.0,
        }
    }

    /// Compares values of the same type for sorting.
    pub(super) fn order(self, other: Self) -> std::cmp::Ordering {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a.cmp(&b),
            _ => self.real().total_cmp(&other.real()),
        }
    }

    /// Combines two values of the same type.
    #[must_use]
    pub fn combine(self, other: Self, int: impl Fn(i64, i64) -> i64, real: impl Fn(f64, f64) -> f64) -> Self {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Self::Int(int(a, b)),
            _ => Self::Real(real(self.real(), other.real())),
        }
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Int(i64::from(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_keeps_what_it_can_hold() {
        for (kind, value) in [
            (Type::Bool, Value::Int(1)),
            (Type::U8, Value::Int(200)),
            (Type::I8, Value::Int(-100)),
            (Type::I16, Value::Int(-30_000)),
            (Type::I32, Value::Int(-2_000_000_000)),
            (Type::I64, Value::Int(i64::MIN)),
            (Type::F16, Value::Real(-1.5)),
            (Type::Bf16, Value::Real(3.0e38_f64.log2().floor())),
            (Type::F32, Value::Real(f64::from(0.1_f32))),
            (Type::F64, Value::Real(0.1)),
        ] {
            let mut bytes = vec![0xaa; kind.size()];
            kind.store(value, &mut bytes);
            assert_eq!(kind.load(&bytes), Some(value), "{kind:?}");
            assert_eq!(kind.load(&bytes[1..]), None, "{kind:?} cut short");
        }
    }

    #[test]
    fn conversions_follow_c_rules() {
        for (kind, value, expected) in [
            (Type::Bool, Value::Real(0.5), Value::Int(1)),
            (Type::Bool, Value::Real(-0.0), Value::Int(0)),
            (Type::U8, Value::Int(-1), Value::Int(255)),
            (Type::I32, Value::Real(-2.9), Value::Int(-2)),
            (Type::F32, Value::Int(16_777_217), Value::Real(16_777_216.0)),
            (Type::F16, Value::Real(65_520.0), Value::Real(f64::INFINITY)),
        ] {
            assert_eq!(kind.round(value), expected, "{kind:?} of {value:?}");
        }
    }
}
