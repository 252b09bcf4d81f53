//! Tests of the known contents after a launch.

#![allow(unsafe_code, reason = "the tests call as C callers do")]

use std::ffi::c_void;

use memfit_vocabulary::Assumption;

use memfit_abi::In;

use super::super::Descriptor;
use crate::{
    binary::Param,
    launch::{Arguments, Grid, Launch},
    layout::strides::tests::calculator,
    memory::{Memory, Origin, testing::Bytes},
};

const X: u64 = 0x7f00_0000_0000;
const Y: u64 = X + 0x1000;
const OUT: u64 = X + 0x3000;

/// Bytes of one argument.
fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn addresses(list: &[u64]) -> Vec<u8> {
    list.iter().flat_map(|address| address.to_le_bytes()).collect()
}

fn longs(list: &[i64]) -> Vec<u8> {
    list.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn floats(list: &[f32]) -> Vec<u8> {
    list.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn memory() -> Bytes {
    Bytes::new(Some(memfit_channel::ValuePolicy::UPPER))
}

fn know(memory: &Bytes, address: u64, content: &[u8]) {
    memory.write(address, content, Origin::True);
}

fn launch(memory: &Bytes, mangled: &str, arguments: &[Vec<u8>], grid_y: u32) {
    // The launch may read past the end of an argument by at most a functor's minimum size.
    let padded: Vec<Vec<u8>> =
        arguments.iter().map(|argument| [argument.as_slice(), &[0; 16]].concat()).collect();
    let pointers: Vec<*mut c_void> =
        padded.iter().map(|argument| argument.as_ptr().cast_mut().cast()).collect();
    let grid = Grid { blocks: [1, grid_y, 1], threads: 1 };
    let sizes: Vec<Param> =
        padded.iter().map(|argument| Param { offset: 0, size: argument.len() as u32 }).collect();
    // SAFETY: each address is that of an argument of that size.
    let arguments = unsafe { Arguments::new(In::from_address(pointers.as_ptr() as u64), &sizes) };
    Descriptor::new(mangled, None).apply(Launch { grid, arguments, memory });
}

/// Does the same with arguments of exactly the given sizes.
fn launch_exactly(memory: &Bytes, mangled: &str, arguments: &[Vec<u8>]) {
    launch_blocks(1, memory, mangled, arguments);
}

/// Does the same for several blocks.
fn launch_blocks(blocks: u32, memory: &Bytes, mangled: &str, arguments: &[Vec<u8>]) {
    let pointers: Vec<*mut c_void> =
        arguments.iter().map(|argument| argument.as_ptr().cast_mut().cast()).collect();
    let sizes: Vec<Param> =
        arguments.iter().map(|argument| Param { offset: 0, size: argument.len() as u32 }).collect();
    // SAFETY: each address is that of an argument of that size.
    let arguments = unsafe { Arguments::new(In::from_address(pointers.as_ptr() as u64), &sizes) };
    let grid = Grid { blocks: [blocks, 1, 1], threads: 1 };
    Descriptor::new(mangled, None).apply(Launch { grid, arguments, memory });
}

#[test]
fn an_unknown_kernel_may_write_to_everything_its_arguments_point_to() {
    let numba = "_ZN6cudapy8__main__4workB2v1B8c_2ctypeE5ArrayIfLi1E1C7mutable7alignedE";
    let structure = [vec![0; 8], addresses(&[OUT]), vec![0; 24]].concat();
    for (name, arguments) in [
        // A structure by value, in a C++ kernel and in one without a signature.
        ("_ZN7cutlass6KernelINS_4GemmEEEvNT_6ParamsE", vec![structure.clone()]),
        ("fused_work", vec![structure]),
        // No `const` anywhere.
        ("_Z4workPfS_i", vec![addresses(&[X]), addresses(&[OUT]), bytes(&[4])]),
        // One array of Numba's is seven parameters.
        (numba, [0, 0, 4, 4, OUT, 4, 4].map(|word| addresses(&[word])).to_vec()),
    ] {
        let memory = memory();
        know(&memory, OUT, &[0; 16]);
        launch_exactly(&memory, name, &arguments);
        assert_eq!(known_contents(&memory, OUT, 4), None, "{name}");
    }
    let memory = memory();
    know(&memory, X, &[1; 16]);
    know(&memory, OUT, &[0; 16]);
    launch_exactly(&memory, "_Z4workPfPKf", &[addresses(&[OUT]), addresses(&[X])]);
    assert!(
        known_contents(&memory, OUT, 4).is_none() && known_contents(&memory, X, 4).is_some(),
        "it says that it only reads"
    );
}

#[test]
fn every_tensor_of_a_list_is_written_whatever_its_room_and_what_an_earlier_one_left_there_is_not() {
    // Kernels of one list, with and without the flag of later releases.
    let name = |metadata: &str| {
        format!(
            "_ZN2at6native12_GLOBAL__N_125multi_tensor_apply_kernelINS1_18TensorListMetadataI{metadata}EENS1_21BinaryOpScalarFunctorIfLi1ELi1ELi0EEEJSt4plusIfEfEEEvT_T0_DpT1_"
        )
    };
    for (metadata, tensors, size, index) in
        [("Li1E", 110, 3360, 1), ("Li1E", 770, 25_764, 2), ("Li1ELb1E", 770, 25_764, 2)]
    {
        let memory = memory();
        let places: Vec<u64> = (0..tensors).map(|tensor| OUT + 512 * tensor).collect();
        for place in &places {
            know(&memory, *place, &floats(&[1.0, 1.0]));
        }
        let mut lists = addresses(&places);
        // The numbers of elements, then the tensor of each block.
        lists.extend(addresses(&vec![2; places.len()]));
        lists.extend((0..tensors).flat_map(|tensor| (tensor as u16).to_le_bytes()[..index].to_vec()));
        lists.resize(size, 0);
        let left = || {
            places
                .iter()
                .filter(|place| known_contents(&memory, **place, 4).is_some())
                .copied()
                .collect::<Vec<_>>()
        };
        let launch = |blocks: u32| {
            let arguments = [lists.clone(), vec![0], vec![0], bytes(&[0])];
            launch_blocks(blocks, &memory, &name(metadata), &arguments);
        };
        launch(3);
        assert_eq!(left(), places[3..], "{metadata}: of {tensors} tensors");
        launch(tensors as u32);
        assert_eq!(left(), Vec::<u64>::new(), "{metadata}: {tensors} tensors");
    }
}

#[test]
fn norms_of_a_list_are_written_one_by_each_block_and_nothing_that_an_earlier_list_left_there() {
    // Kernels with room for 400 and for 3,200 tensors, and one of the newest with a further pointer.
    for (name, room, further) in [
        ("_ZN2at6native14lpnorm_cleanupIfLNS0_8NormTypeE1EffEEvPKT2_NS0_19TensorListAddressesEi", 400, false),
        (
            "_ZN2at6native14lpnorm_cleanupIfLNS0_8NormTypeE1EfLb0EfEEvPKT3_NS0_19TensorListAddressesEi",
            3200,
            false,
        ),
        ("_ZN2at6native13lpmax_cleanupIfEEvPKT_NS0_19TensorListAddressesEPKli", 3200, true),
    ] {
        let memory = memory();
        let norms = [OUT, OUT + 512];
        for place in [X, norms[0], norms[1], Y] {
            know(&memory, place, &floats(&[1.0]));
        }
        let mut list = addresses(&[norms[0], norms[1], Y]);
        list.resize(8 * room, 0);
        let mut arguments = vec![addresses(&[X]), list];
        arguments.extend(further.then(|| addresses(&[X])));
        arguments.push(bytes(&[1]));
        launch_blocks(2, &memory, name, &arguments);
        let is_known = |place: u64| known_contents(&memory, place, 4).is_some();
        assert!(!is_known(norms[0]) && !is_known(norms[1]), "{name}: the norms");
        assert!(is_known(X) && is_known(Y), "{name}: neither what it reads nor the third of two tensors");
    }
}

#[test]
fn steps_that_are_counted_on_the_card_are_known() {
    let name = "_ZN2at6native12_GLOBAL__N_125multi_tensor_apply_kernelINS1_18TensorListMetadataILi1EEENS1_21BinaryOpScalarFunctorIfLi1ELi1ELi0EEEJSt4plusIfEfEEEvT_T0_DpT1_";
    let memory = memory();
    know(&memory, OUT, &floats(&[2.0]));
    // Space for 110 tensors; two of one element each, the second of which is unknown.
    let mut lists = addresses(&[OUT, X]);
    lists.resize(8 * 110, 0);
    lists.extend(addresses(&[1, 1]));
    lists.resize(16 * 110, 0);
    lists.extend([0, 1]);
    lists.resize(3360, 0);
    launch_blocks(2, &memory, name, &[lists, vec![0], vec![0], floats(&[1.0])]);
    assert_eq!(known_contents(&memory, OUT, 4), Some((floats(&[3.0]), None)));
    assert_eq!(known_contents(&memory, X, 4), None);
}

#[test]
fn another_librarys_kernel_of_a_known_name_is_not_read_past_its_arguments() {
    let own = SUM_LONG.strip_prefix("_ZN2at6native").unwrap();
    let other = format!("_ZN5other6native{}", own.replace("NS0_", "N2at6native"));
    for name in [SUM_LONG.replacen("2at", "2bt", 1), other] {
        let memory = memory();
        know(&memory, OUT, &[0; 16]);
        launch_exactly(&memory, &name, &[addresses(&[X, OUT])]);
        assert_eq!(known_contents(&memory, OUT, 4), None, "{name}: what it does is not known");
    }
}

/// Known contents of `length` bytes, and the rule that supplied them.
fn known_contents(memory: &Bytes, address: u64, length: usize) -> Option<(Vec<u8>, Option<Assumption>)> {
    let (bytes, origin) = memory.get(address, length as u64)?;
    Some((
        bytes,
        match origin {
            Origin::True | Origin::Flags(_) | Origin::Within(_) => None,
            Origin::Answer(rule) | Origin::Guess(rule) => Some(rule),
        },
    ))
}

const ALL_BOOL: &str = "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIbNS0_14func_wrapper_tIbZZZNS0_15and_kernel_cudaERNS_14TensorIteratorEENKUlvE_clEvENKUlvE10_clEvEUlbbE_EEjbLi4ELi4EEEEEvT1_";
const ANY_BOOL: &str = "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIbNS0_14func_wrapper_tIbZZZNS0_14or_kernel_cudaERNS_14TensorIteratorEENKUlvE_clEvENKUlvE10_clEvEUlbbE_EEjbLi4ELi4EEEEEvT1_";
const COUNT_BOOL: &str = "_ZN14at_cuda_detail3cub6detail6reduce28DeviceReduceSingleTileKernelINS2_10policy_hubIiyN4cuda3std3__44plusIvEEE10Policy1000EN6thrust38_V_300200_SM_750_800_860_900_1000_120018transform_iteratorIN2at6native43_GLOBAL__N__a7e516da_10_Nonzero_cu_cba1aaa09NonZeroOpIbEEPKbNSD_11use_defaultESM_EEPiyS9_iiNS7_8identityEEEvT0_T1_T2_T3_T4_T6_";
const INDEX_EIGHT: &str = "_ZN2at6native24index_elementwise_kernelILi128ELi4EZNS0_16gpu_index_kernelIZNS0_17index_kernel_implINS0_10OpaqueTypeILi8EEEEEvRNS_18TensorIteratorBaseEN3c108ArrayRefIlEESA_EUlPcPKclE_EEvS7_SA_SA_RKT_bEUliE_EEvlT1_";
const JOIN_EIGHT: &str = "_ZN2at6native40_GLOBAL__N__f1f992fe_8_Shape_cu_49f7391c35CatArrayBatchedCopy_alignedK_contigINS1_10OpaqueTypeILj8EEEjLi2ELi128ELi1ELi16EEEvPT_NS1_25CatArrInputTensorMetadataIS5_T0_XT2_EXT3_EEENS1_16TensorSizeStrideIS8_Lj4EEEiS8_";
const EQUAL_FLOAT: &str = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_13BinaryFunctorIffbNS0_51_GLOBAL__N__68c48bfe_18_CompareEQKernel_cu_d8008c9616CompareEqFunctorIfEEEESt5arrayIPcLm3EELb0EEEviT0_T1_";
const COPY_CAST: &str = "_ZN2at6native27unrolled_elementwise_kernelIZZZNS0_23direct_copy_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE1_clEvENKUlvE5_clEvEUlfE_St5arrayIPcLm2EELi4E23TrivialOffsetCalculatorILi1EjESB_NS0_6memory12LoadWithCastILi1EEENSC_13StoreWithCastILi1EEEEEviT_T0_T2_T3_T4_T5_";
const EQUAL_LONG_STRIDED: &str = "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastINS0_13BinaryFunctorIllbNS0_51_GLOBAL__N__68c48bfe_18_CompareEQKernel_cu_d8008c9616CompareEqFunctorIlEEEEEEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_";
const SUM_LONG: &str = "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIlNS0_14func_wrapper_tIlZNS0_11sum_functorIlllEclERNS_14TensorIteratorEEUlllE_EEjlLi4ELi4EEEEEvT1_";
const FILL_LONG: &str =
    "_ZN2at6native29vectorized_elementwise_kernelILi2ENS0_11FillFunctorIlEESt5arrayIPcLm1EELb0EEEviT0_T1_";
const SCATTER_EIGHT: &str = "_ZN2at6native34_scatter_gather_elementwise_kernelILi128ELi8EZNS0_36_cuda_scatter_gather_internal_kernelILb1ENS0_10OpaqueTypeILi8EEEiEclINS0_12TensorAssignEEEvRNS_14TensorIteratorElllRKT_EUliE_EEviT1_";
const SORT_DOWN: &str = "_ZN2at6native20bitonicSortKVInPlaceILin2ELin1ELi16ELi16EllNS0_4GTOpIlLb1EEEjEEvNS_4cuda6detail10TensorInfoIT3_T6_EES8_S8_S8_NS6_IT4_S8_EES8_T5_";

#[test]
fn a_fill_is_known() {
    let memory = memory();
    launch(&memory, FILL_LONG, &[bytes(&[3]), longs(&[7]), addresses(&[OUT])], 1);
    assert_eq!(known_contents(&memory, OUT, 24), Some((longs(&[7, 7, 7]), None)));
}

#[test]
fn a_sort_takes_values_along() {
    let memory = memory();
    know(&memory, X, &longs(&[3, 9, 3, 5]));
    know(&memory, Y, &longs(&[0, 1, 2, 3]));
    let info = |address: u64| [addresses(&[address]), vec![0; 208]].concat();
    let arguments = [info(X), bytes(&[1]), bytes(&[4]), bytes(&[1]), info(Y), bytes(&[1]), vec![0]];
    launch(&memory, SORT_DOWN, &arguments, 1);
    assert_eq!(known_contents(&memory, X, 32), Some((longs(&[9, 5, 3, 3]), None)));
    assert_eq!(known_contents(&memory, Y, 32), Some((longs(&[1, 3, 0, 2]), None)));
}

#[test]
fn positions_by_unknown_keys_are_in_range_and_differ_for_whoever_reads_them() {
    let memory = memory();
    know(&memory, Y, &longs(&[0, 1, 2, 3]));
    let info = |address: u64| [addresses(&[address]), vec![0; 208]].concat();
    let arguments = [info(X), bytes(&[1]), bytes(&[4]), bytes(&[1]), info(Y), bytes(&[1]), vec![0]];
    launch(&memory, SORT_DOWN, &arguments, 1);
    assert_eq!(known_contents(&memory, Y, 32), None, "nothing follows from them");
    let mut read = [0; 32];
    let found = memory.read(Y, &mut read);
    assert_eq!(
        (found.known, found.answers, read.to_vec()),
        (32, vec![Assumption::Ranking], longs(&[0, 1, 2, 3]))
    );
}

#[test]
fn a_cast_reads_and_writes_the_types_of_the_tensors() {
    let memory = memory();
    know(&memory, X, &longs(&[3, -2]));
    // Loaded as PyTorch's type 4 (long), stored as 6 (float).
    let arguments =
        [bytes(&[2]), vec![0], addresses(&[OUT, X]), vec![0], vec![0], bytes(&[4, 8]), bytes(&[6, 4])];
    launch(&memory, COPY_CAST, &arguments, 1);
    assert_eq!(known_contents(&memory, OUT, 8), Some((floats(&[3.0, -2.0]), None)));
}

#[test]
fn a_comparison_broadcasts() {
    let memory = memory();
    know(&memory, X, &longs(&[1, 2]));
    know(&memory, Y, &longs(&[2, 1, 2]));
    // x[None, :] == y[:, None], dense output of 3 × 2.
    let offsets = calculator(&[(2, &[1, 8, 0]), (3, &[2, 0, 8])], 3);
    let lambda = [offsets, vec![0; 4], addresses(&[OUT, X, Y]), bytes(&[0, 0])].concat();
    launch(&memory, EQUAL_LONG_STRIDED, &[bytes(&[6]), lambda], 1);
    assert_eq!(known_contents(&memory, OUT, 6), Some((vec![0, 1, 1, 0, 0, 1], None)));
}

#[test]
fn values_computed_from_unknown_values_are_unknown() {
    let memory = memory();
    know(&memory, OUT, &floats(&[1.0, 2.0]));
    let arguments =
        [bytes(&[2]), vec![0], addresses(&[OUT, X]), vec![0], vec![0], bytes(&[4, 8]), bytes(&[6, 4])];
    launch(&memory, COPY_CAST, &arguments, 1);
    assert_eq!(known_contents(&memory, OUT, 4), None);
}

#[test]
fn an_unknown_number_equals_itself_by_rule() {
    let memory = memory();
    launch(&memory, EQUAL_FLOAT, &[bytes(&[2]), bytes(&[0]), addresses(&[OUT, X, X])], 1);
    let mut read = [9; 2];
    assert_eq!(memory.read(OUT, &mut read).answers, [Assumption::Finite]);
    assert_eq!(
        (read, known_contents(&memory, OUT, 2)),
        ([1, 1], None),
        "the host reads it, and no count follows"
    );
    let (along, across) = (calculator(&[(2, &[1])], 1), calculator(&[], 2));
    let mut reduced = reduction_argument(1, 2, 1, &along, &across);
    let source = reduced.len() - 48;
    reduced[source..source + 8].copy_from_slice(&OUT.to_le_bytes());
    reduced[source + 8..source + 16].copy_from_slice(&Y.to_le_bytes());
    for kernel in [ALL_BOOL, ANY_BOOL] {
        launch(&memory, kernel, std::slice::from_ref(&reduced), 1);
        assert_eq!(known_contents(&memory, Y, 1), Some((vec![1], Some(Assumption::Finite))));
    }
    let items = [addresses(&[OUT, 0]), addresses(&[Y]), bytes(&[2, 0]), vec![0], bytes(&[0]), vec![0]];
    memory.block(OUT, 64);
    for policy in [memfit_channel::ValuePolicy::UPPER, memfit_channel::ValuePolicy::LOWER] {
        let memory = Bytes::new(Some(policy));
        memory.block(OUT, 64);
        launch(&memory, EQUAL_FLOAT, &[bytes(&[2]), bytes(&[0]), addresses(&[OUT, X, X])], 1);
        launch(&memory, COUNT_BOOL, &items, 1);
        let most = policy.between(0, 2) as u32;
        assert_eq!(known_contents(&memory, Y, 4), Some((bytes(&[most]), Some(Assumption::Nonzero))));
    }
    launch(&memory, EQUAL_FLOAT, &[bytes(&[2]), bytes(&[0]), addresses(&[OUT, X, Y])], 1);
    assert_eq!(known_contents(&memory, OUT, 1), None, "of two tensors nothing is known");
    let silent = Bytes::new(None);
    launch(&silent, EQUAL_FLOAT, &[bytes(&[2]), bytes(&[0]), addresses(&[OUT, X, X])], 1);
    assert_eq!(known_contents(&silent, OUT, 1), None, "rules are off");
}

/// Builds a reduction's one argument: the initial value, the configuration, both calculators, the addresses.
fn reduction_argument(element: usize, folded: u32, kept: u32, along: &[u8], across: &[u8]) -> Vec<u8> {
    let mut argument = vec![0xcc; (2 * element).next_multiple_of(4)];
    let mut configuration = vec![0; 64];
    configuration[4..8].copy_from_slice(&folded.to_le_bytes());
    configuration[8..12].copy_from_slice(&kept.to_le_bytes());
    argument.extend(configuration);
    argument.extend(along);
    argument.extend(across);
    argument.resize(argument.len().next_multiple_of(8), 0xcc);
    argument.extend(addresses(&[X, OUT, 0, 0, 0, 0]));
    argument
}

#[test]
fn rows_are_summed() {
    let memory = memory();
    know(&memory, X, &longs(&[1, 2, 3, 10, 20, 30]));
    let (along, across) = (calculator(&[(3, &[8])], 1), calculator(&[(2, &[8, 24])], 2));
    launch(&memory, SUM_LONG, &[reduction_argument(8, 3, 2, &along, &across)], 1);
    assert_eq!(known_contents(&memory, OUT, 16), Some((longs(&[6, 60]), None)));
    launch(&memory, SUM_LONG, &[reduction_argument(8, 3, 2, &along, &calculator(&[(2, &[8, 1024])], 2))], 1);
    assert_eq!(known_contents(&memory, OUT, 8), None, "the second row is not known");
}

#[test]
fn truth_tests_of_the_unknown_are_answered() {
    let (along, across) = (calculator(&[(3, &[1])], 1), calculator(&[], 2));
    for (kernel, answer, rule) in [(ALL_BOOL, 1, Assumption::AllTrue), (ANY_BOOL, 0, Assumption::UnknownAny)]
    {
        let memory = memory();
        launch(&memory, kernel, &[reduction_argument(1, 3, 1, &along, &across)], 1);
        assert_eq!(known_contents(&memory, OUT, 1), Some((vec![answer], Some(rule))));
        // Known contents are computed: some are true, not all.
        know(&memory, X, &[1, 0, 1]);
        launch(&memory, kernel, &[reduction_argument(1, 3, 1, &along, &across)], 1);
        assert_eq!(known_contents(&memory, OUT, 1), Some((vec![1 - answer], None)));
    }
}

#[test]
fn truths_of_rows_are_a_mask_that_is_counted_by_its_bound() {
    let (along, across) = (calculator(&[(3, &[1])], 1), calculator(&[(4, &[1, 3])], 2));
    for (kernel, truth, rule) in [(ALL_BOOL, 1, Assumption::AllTrue), (ANY_BOOL, 0, Assumption::UnknownAny)] {
        let memory = memory();
        launch(&memory, kernel, &[reduction_argument(1, 3, 4, &along, &across)], 1);
        let mut read = [7; 4];
        assert_eq!(memory.read(OUT, &mut read).answers, [rule]);
        assert_eq!(read, [truth; 4], "as the host reads it");
        let count = [addresses(&[OUT, 0]), addresses(&[Y]), longs(&[4]), vec![0], bytes(&[0]), vec![0]];
        launch(&memory, COUNT_BOOL, &count, 1);
        assert_eq!(known_contents(&memory, Y, 4), Some((bytes(&[4]), Some(Assumption::Nonzero))));
        // Rows that are known are computed.
        know(&memory, X, &[1, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1]);
        launch(&memory, kernel, &[reduction_argument(1, 3, 4, &along, &across)], 1);
        let rows = if truth == 1 { vec![0, 1, 0, 1] } else { vec![1, 1, 0, 1] };
        assert_eq!(known_contents(&memory, OUT, 4), Some((rows, None)));
    }
}

#[test]
fn a_count_is_exact_where_the_mask_is_known_and_else_the_most_it_can_be() {
    let memory = memory();
    let arguments =
        |items: i64| [addresses(&[X, 0]), addresses(&[OUT]), longs(&[items]), vec![0], bytes(&[0]), vec![0]];
    launch(&memory, COUNT_BOOL, &arguments(5), 1);
    assert_eq!(known_contents(&memory, OUT, 4), Some((bytes(&[5]), Some(Assumption::Nonzero))));
    know(&memory, X, &[1, 0, 1, 1, 0]);
    launch(&memory, COUNT_BOOL, &arguments(5), 1);
    assert_eq!(known_contents(&memory, OUT, 4), Some((bytes(&[3]), None)));
}

#[test]
fn elements_are_taken_by_index() {
    let memory = memory();
    know(&memory, X, &longs(&[10, 20, 30]));
    know(&memory, Y, &longs(&[2, 0, -1]));
    let mut lambda = calculator(&[(3, &[8, 0, 8])], 3);
    lambda.extend([0; 4]);
    lambda.extend(addresses(&[OUT, X, 1]));
    let table = |number: i64| [longs(&[number]), vec![0; 192]].concat();
    lambda.extend([table(Y as i64), table(3), table(8)].concat());
    launch(&memory, INDEX_EIGHT, &[longs(&[3]), lambda.clone()], 1);
    assert_eq!(known_contents(&memory, OUT, 24), Some((longs(&[30, 10, 30]), None)));
    know(&memory, Y, &longs(&[2, 0, 7]));
    launch(&memory, INDEX_EIGHT, &[longs(&[3]), lambda], 1);
    assert_eq!(known_contents(&memory, OUT, 8), None, "an index out of range");
}

#[test]
fn a_scatter_forgets_its_output_and_nothing_else() {
    let memory = memory();
    for address in [X, Y, OUT] {
        know(&memory, address, &longs(&[1, 2]));
    }
    let mut lambda = calculator(&[(2, &[8, 8, 8])], 3);
    lambda.extend([0; 4]);
    // The index, its extent, a functor, the output, two numbers, the source.
    lambda.extend(addresses(&[Y, 2, 0, OUT, 8, 2, X]));
    launch(&memory, SCATTER_EIGHT, &[bytes(&[2]), lambda], 1);
    assert_eq!(known_contents(&memory, OUT, 8), None);
    assert!(known_contents(&memory, X, 16).is_some() && known_contents(&memory, Y, 16).is_some());
}

#[test]
fn tensors_are_joined_along_a_dimension() {
    let memory = memory();
    know(&memory, X, &longs(&[1, 2, 3, 4]));
    know(&memory, Y, &longs(&[5, 6]));
    // 2 × 2 and 2 × 1, joined along the second dimension: 2 × 3.
    let mut metadata = vec![0; 2720];
    let mut put = |at: usize, bytes: &[u8]| metadata[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &addresses(&[X, Y]));
    put(1024, &bytes(&[0, 2]));
    put(1536, &bytes(&[2, 1]));
    put(2048, &bytes(&[4, 2]));
    put(2560, &[1, 1]);
    let shape = bytes(&[2, 3, 0, 0, 3, 1, 0, 0]);
    launch(&memory, JOIN_EIGHT, &[addresses(&[OUT]), metadata, shape, bytes(&[1]), bytes(&[1])], 2);
    assert_eq!(known_contents(&memory, OUT, 48), Some((longs(&[1, 2, 5, 3, 4, 6]), None)));
}

#[test]
fn no_name_and_no_argument_is_too_strange() {
    let memory = memory();
    for kernel in [
        FILL_LONG,
        EQUAL_FLOAT,
        COPY_CAST,
        EQUAL_LONG_STRIDED,
        SUM_LONG,
        SORT_DOWN,
        COUNT_BOOL,
        INDEX_EIGHT,
        JOIN_EIGHT,
    ] {
        let nonsense: Vec<Vec<u8>> = (0..12).map(|_| vec![0xff; 4096]).collect();
        launch(&memory, kernel, &nonsense, u32::MAX);
        let zeros: Vec<Vec<u8>> = (0..12).map(|_| vec![0; 4096]).collect();
        launch(&memory, kernel, &zeros, 0);
        // Without any arguments at all.
        let none = Vec::new();
        Descriptor::new(kernel, None).apply(Launch {
            grid: Grid { blocks: [1; 3], threads: 1 },
            // SAFETY: null leads to no arguments.
            arguments: unsafe { Arguments::new(In::from_address(0), &none) },
            memory: &memory,
        });
    }
    for name in ["", "triton_poi_fused_add_0", "_Z", "\u{0}\u{1}"] {
        launch(&memory, name, &[], 1);
    }
}
