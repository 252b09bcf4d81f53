//! Memory that tells whether it was written.

#![allow(unsafe_code, reason = "the test bench calls C functions")]

use crate::{Kind, Parameter};

/// Room behind the value: a call that writes past its out-parameter is seen.
const GUARD: usize = 64;

/// One out-parameter in each of two calls, filled with a different byte before each.
pub struct Canary {
    size: usize,
    /// How many bytes from the start must be written.
    required: usize,
    fills: [Vec<u8>; 2],
}

/// What the two calls fill with: a byte that shows both was written by neither.
const FILLS: [u8; 2] = [0xa5, 0x5a];

impl Canary {
    /// For a listed out-parameter.
    pub fn new(parameter: &Parameter) -> Self {
        let size = size_of_kind(&parameter.kind);
        // A text is written up to its end; the room for it is the caller's.
        let required = if parameter.kind == Kind::Text { 1 } else { size };
        Self { size, required, fills: FILLS.map(|fill| vec![fill; size + GUARD]) }
    }

    /// Where call number `round` writes.
    pub fn address(&mut self, round: usize) -> *mut u8 {
        self.fills[round].as_mut_ptr()
    }

    /// What call number `round` wrote.
    pub fn bytes(&self, round: usize) -> &[u8] {
        &self.fills[round][..self.size]
    }

    /// What is wrong after both calls.
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

/// How large a value of a kind is in memory.
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
            // SAFETY: the canary has its value's bytes and the guard behind them.
            unsafe { canary.address(round).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
    }

    #[test]
    fn what_was_written_is_told_from_what_was_not() {
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
