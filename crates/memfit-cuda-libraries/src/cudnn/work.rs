//! Work of the older interface: convolutions, normalisations, pooling, softmax, recurrent networks. Nothing
//! is computed; each call takes its time on the handle's stream, derived from its descriptors.

use memfit_channel::WorkKind;

use super::{handle, status};
use crate::cost::convolution::{Convolution, Direction, Operand};
use crate::entry::{Fails, Ptr, entry_points};
use crate::numbers::cudnn_element;
use crate::real::real;
use memfit_cuda::card;
use memfit_kernels::cost::gemm::Gemm;
use memfit_kernels::cost::speeds::Math;
use memfit_kernels::cost::{Speeds, Work};

/// Bound on dimensions, more than the library allows.
const MAX_DIMENSIONS: usize = 8;

/// A tensor or filter, as described by its descriptor.
struct Shape {
    kind: i32,
    extents: Vec<i32>,
}

impl Shape {
    fn from_tensor(descriptor: Ptr) -> Option<Self> {
        let (mut kind, mut count) = (0_i32, 0_i32);
        let (mut extents, mut strides) = ([0_i32; MAX_DIMENSIONS], [0_i32; MAX_DIMENSIONS]);
        let result = real!(CUDNN, cudnnGetTensorNdDescriptor(
            descriptor => Ptr, MAX_DIMENSIONS as i32 => i32, &raw mut kind => *mut i32, &raw mut count => *mut i32,
            extents.as_mut_ptr() => *mut i32, strides.as_mut_ptr() => *mut i32
        ) -> i32)?;
        Self::checked(result, kind, count, &extents)
    }

    fn from_filter(descriptor: Ptr) -> Option<Self> {
        let (mut kind, mut format, mut count) = (0_i32, 0_i32, 0_i32);
        let mut extents = [0_i32; MAX_DIMENSIONS];
        let result = real!(CUDNN, cudnnGetFilterNdDescriptor(
            descriptor => Ptr, MAX_DIMENSIONS as i32 => i32, &raw mut kind => *mut i32, &raw mut format => *mut i32,
            &raw mut count => *mut i32, extents.as_mut_ptr() => *mut i32
        ) -> i32)?;
        Self::checked(result, kind, count, &extents)
    }

    fn checked(result: i32, kind: i32, count: i32, extents: &[i32]) -> Option<Self> {
        let count = usize::try_from(count).ok().filter(|count| (1..=MAX_DIMENSIONS).contains(count))?;
        (result == status::SUCCESS).then(|| Self { kind, extents: extents[..count].to_vec() })
    }

    fn bytes(&self) -> f64 {
        self.extents.iter().map(|extent| f64::from(*extent)).product::<f64>() * cudnn_element(self.kind).0
    }
}

/// Queues work on a handle's stream; refuses an invalid handle.
fn queue_work(handle: Ptr, work: impl Fn(&Speeds) -> Work) -> i32 {
    match handle::stream(handle) {
        Some(stream) => {
            card::queue_work(stream, work);
            status::SUCCESS
        }
        None => status::BAD_PARAM,
    }
}

/// Forgets the contents of results that were written.
fn forget_results(results: &[Ptr]) {
    for result in results {
        card::forget_contents(*result);
    }
}

/// Queues `count` passes over a tensor, reads or writes.
fn queue_passes(handle: Ptr, tensor: Ptr, count: f64) -> i32 {
    let bytes = Shape::from_tensor(tensor).map_or(0.0, |shape| shape.bytes());
    queue_work(handle, |speeds| {
        Work::new(WorkKind::Memory, speeds.launch + speeds.traffic(count * bytes, 0.8))
    })
}

/// Queues a convolution in any direction, with a workspace of `workspace` bytes.
fn convolve(
    handle: Ptr,
    direction: Direction,
    [input, filter, output]: [Ptr; 3],
    convolution: Ptr,
    workspace: usize,
) -> i32 {
    /// `CUDNN_TENSOR_OP_MATH` and the mode that also allows conversion; `CUDNN_FMA_MATH`.
    const FMA: i32 = 3;
    let mut mode = 0_i32;
    real!(CUDNN, cudnnGetConvolutionMathType(convolution => Ptr, &raw mut mode => *mut i32) -> i32);
    let shapes = Shape::from_tensor(input).zip(Shape::from_filter(filter)).zip(Shape::from_tensor(output));
    queue_work(handle, |speeds| {
        let Some(((x, w), y)) = &shapes else { return Work::new(WorkKind::Guess, speeds.launch) };
        let units = match cudnn_element(x.kind) {
            (element, Math::F32) if mode != FMA => (element, Math::Tf32),
            known => known,
        };
        // A caller may pass a larger workspace than is used.
        let workspace = (workspace as f64).min(x.bytes() + w.bytes() + y.bytes());
        let operands = [x, w, y]
            .map(|shape| Operand::from_extents(shape.extents.iter().map(|extent| f64::from(*extent))));
        Convolution::new(direction, operands, units, workspace).work(speeds)
    })
}

/// Queues a recurrent network over a sequence: for each layer and direction one product over all steps, and
/// one small product per step.
fn recur(handle: Ptr, network: Ptr, data: Ptr) -> i32 {
    let shape = Recurrent::read(network, data);
    queue_work(handle, |speeds| match &shape {
        Some(shape) => shape.work(speeds),
        None => Work::new(WorkKind::Guess, speeds.launch),
    })
}

/// Dimensions of a recurrent network.
struct Recurrent {
    gates: f64,
    ways: f64,
    input: f64,
    hidden: f64,
    layers: f64,
    steps: f64,
    batch: f64,
    kind: i32,
}

impl Recurrent {
    fn read(network: Ptr, data: Ptr) -> Option<Self> {
        let mut ints = [0_i32; 12];
        let [algorithm, cell, bias, way, mode, kind, precision, math, input, hidden, projected, layers] =
            &mut ints;
        let (mut dropout, mut flags) = (0_usize, 0_u32);
        let result = real!(CUDNN, cudnnGetRNNDescriptor_v8(
            network => Ptr, algorithm => &mut i32, cell => &mut i32, bias => &mut i32, way => &mut i32,
            mode => &mut i32, kind => &mut i32, precision => &mut i32, math => &mut i32, input => &mut i32,
            hidden => &mut i32, projected => &mut i32, layers => &mut i32, &raw mut dropout => *mut usize,
            &raw mut flags => *mut u32
        ) -> i32)?;
        if result != status::SUCCESS {
            return None;
        }
        let mut shape = [0_i32; 5];
        let [data_kind, layout, steps, batch, width] = &mut shape;
        let result = real!(CUDNN, cudnnGetRNNDataDescriptor(
            data => Ptr, data_kind => &mut i32, layout => &mut i32, steps => &mut i32, batch => &mut i32,
            width => &mut i32, 0 => i32, std::ptr::null_mut() => *mut i32, std::ptr::null_mut() => Ptr
        ) -> i32)?;
        (result == status::SUCCESS).then(|| Self {
            gates: match ints[1] {
                2 => 4.0,
                3 => 3.0,
                _ => 1.0,
            },
            ways: f64::from(ints[3] + 1),
            input: f64::from(ints[8]),
            hidden: f64::from(ints[9]),
            layers: f64::from(ints[11]),
            steps: f64::from(shape[2]),
            batch: f64::from(shape[3]),
            kind: ints[5],
        })
    }

    fn work(&self, speeds: &Speeds) -> Work {
        let (element, math) = cudnn_element(self.kind);
        let rows = self.gates * self.hidden;
        let product = |columns: f64, sum: f64| {
            Gemm::new([rows, columns, sum, 1.0], math, element, element).nanoseconds(speeds)
        };
        let mut length = 0.0;
        let mut layer = 0.0;
        while layer < self.layers.min(1000.0) {
            let input = if layer > 0.0 { self.ways * self.hidden } else { self.input };
            // Steps of one layer run concurrently with those of the next where possible.
            length += self.ways
                * (product(self.steps * self.batch, input) + self.steps * product(self.batch, self.hidden));
            layer += 1.0;
        }
        Work::new(WorkKind::Matmul, length)
    }
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Queues a convolution.
    fn cudnnConvolutionForward(
        handle: Ptr, _alpha: Ptr, x: Ptr, _x_data: Ptr, w: Ptr, _w_data: Ptr, convolution: Ptr, _algorithm: i32,
        workspace: Ptr, size: usize, _beta: Ptr, y: Ptr, y_data: Ptr,
    ) {
        forget_results(&[y_data]);
        card::label_workspace(workspace);
        convolve(handle, Direction::Forward, [x, w, y], convolution, size)
    }

    /// Queues a convolution with a bias and an activation.
    fn cudnnConvolutionBiasActivationForward(
        handle: Ptr, _alpha: Ptr, x: Ptr, _x_data: Ptr, w: Ptr, _w_data: Ptr, convolution: Ptr, _algorithm: i32,
        workspace: Ptr, size: usize, _alpha_2: Ptr, _z: Ptr, _z_data: Ptr, _bias: Ptr, _bias_data: Ptr,
        _activation: Ptr, y: Ptr, y_data: Ptr,
    ) {
        forget_results(&[y_data]);
        card::label_workspace(workspace);
        convolve(handle, Direction::Forward, [x, w, y], convolution, size)
    }

    /// Queues the gradient of the input.
    fn cudnnConvolutionBackwardData(
        handle: Ptr, _alpha: Ptr, w: Ptr, _w_data: Ptr, dy: Ptr, _dy_data: Ptr, convolution: Ptr, _algorithm: i32,
        workspace: Ptr, size: usize, _beta: Ptr, dx: Ptr, dx_data: Ptr,
    ) {
        forget_results(&[dx_data]);
        card::label_workspace(workspace);
        convolve(handle, Direction::Data, [dx, w, dy], convolution, size)
    }

    /// Queues the gradient of the weights.
    fn cudnnConvolutionBackwardFilter(
        handle: Ptr, _alpha: Ptr, x: Ptr, _x_data: Ptr, dy: Ptr, _dy_data: Ptr, convolution: Ptr, _algorithm: i32,
        workspace: Ptr, size: usize, _beta: Ptr, dw: Ptr, dw_data: Ptr,
    ) {
        forget_results(&[dw_data]);
        card::label_workspace(workspace);
        convolve(handle, Direction::Filter, [x, dw, dy], convolution, size)
    }

    /// Queues the gradient of a bias.
    fn cudnnConvolutionBackwardBias(
        handle: Ptr, _alpha: Ptr, dy: Ptr, _dy_data: Ptr, _beta: Ptr, _db: Ptr, db_data: Ptr,
    ) {
        forget_results(&[db_data]);
        queue_passes(handle, dy, 1.0)
    }

    /// Queues batch normalisation with new statistics.
    fn cudnnBatchNormalizationForwardTraining(
        handle: Ptr, _mode: i32, _alpha: Ptr, _beta: Ptr, x: Ptr, _x_data: Ptr, _y: Ptr, y_data: Ptr, _parameters: Ptr,
        _scale: Ptr, _bias: Ptr, _factor: f64, mean: Ptr, variance: Ptr, _epsilon: f64, saved_mean: Ptr,
        saved_variance: Ptr,
    ) {
        forget_results(&[y_data, mean, variance, saved_mean, saved_variance]);
        queue_passes(handle, x, 3.0)
    }

    /// Does the same, fused with the following operation.
    fn cudnnBatchNormalizationForwardTrainingEx(
        handle: Ptr, _mode: i32, _fused: i32, _alpha: Ptr, _beta: Ptr, x: Ptr, _x_data: Ptr, _z: Ptr, _z_data: Ptr,
        _y: Ptr, y_data: Ptr, _parameters: Ptr, _scale: Ptr, _bias: Ptr, _factor: f64, mean: Ptr, variance: Ptr,
        _epsilon: f64, saved_mean: Ptr, saved_variance: Ptr, _activation: Ptr, workspace: Ptr, _size: usize,
        _reserved: Ptr, _reserved_size: usize,
    ) {
        forget_results(&[y_data, mean, variance, saved_mean, saved_variance]);
        card::label_workspace(workspace);
        queue_passes(handle, x, 3.0)
    }

    /// Queues batch normalisation with known statistics.
    fn cudnnBatchNormalizationForwardInference(
        handle: Ptr, _mode: i32, _alpha: Ptr, _beta: Ptr, x: Ptr, _x_data: Ptr, _y: Ptr, y_data: Ptr, _parameters: Ptr,
        _scale: Ptr, _bias: Ptr, _mean: Ptr, _variance: Ptr, _epsilon: f64,
    ) {
        forget_results(&[y_data]);
        queue_passes(handle, x, 2.0)
    }

    /// Queues the gradients of a normalisation.
    fn cudnnBatchNormalizationBackward(
        handle: Ptr, _mode: i32, _alpha: Ptr, _beta: Ptr, _alpha_2: Ptr, _beta_2: Ptr, x: Ptr, _x_data: Ptr, _dy: Ptr,
        _dy_data: Ptr, _dx: Ptr, dx_data: Ptr, _parameters: Ptr, _scale: Ptr, dscale: Ptr, dbias: Ptr, _epsilon: f64,
        _mean: Ptr, _variance: Ptr,
    ) {
        forget_results(&[dx_data, dscale, dbias]);
        queue_passes(handle, x, 5.0)
    }

    /// Does the same, fused with the following operation.
    fn cudnnBatchNormalizationBackwardEx(
        handle: Ptr, _mode: i32, _fused: i32, _alpha: Ptr, _beta: Ptr, _alpha_2: Ptr, _beta_2: Ptr, x: Ptr, _x_data: Ptr,
        _y: Ptr, _y_data: Ptr, _dy: Ptr, _dy_data: Ptr, _dz: Ptr, dz_data: Ptr, _dx: Ptr, dx_data: Ptr,
        _parameters: Ptr, _scale: Ptr, _bias: Ptr, dscale: Ptr, dbias: Ptr, _epsilon: f64, _mean: Ptr, _variance: Ptr,
        _activation: Ptr, workspace: Ptr, _size: usize, _reserved: Ptr, _reserved_size: usize,
    ) {
        forget_results(&[dx_data, dz_data, dscale, dbias]);
        card::label_workspace(workspace);
        queue_passes(handle, x, 5.0)
    }

    /// Queues an activation.
    fn cudnnActivationForward(
        handle: Ptr, _activation: Ptr, _alpha: Ptr, x: Ptr, _x_data: Ptr, _beta: Ptr, _y: Ptr, y_data: Ptr,
    ) {
        forget_results(&[y_data]);
        queue_passes(handle, x, 2.0)
    }

    /// Queues the gradient of an activation.
    fn cudnnActivationBackward(
        handle: Ptr, _activation: Ptr, _alpha: Ptr, y: Ptr, _y_data: Ptr, _dy: Ptr, _dy_data: Ptr, _x: Ptr, _x_data: Ptr,
        _beta: Ptr, _dx: Ptr, dx_data: Ptr,
    ) {
        forget_results(&[dx_data]);
        queue_passes(handle, y, 4.0)
    }

    /// Queues pooling.
    fn cudnnPoolingForward(
        handle: Ptr, _pooling: Ptr, _alpha: Ptr, x: Ptr, _x_data: Ptr, _beta: Ptr, _y: Ptr, y_data: Ptr,
    ) {
        forget_results(&[y_data]);
        queue_passes(handle, x, 1.5)
    }

    /// Queues the gradient of pooling.
    fn cudnnPoolingBackward(
        handle: Ptr, _pooling: Ptr, _alpha: Ptr, _y: Ptr, _y_data: Ptr, _dy: Ptr, _dy_data: Ptr, x: Ptr, _x_data: Ptr,
        _beta: Ptr, _dx: Ptr, dx_data: Ptr,
    ) {
        forget_results(&[dx_data]);
        queue_passes(handle, x, 2.5)
    }

    /// Queues a softmax.
    fn cudnnSoftmaxForward(
        handle: Ptr, _algorithm: i32, _mode: i32, _alpha: Ptr, x: Ptr, _x_data: Ptr, _beta: Ptr, _y: Ptr, y_data: Ptr,
    ) {
        forget_results(&[y_data]);
        queue_passes(handle, x, 2.0)
    }

    /// Queues the gradient of a softmax.
    fn cudnnSoftmaxBackward(
        handle: Ptr, _algorithm: i32, _mode: i32, _alpha: Ptr, y: Ptr, _y_data: Ptr, _dy: Ptr, _dy_data: Ptr, _beta: Ptr,
        _dx: Ptr, dx_data: Ptr,
    ) {
        forget_results(&[dx_data]);
        queue_passes(handle, y, 3.0)
    }

    /// Queues the forward pass of a recurrent network.
    fn cudnnRNNForward(
        handle: Ptr, network: Ptr, _mode: i32, _lengths: Ptr, x: Ptr, _x_data: Ptr, _y: Ptr, y_data: Ptr, _h: Ptr,
        _h_first: Ptr, h_last: Ptr, _c: Ptr, _c_first: Ptr, c_last: Ptr, _weights_size: usize, _weights: Ptr,
        _size: usize, workspace: Ptr, _reserved_size: usize, _reserved: Ptr,
    ) {
        forget_results(&[y_data, h_last, c_last]);
        card::label_workspace(workspace);
        recur(handle, network, x)
    }

    /// Queues the gradients of a recurrent network's data.
    fn cudnnRNNBackwardData_v8(
        handle: Ptr, network: Ptr, _lengths: Ptr, y: Ptr, _y_data: Ptr, _dy: Ptr, _x: Ptr, dx: Ptr, _h: Ptr,
        _h_first: Ptr, _dh_last: Ptr, dh_first: Ptr, _c: Ptr, _c_first: Ptr, _dc_last: Ptr, dc_first: Ptr,
        _weights_size: usize, _weights: Ptr, _size: usize, workspace: Ptr, _reserved_size: usize, _reserved: Ptr,
    ) {
        forget_results(&[dx, dh_first, dc_first]);
        card::label_workspace(workspace);
        recur(handle, network, y)
    }

    /// Queues the gradients of a recurrent network's weights.
    fn cudnnRNNBackwardWeights_v8(
        handle: Ptr, network: Ptr, _adds: i32, _lengths: Ptr, x: Ptr, _x_data: Ptr, _h: Ptr, _h_data: Ptr, _y: Ptr,
        _y_data: Ptr, _weights_size: usize, dweights: Ptr, _size: usize, workspace: Ptr, _reserved_size: usize,
        _reserved: Ptr,
    ) {
        forget_results(&[dweights]);
        card::label_workspace(workspace);
        recur(handle, network, x)
    }
}
