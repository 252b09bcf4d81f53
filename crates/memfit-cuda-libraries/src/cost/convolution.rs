//! Convolutions, costed as the implicit matrix products that their kernels compute.

use memfit_channel::WorkKind;

use memfit_kernels::cost::{
    Work,
    gemm::Gemm,
    shares,
    speeds::{Math, Speeds},
};

/// Direction of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    /// Gradient with respect to the input.
    Data,
    /// Gradient with respect to the weights.
    Filter,
}

/// A convolution. Sizes are those of the forward pass in every direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Convolution {
    pub(crate) direction: Direction,
    /// Number of images, and spatial positions per image in the input and in the output.
    pub(crate) images: f64,
    pub(crate) input_positions: f64,
    pub(crate) output_positions: f64,
    /// Channels over all groups.
    pub(crate) input_channels: f64,
    pub(crate) output_channels: f64,
    pub(crate) groups: f64,
    /// Positions in the window.
    pub(crate) window: f64,
    pub(crate) math: Math,
    /// Bytes per element.
    pub(crate) element: f64,
    /// Bytes kept between its kernels: operands converted to channels-last, partial sums.
    pub(crate) workspace: f64,
}

/// Extents of an operand that the cost of a convolution depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    /// Images; for the weights, output channels.
    pub(crate) first: f64,
    /// Channels; for the weights, those of one group.
    pub(crate) channels: f64,
    /// Product of all other dimensions.
    pub(crate) positions: f64,
}

impl Operand {
    /// Builds an operand from extents, the first of which counts images. Missing extents are 1.
    pub(crate) fn from_extents(mut extents: impl Iterator<Item = f64>) -> Self {
        let mut next = || extents.next().unwrap_or(1.0);
        Self { first: next(), channels: next(), positions: extents.product() }
    }
}

/// Throughput on tensor cores relative to a matrix product of the same size: kernels gather their operands.
/// Fitted: 252 convolutions of DeepBench on a V100. At 0.7, 0.8 and 0.65, the median errors are 0.22, 0.18
/// and 0.25; the T4's were never fitted (0.21). On ordinary cores, the gathering is hidden.
const TENSOR_SHARE: f64 = 0.80;
/// Speed-up of Winograd's algorithm for 3×3 windows without tensor cores, in every direction. It saves
/// multiplications by 2.25 (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015).
/// Fitted: the same convolutions: 2.03 forward, 2.19 and 2.03 backward in the median of those of 0.1 ms or
/// more; the T4's were never fitted (1.90, 1.74 and 1.86).
const WINOGRAD_SPEEDUP: f64 = 2.0;
/// Share of the bandwidth reached by a convolution's own operands.
/// Fitted: the same convolutions: 13 in mixed precision are bound by their operands forward, and the median
/// of estimate over published time is 1.01.
const OPERANDS_SHARE: f64 = 0.85;
/// Share of the rate of ordinary cores reached with few channels in each group.
/// Unsourced: each operand is reused only a few times. Published sheets of depthwise convolutions are links
/// that could not be read, or of cuDNN before 8.
const FEW_CHANNELS_SHARE: f64 = 0.2;
/// Channels per group below which a tile is not filled.
/// Source: tensor cores take 8 elements of 16 bits (NVIDIA, Convolutional Layers User's Guide).
const MIN_TILE_CHANNELS: f64 = 8.0;

impl Convolution {
    /// Builds the convolution of an input, weights and an output, with the given element size, math and
    /// workspace.
    pub(crate) fn new(
        direction: Direction,
        [input, weights, output]: [Operand; 3],
        (element, math): (f64, Math),
        workspace: f64,
    ) -> Self {
        Self {
            direction,
            images: input.first,
            input_positions: input.positions,
            output_positions: output.positions,
            input_channels: input.channels,
            output_channels: output.channels,
            groups: (input.channels / weights.channels.max(1.0)).max(1.0),
            window: weights.positions,
            math,
            element,
            workspace,
        }
    }

    /// Duration of the convolution.
    pub(crate) fn work(&self, speeds: &Speeds) -> Work {
        let input = self.images * self.input_positions * self.input_channels * self.element;
        let output = self.images * self.output_positions * self.output_channels * self.element;
        let group = self.input_channels / self.groups.max(1.0);
        let weights = self.output_channels * group * self.window * self.element;
        let memory = speeds.traffic(input + output + weights, OPERANDS_SHARE);
        // One kernel writes the workspace and another reads it: cuDNN's tensor core kernels need
        // channels-last operands and convert all others.
        let between = 2.0 * self.workspace;
        let conversion =
            if between > 0.0 { speeds.traffic(between, shares::STRIDED) + speeds.launch } else { 0.0 };
        Work::new(
            WorkKind::Convolution,
            speeds.launch + conversion + memory.max(self.arithmetic_time(speeds)),
        )
    }

    fn arithmetic_time(&self, speeds: &Speeds) -> f64 {
        let groups = self.groups.max(1.0);
        let (inputs, outputs) = (self.input_channels / groups, self.output_channels / groups);
        let positions = self.images * self.output_positions;
        if groups > 1.0 && inputs.min(outputs) < MIN_TILE_CHANNELS {
            let operations = 2.0 * positions * self.output_channels * inputs * self.window;
            return operations / (speeds.rate(Math::F32) * FEW_CHANNELS_SHARE);
        }
        let sum = inputs * self.window;
        let [m, n, k] = match self.direction {
            Direction::Forward => [positions, outputs, sum],
            Direction::Data => {
                let rows = self.images * self.input_positions;
                [rows, inputs, (outputs * self.window * positions / rows.max(1.0)).max(1.0)]
            }
            Direction::Filter => [outputs, sum, positions],
        };
        let gemm = Gemm::new([m, n, k, groups], self.math, self.element, self.element);
        let winograd = self.math == Math::F32
            && self.window as u64 == 9
            && self.input_positions as u64 == self.output_positions as u64;
        let share = match self.math {
            Math::F32 if winograd => WINOGRAD_SPEEDUP,
            Math::F32 | Math::F64 => 1.0,
            _ => TENSOR_SHARE,
        };
        gemm.computing(speeds) / share
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Direction::{Data, Filter, Forward},
        *,
    };
    use crate::cost::card_speeds;

    fn layer(math: Math, element: f64) -> Convolution {
        Convolution {
            direction: Direction::Forward,
            images: 256.0,
            input_positions: 28.0 * 28.0,
            output_positions: 28.0 * 28.0,
            input_channels: 128.0,
            output_channels: 128.0,
            groups: 1.0,
            window: 9.0,
            math,
            element,
            workspace: 0.0,
        }
    }

    #[test]
    fn all_three_directions_cost_about_the_same() {
        let speeds = card_speeds("a100-80gb");
        let forward = layer(Math::F16, 2.0);
        let times = [Direction::Forward, Direction::Data, Direction::Filter]
            .map(|direction| Convolution { direction, ..forward }.work(&speeds).length as f64);
        for time in times {
            assert!((0.6..1.8).contains(&(time / times[0])), "{times:?}");
        }
        let operations = 2.0 * 256.0 * 784.0 * 128.0 * 128.0 * 9.0;
        let rate = operations / times[0] / 1e3;
        assert!((100.0..230.0).contains(&rate), "{rate} TFLOP/s");
    }

    #[test]
    fn workspaces_groups_and_precision_matter() {
        let speeds = card_speeds("a100-80gb");
        let of = |convolution: Convolution| convolution.work(&speeds).length;
        let best = of(layer(Math::F16, 2.0));
        assert!(of(layer(Math::Tf32, 4.0)) > best * 3 / 2);
        assert!(of(layer(Math::F32, 4.0)) > 2 * of(layer(Math::Tf32, 4.0)));
        let depthwise = Convolution { groups: 128.0, ..layer(Math::F16, 2.0) };
        assert!(of(depthwise) < best, "far fewer operations, though badly done");
        // Converted operands are read and written once more, at less than a copy's rate.
        let operand = 256.0 * 784.0 * 128.0 * 4.0;
        for turned in [1.0, 2.0] {
            let workspace = turned * operand;
            let own = of(Convolution { workspace, ..layer(Math::Tf32, 4.0) }) - of(layer(Math::Tf32, 4.0));
            let copy = 2.0 * workspace / speeds.memory;
            assert!((1.2..1.6).contains(&(own as f64 / copy)), "{own} for {copy}");
        }
        let strided = Convolution { output_positions: 14.0 * 14.0, ..layer(Math::F16, 2.0) };
        assert!(of(strided) < best);
    }

    /// Convolutions of DeepBench (results/train of github.com/baidu-research/DeepBench): the direction;
    /// images, positions of the input and of the output, channels of both, and positions in the window;
    /// microseconds on a V100 in single and mixed precision, and the same on a T4. Every sixteenth row with 8
    /// channels or more.
    const DEEP_BENCH: [(Direction, [f64; 6], [f64; 4]); 16] = [
        (Forward, [4.0, 26939.0, 6308.0, 32.0, 32.0, 50.0], [307.0, 102.0, 623.0, 193.0]),
        (Data, [16.0, 1440.0, 1440.0, 32.0, 64.0, 9.0], [63.0, 43.0, 179.0, 81.0]),
        (Filter, [8.0, 49.0, 49.0, 256.0, 512.0, 9.0], [77.0, 21.0, 251.0, 84.0]),
        (Forward, [16.0, 12544.0, 12544.0, 64.0, 128.0, 9.0], [1246.0, 355.0, 4768.0, 952.0]),
        (Data, [16.0, 784.0, 784.0, 192.0, 32.0, 25.0], [197.0, 54.0, 495.0, 124.0]),
        (Filter, [16.0, 49.0, 49.0, 832.0, 128.0, 25.0], [400.0, 86.0, 1326.0, 225.0]),
        (Forward, [8.0, 196.0, 196.0, 256.0, 256.0, 9.0], [113.0, 42.0, 338.0, 80.0]),
        (Data, [16.0, 3136.0, 784.0, 64.0, 256.0, 1.0], [111.0, 25.0, 219.0, 68.0]),
        (Filter, [16.0, 196.0, 49.0, 256.0, 1024.0, 1.0], [110.0, 26.0, 185.0, 44.0]),
        (Forward, [16.0, 7000.0, 1653.0, 128.0, 256.0, 25.0], [3245.0, 524.0, 8304.0, 1336.0]),
        (Data, [8.0, 3136.0, 3136.0, 64.0, 256.0, 1.0], [84.0, 35.0, 210.0, 82.0]),
        (Filter, [8.0, 784.0, 196.0, 512.0, 256.0, 1.0], [61.0, 26.0, 175.0, 49.0]),
        (Forward, [8.0, 49.0, 49.0, 512.0, 512.0, 9.0], [236.0, 47.0, 566.0, 129.0]),
        (Data, [16.0, 3136.0, 3136.0, 64.0, 256.0, 1.0], [154.0, 64.0, 483.0, 145.0]),
        (Filter, [16.0, 784.0, 196.0, 512.0, 256.0, 1.0], [111.0, 30.0, 384.0, 81.0]),
        (Forward, [16.0, 49.0, 49.0, 512.0, 512.0, 9.0], [273.0, 71.0, 749.0, 152.0]),
    ];

    /// The V100's rows are fitted, the T4's are not. Rates are those of the largest product on the same card.
    #[test]
    fn convolutions_take_as_long_as_published() {
        for (at, card, math, rate) in [
            (0, "v100", Math::F32, 14.78e12),
            (1, "v100", Math::F16, 112.28e12),
            (2, "t4", Math::F32, 4.67e12),
            (3, "t4", Math::F16, 46.52e12),
        ] {
            let mut device = memfit_devices::Catalogue::builtin().unwrap().find(card).unwrap().clone();
            let measured = &mut device.achieved.measured;
            (measured.fp32, measured.fp16) = (Some(rate as u64), Some(rate as u64));
            let speeds = Speeds::from_device(&device);
            let mut errors = DEEP_BENCH.map(|(direction, extents, times)| {
                let [images, input_positions, output_positions, input_channels, output_channels, window] =
                    extents;
                let layer = Convolution {
                    direction,
                    images,
                    input_positions,
                    output_positions,
                    input_channels,
                    output_channels,
                    window,
                    ..layer(math, if math == Math::F32 { 4.0 } else { 2.0 })
                };
                (layer.work(&speeds).length as f64 / 1e3 / times[at] - 1.0).abs()
            });
            errors.sort_by(f64::total_cmp);
            assert!(errors[8] < 0.30 && errors[12] < 0.55, "{card}, {math:?}: {errors:?}");
        }
    }
}
