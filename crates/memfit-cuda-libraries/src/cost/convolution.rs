//! Convolutions, costed as the implicit matrix products that their kernels compute.

use memfit_channel::WorkKind;

use memfit_kernels::cost::{
    Work,
    gemm::Gemm,
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

/// Throughput relative to a matrix product of the same size: convolution kernels gather their operands.
/// Unsourced: measurements/throughput.md and consumer-speed.md have rows that are mostly convolutions.
const GEMM_SHARE: f64 = 0.80;
/// Speed-up of Winograd's algorithm for 3×3 windows without tensor cores.
/// Unsourced: it saves multiplications by 2.25 (Lavin and Gray, Fast Algorithms for Convolutional Neural
/// Networks, 2015), and transforms take part of that.
const WINOGRAD_SPEEDUP: f64 = 1.6;
/// Share of the bandwidth reached by layout conversion, which reads along one dimension and writes along
/// another.
/// Unsourced: the share of strided elementwise kernels.
const CONVERSION_SHARE: f64 = 0.7;
/// Share of the bandwidth reached by a convolution's own operands.
/// Unsourced: the share of reductions.
const OPERANDS_SHARE: f64 = 0.85;
/// Share of the rate of ordinary cores reached with few channels in each group.
/// Unsourced: each operand is reused only a few times.
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
            if between > 0.0 { speeds.traffic(between, CONVERSION_SHARE) + speeds.launch } else { 0.0 };
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
            && self.input_positions as u64 == self.output_positions as u64
            && self.direction != Direction::Filter;
        gemm.computing(speeds) / GEMM_SHARE / if winograd { WINOGRAD_SPEEDUP } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
