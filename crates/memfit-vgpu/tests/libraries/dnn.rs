//! Tests of cuDNN's older interface: normalisation, recurrent networks, dropout, algorithms.

#![allow(unsafe_code, reason = "the tests call as C callers do")]

use std::ptr;

use crate::calls::*;
use crate::machine::enter;
use crate::real;

const NOT_INITIALIZED: i32 = 1001;
const BAD_PARAM: i32 = 2000;
const FLOAT: i32 = 0;
const HALF: i32 = 2;

/// Creates a tensor of four dimensions in channels-last format.
fn tensor(kind: i32, [n, c, h, w]: [i32; 4]) -> usize {
    let descriptor = create_handle(|descriptor| cudnnCreateTensorDescriptor(descriptor));
    let (dimensions, strides) = ([n, c, h, w], [c * h * w, 1, w * c, c]);
    // SAFETY: the arrays have this many dimensions.
    let set =
        unsafe { cudnnSetTensorNdDescriptor(descriptor, kind, 4, dimensions.as_ptr(), strides.as_ptr()) };
    assert_eq!(set, 0);
    descriptor
}

#[test]
fn a_handle_keeps_its_stream() {
    if !real::loaded() {
        return;
    }
    enter();
    let handle = create_handle(|handle| cudnnCreate(handle));
    assert_eq!(cudnnSetStream(handle, 42), 0);
    assert_eq!(create_handle(|stream| cudnnGetStream(handle, stream)), 42);
    assert_eq!(cudnnDestroy(handle), 0);
    assert_eq!(cudnnSetStream(handle, 42), BAD_PARAM, "it is gone");
    assert_eq!(cudnnDestroy(handle), BAD_PARAM);
}

#[test]
fn descriptors_give_back_what_was_set() {
    if !real::loaded() {
        return;
    }
    let descriptor = tensor(HALF, [2, 3, 4, 5]);
    let (mut kind, mut count, mut dimensions, mut strides) = (-1, 0, [0; 4], [0; 4]);
    // SAFETY: the arrays have space for four.
    let got = unsafe {
        cudnnGetTensorNdDescriptor(
            descriptor,
            4,
            &raw mut kind,
            &raw mut count,
            dimensions.as_mut_ptr(),
            strides.as_mut_ptr(),
        )
    };
    assert_eq!((got, kind, count), (0, HALF, 4));
    assert_eq!((dimensions, strides), ([2, 3, 4, 5], [60, 1, 15, 3]));
    assert_eq!(cudnnDestroyTensorDescriptor(descriptor), 0);
}

#[test]
fn sizes_follow_the_cards_properties() {
    if !real::loaded() {
        return;
    }
    enter();
    let handle = create_handle(|handle| cudnnCreate(handle));
    let mut states = 0;
    assert_eq!(cudnnDropoutGetStatesSize(handle, &mut states), 0);
    assert_eq!(states, 128 * 1536 * 24, "24 bytes for each thread that an RTX 4090 holds");

    // The persistent kernels' workspace for this shape, as cuDNN 9.1 to 9.26 report it for an RTX 4090.
    let (images, parameters) = (tensor(HALF, [64, 256, 56, 56]), tensor(FLOAT, [1, 256, 1, 1]));
    let workspace = |mode| {
        let mut size = usize::MAX;
        let asked = cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
            handle, mode, 0, images, 0, images, parameters, 0, &mut size,
        );
        assert_eq!(asked, 0);
        size
    };
    assert_eq!(workspace(2), 2_591_408, "persistent");
    assert_eq!(workspace(1), 0, "not persistent");
    assert_eq!(cudnnDestroy(handle), 0);
}

#[test]
fn a_dropout_needs_no_device() {
    if !real::loaded() {
        return;
    }
    enter();
    let handle = create_handle(|handle| cudnnCreate(handle));
    let dropout = create_handle(|descriptor| cudnnCreateDropoutDescriptor(descriptor));
    assert_eq!(cudnnSetDropoutDescriptor(dropout, handle, 0.0, 0, 0, 0), 0, "without states");
    assert_eq!(cudnnSetDropoutDescriptor(dropout, handle, 0.5, 0x7f00_0000_0000, 128 * 1536 * 24, 7), 0);
    assert_ne!(cudnnSetDropoutDescriptor(dropout, handle, 0.5, 0x7f00_0000_0000, 16, 7), 0, "too few states");
    assert_eq!(cudnnDestroy(handle), 0);
}

/// Dimensions of a network.
#[derive(Clone, Copy)]
struct Network {
    cell: i32,
    both_ways: bool,
    input: i32,
    hidden: i32,
    layers: i32,
}

impl Network {
    fn gates(self) -> usize {
        match self.cell {
            2 => 4,
            3 => 3,
            _ => 1,
        }
    }

    fn descriptor(self) -> usize {
        let network = create_handle(|descriptor| cudnnCreateRNNDescriptor(descriptor));
        let set = cudnnSetRNNDescriptor_v8(
            network,
            0,
            self.cell,
            2, // CUDNN_RNN_DOUBLE_BIAS
            i32::from(self.both_ways),
            0,
            FLOAT,
            FLOAT,
            0,
            self.input,
            self.hidden,
            self.hidden,
            self.layers,
            0,
            1, // CUDNN_RNN_PADDED_IO_ENABLED
        );
        assert_eq!(set, 0);
        network
    }

    /// Each layer's matrices for its input and its own state, and two biases, for each gate and direction.
    fn weight_bytes(self) -> usize {
        let directions = 1 + usize::from(self.both_ways);
        let (hidden, mut input, mut total) = (self.hidden as usize, self.input as usize, 0);
        for _ in 0..self.layers {
            total += directions * self.gates() * hidden * (input + hidden + 2);
            input = hidden * directions;
        }
        total * 4
    }
}

const LSTM: Network = Network { cell: 2, both_ways: false, input: 128, hidden: 256, layers: 2 };
const GRU_BOTH_WAYS: Network = Network { cell: 3, both_ways: true, input: 64, hidden: 96, layers: 3 };
const PLAIN: Network = Network { cell: 0, both_ways: false, input: 10, hidden: 20, layers: 1 };

#[test]
fn weights_take_what_their_shapes_say_and_lie_within() {
    if !real::loaded() {
        return;
    }
    enter();
    let handle = create_handle(|handle| cudnnCreate(handle));
    for network in [LSTM, GRU_BOTH_WAYS, PLAIN] {
        let (descriptor, mut size) = (network.descriptor(), 0);
        assert_eq!(cudnnGetRNNWeightSpaceSize(handle, descriptor, &mut size), 0);
        assert_eq!(size, network.weight_bytes());
        let space = 0x7f00_0000_0000;
        let parameters =
            [0; 2].map(|_: i32| create_handle(|descriptor| cudnnCreateTensorDescriptor(descriptor)));
        for layer in 0..network.layers * (1 + i32::from(network.both_ways)) {
            for which in 0..2 * network.gates() as i32 {
                let (mut matrix, mut bias) = (0, 0);
                let asked = cudnnGetRNNWeightParams(
                    handle,
                    descriptor,
                    layer,
                    size,
                    space,
                    which,
                    parameters[0],
                    &mut matrix,
                    parameters[1],
                    &mut bias,
                );
                assert_eq!(asked, 0);
                for address in [matrix, bias] {
                    assert!((space..space + size).contains(&address), "layer {layer}, matrix {which}");
                }
            }
        }
    }
    assert_eq!(cudnnDestroy(handle), 0);
}

#[test]
fn a_recurrent_network_asks_for_its_spaces() {
    if !real::loaded() {
        return;
    }
    enter();
    let handle = create_handle(|handle| cudnnCreate(handle));
    let (steps, batch) = (50, 32);
    let spaces = |network: Network, training: bool| {
        let data = create_handle(|descriptor| cudnnCreateRNNDataDescriptor(descriptor));
        let lengths = vec![steps; batch as usize];
        // SAFETY: as many lengths as the batch has.
        let set = unsafe {
            cudnnSetRNNDataDescriptor(
                data,
                FLOAT,
                0,
                steps,
                batch,
                network.input,
                lengths.as_ptr(),
                ptr::null_mut(),
            )
        };
        assert_eq!(set, 0);
        let (mut workspace, mut reserve) = (usize::MAX, usize::MAX);
        let asked = cudnnGetRNNTempSpaceSizes(
            handle,
            network.descriptor(),
            i32::from(training),
            data,
            &mut workspace,
            &mut reserve,
        );
        assert_eq!(asked, 0);
        (workspace, reserve)
    };
    // As cuDNN 9.5 to 9.26 compute them for an RTX 4090; 9.1 needs 128 bytes more of workspace.
    let (workspace, reserve) = spaces(LSTM, true);
    assert_eq!(workspace, if cudnnGetVersion() < 90_500 { 13_337_216 } else { 13_337_088 });
    assert_eq!(reserve, 18_022_656);
    assert_eq!(spaces(LSTM, false), (workspace, 0), "nothing is kept without training");
    for network in [GRU_BOTH_WAYS, PLAIN] {
        let (workspace, reserve) = spaces(network, true);
        let state = (steps * batch * network.hidden * network.layers) as usize * 4;
        assert!(workspace > 0 && workspace < 1 << 28, "{workspace}");
        assert!(reserve >= state && reserve < 40 * state, "{reserve}");
    }
    assert_eq!(cudnnDestroy(handle), 0);
}

#[test]
fn found_algorithms_fit_into_the_workspace() {
    if !real::loaded() {
        return;
    }
    enter();
    let handle = create_handle(|handle| cudnnCreate(handle));
    let images = tensor(FLOAT, [32, 64, 56, 56]);
    let (filter, convolution) = (
        create_handle(|descriptor| cudnnCreateFilterDescriptor(descriptor)),
        create_handle(|create_handle| cudnnCreateConvolutionDescriptor(create_handle)),
    );
    let find = |limit: usize| {
        let (mut returned, mut results) = (-1, [[0_u64; 6]; 8]);
        let nothing = ptr::null_mut();
        // SAFETY: the arrays have the stated sizes.
        unsafe {
            assert_eq!(cudnnSetFilterNdDescriptor(filter, FLOAT, 1, 4, [64, 64, 3, 3].as_ptr()), 0);
            let ones = [1, 1];
            let (padding, stride, dilation) = (ones.as_ptr(), ones.as_ptr(), ones.as_ptr());
            assert_eq!(
                cudnnSetConvolutionNdDescriptor(convolution, 2, padding, stride, dilation, 1, FLOAT),
                0
            );
            let found = cudnnFindConvolutionForwardAlgorithmEx(
                handle,
                images,
                nothing,
                filter,
                nothing,
                convolution,
                images,
                nothing,
                8,
                &raw mut returned,
                results.as_mut_ptr(),
                nothing,
                limit,
            );
            assert_eq!(found, 0);
        }
        results[..returned as usize].iter().map(|result| result[2] as usize).collect::<Vec<_>>()
    };
    let all = find(usize::MAX);
    assert!(!all.is_empty());
    let without = find(0);
    assert!(!without.is_empty() && without.iter().all(|memory| *memory == 0), "{without:?}");
    assert_eq!(find(1 << 20), all.into_iter().filter(|memory| *memory <= 1 << 20).collect::<Vec<_>>());
    assert_eq!(cudnnDestroy(handle), 0);
}

#[test]
fn without_the_real_library_nothing_is_made_up() {
    if real::loaded() {
        return;
    }
    enter();
    let mut descriptor = 0;
    assert_eq!(cudnnBackendCreateDescriptor(4, &mut descriptor), NOT_INITIALIZED);
    assert_eq!(cudnnGetVersion(), 0);
}
