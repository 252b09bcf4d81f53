//! Instructions and loads per thread of a kernel, counted in its machine code.
//!
//! Since Volta, an instruction is 16 bytes long. Two of its fields are read here: the opcode, and the width
//! of a load. In loops, each instruction counts once, so the counts are lower bounds.

/// Lower bounds on the work of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// Instructions up to the end of the kernel's body; 0 if the machine code is unknown.
    pub instructions: u32,
    /// Bytes loaded from global memory, whether from DRAM or from a cache.
    pub loaded: u32,
}

/// Bytes per instruction.
const INSTRUCTION_BYTES: usize = 16;
/// Unconditional `EXIT`. The code after it is only called in rare cases, such as the division of denormals.
const EXIT: u64 = 0x794d;
/// `LDG`: lower byte of the opcode in each of its forms.
const LOAD: u64 = 0x81;
/// Upper byte of its forms: the address in registers, or partly in a uniform register.
const LOAD_FORMS: [u64; 2] = [0x3, 0x9];

impl Code {
    /// Counts the instructions of a kernel up to its unconditional `EXIT`. Returns the default (unknown) if
    /// there is none: code for architectures before Volta, or invalid code.
    pub(super) fn parse(text: &[u8]) -> Self {
        let mut code = Self::default();
        for instruction in text.chunks_exact(INSTRUCTION_BYTES) {
            let word = |at: usize| {
                instruction[at..at + 8].iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte))
            };
            let (low, high) = (word(0), word(8));
            code.instructions = code.instructions.saturating_add(1);
            if low & 0xffff == EXIT {
                return code;
            }
            if low & 0xff == LOAD && LOAD_FORMS.contains(&(low >> 8 & 0xf)) {
                code.loaded = code.loaded.saturating_add(loaded(high));
            }
        }
        Self::default()
    }
}

/// Bytes per load, from the upper word of its instruction.
fn loaded(high: u64) -> u32 {
    match high >> 9 & 0x7 {
        0 | 1 => 1,
        2 | 3 => 2,
        4 => 4,
        5 => 8,
        6 => 16,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instructions as `nvdisasm -hex` prints them for sm_80 and sm_70.
    const LOAD_64: [u64; 2] = [0x0000_0004_0404_7981, 0x000e_a200_0c1e_1b00];
    const LOAD_32: [u64; 2] = [0x0000_0004_0200_7981, 0x000e_a800_0c1e_1900];
    const VOLTA_LOAD_32: [u64; 2] = [0x0000_0000_0200_7381, 0x000e_a400_001e_e900];
    const MAYBE_EXIT: [u64; 2] = [0x0000_0000_0000_094d, 0x000f_ea00_0380_0000];
    const EXIT_ALWAYS: [u64; 2] = [0x0000_0000_0000_794d, 0x000f_ea00_0380_0000];
    const BRANCH: [u64; 2] = [0xffff_fff0_0000_7947, 0x000f_c000_0383_ffff];

    fn text(instructions: &[[u64; 2]]) -> Vec<u8> {
        instructions.iter().flatten().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn parsing_stops_at_the_unconditional_exit() {
        let code =
            Code::parse(&text(&[MAYBE_EXIT, LOAD_64, LOAD_32, VOLTA_LOAD_32, EXIT_ALWAYS, BRANCH, LOAD_64]));
        assert_eq!(code, Code { instructions: 5, loaded: 16 });
    }

    #[test]
    fn code_without_an_exit_is_unknown() {
        for bytes in [vec![], vec![0; 64], text(&[LOAD_64, BRANCH]), vec![0xff; 40]] {
            assert_eq!(Code::parse(&bytes), Code::default());
        }
    }
}
