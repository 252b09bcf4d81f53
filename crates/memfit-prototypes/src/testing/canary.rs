//! Out-parameters that detect which of their bytes were written.

#![allow(unsafe_code, reason = "the test bench calls C functions")]

use crate::{Kind, Parameter};

/// Guard bytes after the value, which detect writes past an out-parameter.
const GUARD: usize = 64;

/// An out-parameter for each of two calls, filled with a different byte before each.
pub struct Canary {
    size: usize,
    /// Bytes from the start that must be written.
    required: usize,
    fills: [Vec<u8>; 2],
}

/// Fill bytes of the two calls: a byte that keeps both was written by neither.
const FILLS: [u8; 2] = [0xa5, 0x5a];

impl Canary {
    /// Creates a canary for a listed out-parameter.
    pub fn new(parameter: &Parameter) -> Self {
        let size = size_of_kind(&parameter.kind);
        // A text is written up to its end; the caller provides the space.
        let required = if parameter.kind == Kind::Text { 1 } else { size };
        Self { size, required, fills: FILLS.map(|fill| vec![fill; size + GUARD]) }
    }

    /// Address for call number `round`.
    pub fn address(&mut self, round: usize) -> *mut u8 {
        self.fills[round].as_mut_ptr()
    }

    /// Bytes after call number `round`.
    pub fn bytes(&self, round: usize) -> &[u8] {
        &self.fills[round][..self.size]
    }

    /// Checks both calls; an error describes the fault.
    pub fn judge(&self) -> Result<(), String> {
        let unwritten =
            |index: usize| FILLS.iter().zip(&self.fills).all(|(fill, bytes)| bytes[index] == *fill);
        if let Some(index) = (0..self.required).find(|&index| unwritten(index)) {
            return Err(format!("byte {index} of {} was not written", self.size));
        }
        for (fill, bytes) in FILLS.iter().zip(&self.fills) {
            if bytes[self.size..].iter().any(|byte| byte != fill) {
                return Err(format!("more than its {} bytes were written", self.size));
            }
        }
        Ok(())
    }
}

/// Size of a value of a kind in memory.
pub fn size_of_kind(kind: &Kind) -> usize {
    match kind {
        Kind::U8 => 1,
        Kind::U16 => 2,
        Kind::Int | Kind::U32 | Kind::F32 => 4,
        Kind::Complex64 => 16,
        Kind::Bytes(size) => *size,
        Kind::Text => 1 << 16,
        Kind::Void | Kind::Variadic => 0,
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Flow;

    fn canary(kind: Kind) -> Canary {
        Canary::new(&Parameter { flow: Flow::Out, kind, optional: false, default: None })
    }

    fn write(canary: &mut Canary, bytes: &[u8]) {
        for round in 0..2 {
            // SAFETY: the canary has its value's bytes followed by the guard.
            unsafe { canary.address(round).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
    }

    #[test]
    fn written_bytes_are_told_apart_from_untouched_ones() {
        let mut whole = canary(Kind::Int);
        write(&mut whole, &[0xa5, 0x5a, 0, 1]);
        assert_eq!(whole.judge(), Ok(()), "a value may hold a byte of the filling");
        assert!(canary(Kind::Int).judge().is_err(), "nothing was written");
        let mut half = canary(Kind::Size);
        write(&mut half, &[0; 4]);
        assert_eq!(half.judge(), Err("byte 4 of 8 was not written".to_owned()));
        let mut more = canary(Kind::Int);
        write(&mut more, &[0; 8]);
        assert_eq!(more.judge(), Err("more than its 4 bytes were written".to_owned()));
    }

    #[test]
    fn a_text_need_not_fill_its_room() {
        let mut text = canary(Kind::Text);
        write(&mut text, b"\0");
        assert_eq!(text.judge(), Ok(()));
    }
}
