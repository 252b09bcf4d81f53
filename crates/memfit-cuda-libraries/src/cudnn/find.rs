//! `cudnnFindConvolution…`: rank algorithms by speed without timing them.
//!
//! The real library would run each one. Here the order is that of its heuristics, and a caller that passes
//! its workspace gets those that fit into it.

use memfit_vocabulary::Remark;

use super::status;
use crate::entry::{Fails, Out, Ptr, entry_points};
use crate::real::real;
use memfit_cuda::card;

/// `cudnnConvolution…AlgoPerf_t`; the three directions share this layout.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Performance {
    algorithm: i32,
    status: i32,
    time: f32,
    memory: usize,
    determinism: i32,
    math: i32,
    reserved: [i32; 3],
}

/// Maximum algorithms per direction, with some to spare.
const MAX_ALGORITHMS: usize = 16;

/// Returns the heuristics' results in their order, limited to those with a workspace of at most `limit`
/// bytes.
fn write_results(
    requested: i32,
    returned: Out<i32>,
    results: Out<Performance>,
    limit: usize,
    ask: impl FnOnce(i32, *mut i32, *mut Performance) -> Option<i32>,
) -> i32 {
    if requested <= 0 || returned.is_null() || results.is_null() {
        return status::BAD_PARAM;
    }
    let mut found = [Performance::default(); MAX_ALGORITHMS];
    let mut count = 0_i32;
    let result =
        ask(MAX_ALGORITHMS as i32, &raw mut count, found.as_mut_ptr()).unwrap_or(status::NOT_INITIALIZED);
    if result != status::SUCCESS {
        return result;
    }
    let most = found.iter().map(|each| each.memory).filter(|bytes| *bytes <= limit).max();
    card::remark_on_bytes(Remark::CudnnFind, most.unwrap_or(0) as u64);
    let found = found.iter().take(usize::try_from(count).unwrap_or(0));
    let working: Vec<Performance> = found
        .filter(|each| each.status == status::SUCCESS && each.memory <= limit)
        .take(usize::try_from(requested).unwrap_or(0))
        .zip(1_u16..)
        .map(|(each, rank)| Performance { time: f32::from(rank), ..*each })
        .collect();
    returned.set(working.len() as i32);
    results.set_all(working);
    status::SUCCESS
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Ranks all algorithms.
    fn cudnnFindConvolutionForwardAlgorithm(
        handle: Ptr, first: Ptr, second: Ptr, convolution: Ptr, third: Ptr, requested: i32, returned: Out<i32>,
        results: Out<Performance>,
    ) {
        write_results(requested, returned, results, usize::MAX, |room, count, found| {
            real!(CUDNN, cudnnGetConvolutionForwardAlgorithm_v7(
                handle => Ptr, first => Ptr, second => Ptr, convolution => Ptr, third => Ptr,
                room => i32, count => *mut i32, found => *mut Performance
            ) -> i32)
        })
    }

    /// Ranks the algorithms that work within the caller's workspace.
    fn cudnnFindConvolutionForwardAlgorithmEx(
        handle: Ptr, first: Ptr, _first_data: Ptr, second: Ptr, _second_data: Ptr, convolution: Ptr, third: Ptr,
        _third_data: Ptr, requested: i32, returned: Out<i32>, results: Out<Performance>, workspace: Ptr, size: usize,
    ) {
        card::label_workspace(workspace);
        write_results(requested, returned, results, size, |room, count, found| {
            real!(CUDNN, cudnnGetConvolutionForwardAlgorithm_v7(
                handle => Ptr, first => Ptr, second => Ptr, convolution => Ptr, third => Ptr,
                room => i32, count => *mut i32, found => *mut Performance
            ) -> i32)
        })
    }

    /// Ranks all algorithms.
    fn cudnnFindConvolutionBackwardDataAlgorithm(
        handle: Ptr, first: Ptr, second: Ptr, convolution: Ptr, third: Ptr, requested: i32, returned: Out<i32>,
        results: Out<Performance>,
    ) {
        write_results(requested, returned, results, usize::MAX, |room, count, found| {
            real!(CUDNN, cudnnGetConvolutionBackwardDataAlgorithm_v7(
                handle => Ptr, first => Ptr, second => Ptr, convolution => Ptr, third => Ptr,
                room => i32, count => *mut i32, found => *mut Performance
            ) -> i32)
        })
    }

    /// Ranks the algorithms that work within the caller's workspace.
    fn cudnnFindConvolutionBackwardDataAlgorithmEx(
        handle: Ptr, first: Ptr, _first_data: Ptr, second: Ptr, _second_data: Ptr, convolution: Ptr, third: Ptr,
        _third_data: Ptr, requested: i32, returned: Out<i32>, results: Out<Performance>, workspace: Ptr, size: usize,
    ) {
        card::label_workspace(workspace);
        write_results(requested, returned, results, size, |room, count, found| {
            real!(CUDNN, cudnnGetConvolutionBackwardDataAlgorithm_v7(
                handle => Ptr, first => Ptr, second => Ptr, convolution => Ptr, third => Ptr,
                room => i32, count => *mut i32, found => *mut Performance
            ) -> i32)
        })
    }

    /// Ranks all algorithms.
    fn cudnnFindConvolutionBackwardFilterAlgorithm(
        handle: Ptr, first: Ptr, second: Ptr, convolution: Ptr, third: Ptr, requested: i32, returned: Out<i32>,
        results: Out<Performance>,
    ) {
        write_results(requested, returned, results, usize::MAX, |room, count, found| {
            real!(CUDNN, cudnnGetConvolutionBackwardFilterAlgorithm_v7(
                handle => Ptr, first => Ptr, second => Ptr, convolution => Ptr, third => Ptr,
                room => i32, count => *mut i32, found => *mut Performance
            ) -> i32)
        })
    }

    /// Ranks the algorithms that work within the caller's workspace.
    fn cudnnFindConvolutionBackwardFilterAlgorithmEx(
        handle: Ptr, first: Ptr, _first_data: Ptr, second: Ptr, _second_data: Ptr, convolution: Ptr, third: Ptr,
        _third_data: Ptr, requested: i32, returned: Out<i32>, results: Out<Performance>, workspace: Ptr, size: usize,
    ) {
        card::label_workspace(workspace);
        write_results(requested, returned, results, size, |room, count, found| {
            real!(CUDNN, cudnnGetConvolutionBackwardFilterAlgorithm_v7(
                handle => Ptr, first => Ptr, second => Ptr, convolution => Ptr, third => Ptr,
                room => i32, count => *mut i32, found => *mut Performance
            ) -> i32)
        })
    }
}
