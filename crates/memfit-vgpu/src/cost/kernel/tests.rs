//! Families of kernels by their names, and how long their launches take.

use super::*;
use crate::{abi::In, cost::speeds::of_card, values::Arguments};

const ADD: &str =
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_";
const FILL: &str =
    "_ZN2at6native29vectorized_elementwise_kernelILi2ENS0_11FillFunctorIlEESt5arrayIPcLm1EEEEviT0_T1_";

/// Arguments that lie where a launch would find them.
struct Packed(Vec<Vec<u64>>);

impl Packed {
    fn launch(&self, name: &str, blocks: u32) -> Work {
        let addresses: Vec<u64> = self.0.iter().map(|argument| argument.as_ptr() as u64).collect();
        let arguments = Arguments::new(In::from_address(addresses.as_ptr() as u64));
        let grid = Grid { blocks: [blocks, 1, 1], threads: 128 };
        KernelCost::of(name).work(grid, arguments, &of_card("a100-80gb"), Vec::new)
    }
}

#[test]
fn an_elementwise_kernel_moves_its_operands() {
    let count = 1_u64 << 28;
    let time =
        |name, tensors| Packed(vec![vec![count], vec![0; 4], vec![0; tensors]]).launch(name, 1).length as f64;
    let (add, fill) = (time(ADD, 3), time(FILL, 1));
    let rate = 3.0 * 4.0 * count as f64 / add;
    assert!((1400.0..1700.0).contains(&rate), "{rate} GB/s of 2039");
    assert!((1.4..1.6).contains(&(add / fill)), "three floats and one long: {add} and {fill}");
    let small = Packed(vec![vec![16], vec![0; 4], vec![0; 3]]).launch(ADD, 1).length;
    assert!((1_000..5_000).contains(&small), "{small} ns: hardly more than a launch");
}

#[test]
fn lists_of_tensors_are_read_whatever_their_room() {
    let name = "_ZN2at6native12_GLOBAL__N_125multi_tensor_apply_kernelINS1_18TensorListMetadataILi1EEENS1_21BinaryOpScalarFunctorIfLi1ELi1ELi0EEEJSt4plusIfEfEEEvT_T0_DpT1_";
    let times = |room: usize| {
        // Two tensors, of one piece and a half and of a half, in three blocks.
        let (tensors, blocks) = (110 * room, 320 * room);
        let mut bytes = vec![0_u8; 8 * tensors];
        for size in (0..tensors).map(|index| match index {
            0 => 98_304_u64,
            1 => 32_768,
            _ => 0,
        }) {
            bytes.extend(size.to_le_bytes());
        }
        for block in 0..blocks {
            let tensor = u16::from(block == 2);
            bytes.extend(&tensor.to_le_bytes()[..if room == 1 { 1 } else { 2 }]);
        }
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        for block in 0..blocks {
            bytes.extend(i32::from(block == 1).to_le_bytes());
        }
        let words = bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        Packed(vec![words.collect()]).launch(name, 3).length
    };
    let speeds = of_card("a100-80gb");
    // Read and written, four bytes each.
    let expected = speeds.launch + speeds.traffic(8.0 * 131_072.0, Foreach::SHARE);
    for room in [1, 7] {
        let time = times(room) as f64;
        assert!((0.99..1.01).contains(&(time / expected)), "room for {room}: {time} ns, expected {expected}");
    }
}

#[test]
fn names_tell_families() {
    let of = |name: &str| match Family::of(name) {
        Family::Elementwise(_) => "elementwise",
        Family::Foreach(_) => "foreach",
        Family::Attention(_) => "attention",
        Family::Known { .. } => "known",
        Family::Counted { .. } => "counted",
        Family::Rows => "rows",
        Family::Short => "short",
        Family::Compiled => "compiled",
        Family::Template => "template",
        Family::Unknown => "unknown",
    };
    for (name, family) in [
        (ADD, "elementwise"),
        ("triton_poi_fused_add_mul_0", "compiled"),
        ("triton_red_fused__log_softmax_1", "compiled"),
        ("triton_tem_fused_mm_3", "template"),
        ("triton_tem_fused_flex_attention_0", "unknown"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "attention"),
        ("_Z3addPKfPfi", "unknown"),
        ("", "unknown"),
    ] {
        assert_eq!(of(name), family, "{name}");
    }
}

#[test]
fn attention_without_a_readable_shape_is_guessed() {
    let attention = Attention::of("fmha_cutlassF_f16_aligned_64x128_rf_sm80").unwrap();
    let grid = Grid { blocks: [16, 12, 8], threads: 128 };
    let nothing = [0_u64; 128];
    let addresses = [nothing.as_ptr() as u64];
    let arguments = Arguments::new(In::from_address(addresses.as_ptr() as u64));
    let operand = 8.0 * 12.0 * 2048.0 * 64.0 * 2.0;
    let speeds = of_card("a100-80gb");
    let work = attention.work(grid, arguments, &speeds, &[operand; 4]);
    let operations = 4.0 * 8.0 * 12.0 * 2048.0 * 2048.0 * 64.0;
    let rate = operations / work.length as f64 / 1e3;
    assert!((40.0..200.0).contains(&rate), "{rate} TFLOP/s");
}
