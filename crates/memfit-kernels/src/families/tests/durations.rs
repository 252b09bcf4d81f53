//! Tests of the durations of launches.

#![allow(unsafe_code, reason = "the tests call as C callers do")]

use memfit_abi::In;
use memfit_channel::WorkKind;

use super::super::Descriptor;
use crate::{
    binary::{Code, Function, Param},
    cost::{
        Prepared, Work,
        kernel::{Attention, Flex},
        speeds::card_speeds,
    },
    launch::{Arguments, Grid, Launch},
    memory::testing::Bytes,
};

const ADD: &str =
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_";
const FILL: &str =
    "_ZN2at6native29vectorized_elementwise_kernelILi2ENS0_11FillFunctorIlEESt5arrayIPcLm1EEEEviT0_T1_";

/// Arguments laid out in memory as for a launch.
struct Packed(Vec<Vec<u64>>);

impl Packed {
    fn launch(&self, name: &str, blocks: u32) -> Work {
        let grid = Grid { blocks: [blocks, 1, 1], threads: 128 };
        self.launch_after(&Prepared::new(), name, grid, "a100-80gb")
    }

    fn launch_after(&self, prepared: &Prepared, name: &str, grid: Grid, card: &str) -> Work {
        let addresses: Vec<u64> = self.0.iter().map(|argument| argument.as_ptr() as u64).collect();
        let size = |argument: &Vec<u64>| Param { offset: 0, size: 8 * argument.len() as u32 };
        let sizes: Vec<Param> = self.0.iter().map(size).collect();
        // SAFETY: each address is that of an argument of that size.
        let arguments = unsafe { Arguments::new(In::from_address(addresses.as_ptr() as u64), &sizes) };
        let launch = Launch { grid, arguments, memory: &Bytes::new(None) };
        Descriptor::new(name, None).work(launch, prepared, &card_speeds(card), Function::default)
    }
}

#[test]
fn an_elementwise_kernel_moves_its_operands() {
    let count = 1_u64 << 28;
    let time =
        |name, tensors| Packed(vec![vec![count], vec![0; 4], vec![0; tensors]]).launch(name, 1).length as f64;
    let (add, fill) = (time(ADD, 3), time(FILL, 1));
    // PyTorch's addition of 134 million numbers on a V100, in the output of Triton's tutorial 01-vector-add.
    let grid = Grid { blocks: [1, 1, 1], threads: 128 };
    let published = (3 * 4 * (count / 2)) as f64 / 831.3;
    let on_v100 = Packed(vec![vec![count / 2], vec![0; 4], vec![0; 3]])
        .launch_after(&Prepared::new(), ADD, grid, "v100-32gb")
        .length as f64;
    assert!((0.9..1.1).contains(&(on_v100 / published)), "{on_v100} ns, published {published}");
    assert!((1.4..1.6).contains(&(add / fill)), "three floats and one long: {add} and {fill}");
    let small = Packed(vec![vec![16], vec![0; 4], vec![0; 3]]).launch(ADD, 1).length;
    assert!((1_000..5_000).contains(&small), "{small} ns: hardly more than a launch");
}

#[test]
fn lists_of_tensors_are_read_whatever_their_room() {
    let name = "_ZN2at6native12_GLOBAL__N_125multi_tensor_apply_kernelINS1_18TensorListMetadataILi1EEENS1_21BinaryOpScalarFunctorIfLi1ELi1ELi0EEEJSt4plusIfEfEEEvT_T0_DpT1_";
    let times = |room: usize, part: u64| {
        // Two tensors, of one and a half pieces and of half a piece or a part of it, in three blocks.
        let (tensors, blocks) = (110 * room, 320 * room);
        let mut bytes = vec![0_u8; 8 * tensors];
        for size in (0..tensors).map(|index| match index {
            0 => 98_304_u64,
            1 => 32_768 / part,
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
    // Read and written, four bytes each: at most as fast as the card's cache, and no slower than half of its
    // memory.
    let speeds = card_speeds("a100-80gb");
    let bytes = 8.0 * 131_072.0;
    for room in [1, 7] {
        let time = times(room, 1) as f64 - speeds.launch;
        let least = speeds.traffic(bytes, 1.0);
        assert!((least..4.0 * least).contains(&time), "room for {room}: {time} ns, at least {least}");
        assert_eq!(times(room, 1), times(1, 1), "room for {room}");
        assert!(times(room, 1) > times(room, 2), "more elements take longer");
    }
}

#[test]
fn names_tell_families() {
    for (name, family) in [
        (ADD, "elementwise"),
        ("triton_poi_fused_add_mul_0", "Inductor's pointwise kernels and reductions"),
        ("triton_red_fused__log_softmax_1", "Inductor's pointwise kernels and reductions"),
        ("triton_tem_fused_mm_3", "Inductor's products of matrices"),
        ("triton_tem_fused_flex_attention_0", "other Triton kernels"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "attention"),
        ("_Z3addPKfPfi", "unknown"),
        ("", "unknown"),
    ] {
        assert_eq!(Descriptor::new(name, None).family().name, family, "{name}");
    }
}

#[test]
fn attention_without_a_readable_shape_is_guessed() {
    let attention = Attention::from_name("fmha_cutlassF_f16_aligned_64x128_rf_sm80").unwrap();
    let grid = Grid { blocks: [16, 12, 8], threads: 128 };
    let nothing = [0_u64; 128];
    let addresses = [nothing.as_ptr() as u64];
    let sizes = vec![Param { offset: 0, size: 8 }; addresses.len()];
    // SAFETY: each address is that of a word or more.
    let arguments = unsafe { Arguments::new(In::from_address(addresses.as_ptr() as u64), &sizes) };
    let operand = 8.0 * 12.0 * 2048.0 * 64.0 * 2.0;
    let speeds = card_speeds("a100-80gb");
    let work = attention.work(grid, arguments, &speeds, &[operand; 4]);
    let operations = 4.0 * 8.0 * 12.0 * 2048.0 * 2048.0 * 64.0;
    let rate = operations / work.length as f64 / 1e3;
    assert!((40.0..200.0).contains(&rate), "{rate} TFLOP/s");
}

/// Builds the parameters of a memory-efficient kernel: `addresses` words of addresses, then the given words.
fn efficient_work(name: &str, blocks: [u32; 3], addresses: usize, words: &[i32]) -> f64 {
    let attention = Attention::from_name(name).unwrap();
    let mut parameters = vec![0x7f00_i32; addresses];
    parameters.extend_from_slice(words);
    parameters.resize(128, 0);
    let list = [parameters.as_ptr() as u64];
    let sizes = vec![Param { offset: 0, size: 512 }];
    // SAFETY: the address is that of 128 words.
    let arguments = unsafe { Arguments::new(In::from_address(list.as_ptr() as u64), &sizes) };
    let grid = Grid { blocks, threads: 128 };
    attention.work(grid, arguments, &card_speeds("a100-80gb"), &[1e9]).length as f64
}

#[test]
fn the_memory_efficient_kernels_say_their_shapes_and_masks() {
    type Layout = fn(i32) -> Vec<i32>;
    const FORWARD: &str = "fmha_cutlassF_bf16_aligned_64x128_rf_sm80";
    const BACKWARD: &str = "fmha_cutlassB_bf16_aligned_64x64_k64_sm80";
    let forward = |mask: i32| {
        let words = [64, 64, 1024, 1024, 1024, mask, 768, 768, 768];
        efficient_work(FORWARD, [16, 12, 32], 24, &words)
    };
    let plain = forward(0x5500);
    for mask in [1, 2] {
        assert!((0.5..0.58).contains(&(forward(0x5500 + mask) / plain)), "half of it, and whole tiles");
    }
    // By release: 32-bit strides; 64-bit ones; 64-bit ones with one more word before the mask.
    let layouts: [(&str, Layout); 3] = [
        ("2.6", |mask| vec![64, 64, 1024, 1024, 12, mask, 64, 64, 64, 1024, 768, 1024, 1]),
        ("2.9", |mask| {
            vec![64, 64, 1024, 1024, 12, mask, 64, 0, 64, 0, 64, 0, 1024, 0, 768, 0, 1024, 0, 0x0001_0001]
        }),
        ("2.15", |mask| {
            let strides = [64, 0, 64, 0, 64, 0, 1024, 0, 768, 0, -1, -1, 1];
            [&[64, 64, 1024, 1024, 12, 1, mask, 0][..], &strides].concat()
        }),
    ];
    for (release, words) in layouts {
        for parts in [1, 16] {
            let backward = |mask: i32| efficient_work(BACKWARD, [parts, 12, 32], 36, &words(0x3b00 + mask));
            let ratio = backward(0) / plain;
            assert!((2.4..3.3).contains(&ratio), "{release}: five products instead of two: {ratio}");
            assert!((0.5..0.58).contains(&(backward(1) / backward(0))), "{release}");
        }
    }
}

#[test]
fn products_in_groups_take_as_long_as_all_of_them() {
    const PREPARES: &str =
        "_ZN2at4cuda6detail25prepare_grouped_gemm_dataIN7cutlass10bfloat16_tES4_S4_fEEvPT_";
    const PRODUCTS: &str = "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalINS1_17GroupProblemShapeIN4cute5tupleIJiiiEEEEEEEEvNT_6ParamsE";
    let (tokens, width, hidden, groups) = (1_u64 << 15, 4096_u64, 1024_u64, 16.0);
    // Fifteen addresses, the extents, three lists of strides, and the extents of both operands; the tokens
    // are divided.
    let mut arguments = vec![vec![0]; 15];
    arguments.extend([vec![u64::from(u32::MAX)], vec![hidden], vec![width]]);
    arguments.extend(vec![vec![0; 3]; 3]);
    arguments.extend([vec![tokens, width, 0], vec![groups as u64, width, hidden]]);
    let prepared = Prepared::new();
    let grid = Grid { blocks: [1, 1, 1], threads: groups as u32 };
    assert!(Packed(arguments).launch_after(&prepared, PREPARES, grid, "h100").length < 10_000);
    let products = || {
        let grid = Grid { blocks: [132, 1, 1], threads: 128 };
        Packed(vec![vec![0]]).launch_after(&prepared, PRODUCTS, grid, "a100-80gb").length
    };
    let time = products() as f64;
    let operations = 2.0 * (tokens * width * hidden) as f64;
    let rate = operations / time / 1e3;
    assert!((100.0..300.0).contains(&rate), "{rate} TFLOP/s of 312");
    assert!(products() < 10_000, "what was prepared is used once");
}

#[test]
fn a_compiled_kernel_takes_as_long_as_its_instructions_or_what_it_looks_up() {
    let empty: [u64; 1] = [0];
    let time = |instructions: u32, loaded: u32| {
        let function = || Function { code: Code { instructions, loaded }, ..Function::default() };
        let grid = Grid { blocks: [108 * 64, 1, 1], threads: 128 };
        let none = Vec::new();
        // SAFETY: there are no arguments.
        let arguments = unsafe { Arguments::new(In::from_address(empty.as_ptr() as u64), &none) };
        let launch = Launch { grid, arguments, memory: &Bytes::new(None) };
        let descriptor = Descriptor::new("triton_per_fused_0", None);
        descriptor.work(launch, &Prepared::new(), &card_speeds("a100-80gb"), function).length as f64
    };
    let launch = time(0, 0);
    // Warps of an A100's multiprocessor begin two instructions a cycle, at no more than its 1.41 GHz.
    let (warps, cycles) = (64.0 * 4.0, 1.41);
    let computing = time(1_000, 0) - launch;
    assert!((1.0..1.25).contains(&(computing / (warps * 1_000.0 / 2.0 / cycles))), "{computing} ns");
    assert!((0.95..1.05).contains(&((time(2_000, 0) - launch) / computing / 2.0)));
    // A hundred words, each of which takes three to four turns.
    let looking_up = (time(10, 400) - launch) / (warps * 100.0 / cycles);
    assert!((3.0..4.4).contains(&looking_up), "{looking_up}");
}

#[test]
fn a_template_is_as_fast_as_its_type_and_is_sure_only_of_what_it_knows() {
    let text = |kind: &str, precision: &str| {
        format!(
            "  tt.func public @triton_tem_fused_mm_3(%arg_A: !tt.ptr<{kind}>) attributes {{noinline = false}} {{\n    \
             %acc = tt.dot %a, %b, %c{precision} : tensor<64x32x{kind}> * tensor<32x64x{kind}> -> tensor<64x64xf32>\n  }}\n"
        )
    };
    // Operands of 4096 × 4096 elements, each a block of its own.
    let work = |name: &str, text: Option<&str>, element: u64, batch: u32| {
        let (memory, extent) = (Bytes::new(None), 4096_u64);
        let addresses = [1_u64, 2, 3].map(|number| number << 40);
        let bytes = extent * extent * element * u64::from(batch);
        for address in addresses {
            memory.block(address, bytes);
        }
        let pointers = addresses.map(|address| std::ptr::from_ref(Box::leak(Box::new(address))) as u64);
        let sizes = vec![Param { offset: 0, size: 8 }; 3];
        // SAFETY: each address is that of a word.
        let arguments = unsafe { Arguments::new(In::from_address(pointers.as_ptr() as u64), &sizes) };
        let grid = Grid { blocks: [1024, batch, 1], threads: 128 };
        let launch = Launch { grid, arguments, memory: &memory };
        let speeds = card_speeds("a100-80gb");
        Descriptor::new(name, text).work(launch, &Prepared::new(), &speeds, Function::default)
    };
    let rate = |work: Work, batch: f64| 2.0 * batch * 4096_f64.powi(3) / work.length as f64 / 1e3;
    let name = "triton_tem_fused_mm_3";
    for (kind, precision, element, at_least, at_most) in [
        ("bf16", "", 2, 180.0, 312.0),
        ("f32", ", inputPrecision = tf32", 4, 80.0, 156.0),
        ("f32", ", inputPrecision = ieee", 4, 10.0, 19.5),
    ] {
        for batch in [1, 16] {
            let work = work(name, Some(&text(kind, precision)), element, batch);
            assert_eq!(work.kind, WorkKind::Matmul);
            let rate = rate(work, batch.into());
            assert!((at_least..at_most).contains(&rate), "{kind}{precision} x {batch}: {rate} TFLOP/s");
        }
    }
    assert_eq!(work(name, None, 2, 1).kind, WorkKind::Guess, "without a text");
    let convolution = text("bf16", "").replace("fused_mm", "fused_convolution");
    let convolution = work("triton_tem_fused_convolution_3", Some(&convolution), 2, 1);
    assert_eq!(convolution.kind, WorkKind::Guess, "operands of a convolution are not matrices");
}

#[test]
fn the_text_of_a_kernel_tells_flex_attention() {
    let text = |params: &str| {
        format!(
            "module {{\n  tt.func public @triton_tem_fused_3({params}) attributes {{noinline = false}} {{\n    \
             %o = scf.for %i = %a to %b step %c iter_args(%acc = %z) -> (tensor<64x128xf32>) : i32 {{\n      \
             %qk = tt.dot %q, %k, %zero : tensor<64x128xbf16> * tensor<128x32xbf16> -> tensor<64x32xf32> loc(#1)\n    \
             }}\n    tt.return\n  }}\n}}\n"
        )
    };
    let lists = "%arg_KV_NUM_BLKS: !tt.ptr<i32> {tt.divisibility = 16 : i32}, %arg_KV_IDX: !tt.ptr<i32>, \
                 %arg_FULL_KV_NUM_BLKS: !tt.ptr<i32>";
    let forward = text(&format!("%arg_Q: !tt.ptr<bf16>, %arg_LSE: !tt.ptr<f32>, {lists}"));
    let backward =
        text(&format!("%arg_Q: !tt.ptr<bf16>, %arg_LSE: !tt.ptr<f32>, %arg_DELTA: !tt.ptr<f32>, {lists}"));
    let numbered =
        text("%arg0: !tt.ptr<bf16> loc(\"arg_Q\"(#loc)), %arg1: !tt.ptr<i32> loc(\"arg_KV_NUM_BLKS\"(#loc))");
    let of = |text: &str| Flex::from_text(text, "triton_tem_fused_3");
    for text in [&forward, &backward, &numbered] {
        assert!(of(text).is_some(), "{text}");
        assert_eq!(Flex::from_text(text, "triton_tem_fused"), None, "another kernel");
    }
    assert_eq!(of(&text("%arg_A: !tt.ptr<bf16>, %arg_B: !tt.ptr<bf16>")), None, "a product of matrices");
    assert_eq!(of(&forward.replace("tt.dot", "tt.load")), None);

    // The mask is unknown: half of it is assumed to remain.
    let speeds = card_speeds("a100-80gb");
    let nothing = [0_u64; 8];
    let addresses: Vec<u64> = nothing.iter().map(|word| std::ptr::from_ref(word) as u64).collect();
    let sizes = vec![Param { offset: 0, size: 8 }; addresses.len()];
    // SAFETY: each address is that of a word or more.
    let arguments = unsafe { Arguments::new(In::from_address(addresses.as_ptr() as u64), &sizes) };
    let grid = Grid { blocks: [64, 2, 24], threads: 128 };
    let launch = Launch { grid, arguments, memory: &Bytes::new(None) };
    let work = of(&forward).unwrap().work(launch, &speeds, 0.0);
    assert_eq!(work.kind, WorkKind::Guess);
    let operations = 2.0 * 2.0 * 48.0 * 4096.0 * 4096.0 / 2.0 * 128.0;
    let rate = operations / work.length as f64 / 1e3;
    assert!((150.0..220.0).contains(&rate), "{rate} TFLOP/s of 312");
}
