//! Convolutions, as the products of matrices that their kernels make of them without writing them out.

use memfit_channel::WorkKind;

use memfit_kernels::cost::{
    Work,
    gemm::Gemm,
    speeds::{Math, Speeds},
};

/// Which of the three a convolution is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    /// The gradient of the input.
    Data,
    /// The gradient of the weights.
    Filter,
}

/// A convolution; sizes are of the forward one, whichever it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Convolution {
    pub(crate) direction: Direction,
    /// Images, and positions of each in the input and in the output.
    pub(crate) images: f64,
    pub(crate) input_positions: f64,
    pub(crate) output_positions: f64,
    /// Channels of all groups together.
    pub(crate) input_channels: f64,
    pub(crate) output_channels: f64,
    pub(crate) groups: f64,
    /// Positions of the window.
    pub(crate) window: f64,
    pub(crate) math: Math,
    /// Bytes of an element.
    pub(crate) element: f64,
    /// Bytes that are kept between the kernels of it: operands turned over so that channels lie next to each
    /// other, parts of sums.
    pub(crate) workspace: f64,
}

/// What a convolution asks of an operand's extents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    /// Images; output channels for the weights.
    pub(crate) first: f64,
    /// Channels; those of one group for the weights.
    pub(crate) channels: f64,
    /// Positions of all other dimensions together.
    pub(crate) positions: f64,
}

impl Operand {
    /// Of extents, the first of which is the images'; what is missing is one.
    pub(crate) fn of(mut extents: impl Iterator<Item = f64>) -> Self {
        let mut next = || extents.next().unwrap_or(1.0);
        Self { first: next(), channels: next(), positions: extents.product() }
    }
}

/// What kernels of convolutions achieve of a product of the same size: they gather their operands.
const SHARE: f64 = 0.80;
/// Fewer multiplications, by Winograd's scheme, for windows of three by three on ordinary cores.
const WINOGRAD: f64 = 1.6;
/// What kernels achieve that turn an operand over: they read along one dimension and write along another.
const TURNING: f64 = 0.7;
/// Groups with fewer channels than this do not fill a tile.
const FEW_CHANNELS: f64 = 8.0;

impl Convolution {
    /// One of an input, weights and an output, of elements of a size and for units of a kind, within a
    /// workspace.
    pub(crate) fn between(
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

    /// How long it takes.
    pub(crate) fn work(&self, speeds: &Speeds) -> Work {
        let input = self.images * self.input_positions * self.input_channels * self.element;
        let output = self.images * self.output_positions * self.output_channels * self.element;
        let group = self.input_channels / self.groups.max(1.0);
        let weights = self.output_channels * group * self.window * self.element;
        let memory = speeds.traffic(input + output + weights, 0.85);
        // What lies there was written by one kernel and is read by another: cuDNN's kernels for tensor cores
        // want channels last, and turn over whatever is not.
        let between = 2.0 * self.workspace;
        let turning = if between > 0.0 { speeds.traffic(between, TURNING) + speeds.launch } else { 0.0 };
        Work::new(WorkKind::Convolution, speeds.launch + turning + memory.max(self.computing(speeds)))
    }

    fn computing(&self, speeds: &Speeds) -> f64 {
        let groups = self.groups.max(1.0);
        let (inputs, outputs) = (self.input_channels / groups, self.output_channels / groups);
        let positions = self.images * self.output_positions;
        if groups > 1.0 && inputs.min(outputs) < FEW_CHANNELS {
            let operations = 2.0 * positions * self.output_channels * inputs * self.window;
            return operations / (speeds.rate(Math::F32) * 0.2);
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
            && (self.window - 9.0).abs() < 0.5
            && (self.input_positions - self.output_positions).abs() < 0.5
            && self.direction != Direction::Filter;
        gemm.computing(speeds) / SHARE / if winograd { WINOGRAD } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::of_card;

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
        let speeds = of_card("a100-80gb");
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
        let speeds = of_card("a100-80gb");
        let of = |convolution: Convolution| convolution.work(&speeds).length;
        let best = of(layer(Math::F16, 2.0));
        assert!(of(layer(Math::Tf32, 4.0)) > best * 3 / 2);
        assert!(of(layer(Math::F32, 4.0)) > 2 * of(layer(Math::Tf32, 4.0)));
        let depthwise = Convolution { groups: 128.0, ..layer(Math::F16, 2.0) };
        assert!(of(depthwise) < best, "far fewer operations, though badly done");
        // Operands that are turned over are read and written once more, and that at less than a copy's rate.
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
