//! Lists of tensors for foreach operations and fused optimizers (`TensorListMetadata` and its variants in
//! PyTorch's `MultiTensorApply.cuh`): the first argument has the tensors' addresses and numbers of elements,
//! and assigns a piece of a tensor to each block.

use crate::{
    launch::{Arguments, Grid},
    name::{Signature, plain_size, type_parts},
};

/// Layout of the lists.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lists {
    /// Number of lists.
    depth: usize,
    /// Data between the numbers of elements and the blocks' pieces.
    between: Between,
}

/// Data between the numbers of elements and the blocks' pieces, for each tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    Nothing,
    /// A number of this many bytes.
    Scalar(usize),
    /// Address of the step count.
    Step,
}

/// Capacity of the lists: PyTorch has lists that fit into the 4 KiB that arguments had before CUDA 12.1, and
/// seven times longer ones.
#[derive(Clone, Copy)]
struct Capacity {
    times: usize,
    /// Bytes of a tensor index.
    index: usize,
}

const CAPACITIES: [Capacity; 2] = [Capacity { times: 1, index: 1 }, Capacity { times: 7, index: 2 }];
/// Tensors per list, by the number of lists, in the shorter ones.
const TENSORS: [usize; 5] = [110, 64, 48, 36, 30];
/// The same if each tensor has an additional number.
const TENSORS_WITH_NUMBERS: [usize; 5] = [96, 64, 48, 36, 30];
/// The same if that number is complex in double precision.
const TENSORS_WITH_COMPLEX: [usize; 5] = [72, 60, 48, 36, 30];
/// Blocks per launch in the shorter ones.
const BLOCKS: usize = 320;
/// Elements of one block's piece.
const CHUNK_ELEMENTS: u64 = 65_536;

impl Lists {
    /// Reads the signature of a kernel; `None` if it is of another family.
    pub(crate) fn from_signature(signature: &Signature) -> Option<Self> {
        if signature.name() != "multi_tensor_apply_kernel" {
            return None;
        }
        let (kind, arguments) = type_parts(signature.template(0)?);
        // Later releases have a flag after it.
        let depth = arguments.iter().find_map(|argument| argument.parse::<usize>().ok());
        let depth = depth.filter(|depth| (1..=TENSORS.len()).contains(depth))?;
        let between = match kind {
            "TensorListMetadata" => Between::Nothing,
            "TensorListScalarListMetadata" => Between::Scalar(scalar(arguments.first()?)?),
            "FusedOptimizerTensorListMetadata" => Between::Step,
            _ => return None,
        };
        Some(Self { depth, between })
    }

    /// Number of lists.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Elements of all blocks' pieces. If the lists cannot be read, each block is assumed to have a whole
    /// piece.
    pub(crate) fn elements(&self, grid: Grid, arguments: Arguments) -> u64 {
        let most = u64::from(grid.blocks[0]).saturating_mul(CHUNK_ELEMENTS);
        self.read_offsets(arguments).and_then(|offsets| offsets.elements(grid, arguments)).unwrap_or(most)
    }

    /// Addresses of the tensors that a launch works on, each with its number of elements; `None` if the lists
    /// cannot be read. Entries after those are left over from earlier launches. The step counts that fused
    /// optimizers read are not included.
    pub(crate) fn tensors(&self, grid: Grid, arguments: Arguments) -> Option<Vec<(u64, u64)>> {
        let offsets = self.read_offsets(arguments)?;
        let mut tensors = (0..grid.blocks[0] as usize)
            .map(|block| offsets.tensor(block, arguments))
            .collect::<Option<Vec<usize>>>()?;
        tensors.sort_unstable();
        tensors.dedup();
        let address = |offset: usize| arguments.get_at::<u64>(0, offset);
        let mut found = Vec::with_capacity(tensors.len() * self.depth);
        for tensor in tensors {
            let elements = address(offsets.sizes + 8 * tensor)?;
            for list in 0..self.depth {
                found.push((address(8 * (list * offsets.tensors + tensor))?, elements));
            }
        }
        Some(found)
    }

    /// Offsets in the lists of a launch, selected by the size of its first argument.
    fn read_offsets(&self, arguments: Arguments) -> Option<ListOffsets> {
        let size = arguments.params()?.first()?.size as usize;
        let offsets = CAPACITIES.iter().map(|capacity| self.offsets(*capacity));
        offsets.filter(|offsets| offsets.end <= size).max_by_key(|offsets| offsets.end)
    }

    /// Sizes of the argument with the lists, by capacity. The number of the first tensor is at the end,
    /// unless each tensor has another number.
    pub(crate) fn sizes(&self) -> [usize; 2] {
        let number = if matches!(self.between, Between::Scalar(_)) { 0 } else { 4 };
        CAPACITIES.map(|capacity| (self.offsets(capacity).end + number).next_multiple_of(8))
    }

    /// Offsets in lists of this capacity.
    fn offsets(&self, capacity: Capacity) -> ListOffsets {
        let (tensors, bytes) = match self.between {
            Between::Nothing => (TENSORS, 0),
            Between::Scalar(16) => (TENSORS_WITH_COMPLEX, 16),
            Between::Scalar(bytes) => (TENSORS_WITH_NUMBERS, bytes),
            Between::Step => (TENSORS, 8),
        };
        let tensors = tensors[self.depth - 1] * capacity.times;
        let between = bytes * tensors;
        let blocks = BLOCKS * capacity.times;
        let sizes = 8 * self.depth * tensors;
        let owners = sizes + 8 * tensors + between;
        let pieces = (owners + capacity.index * blocks).next_multiple_of(4);
        ListOffsets {
            tensors,
            blocks,
            index: capacity.index,
            sizes,
            owners,
            pieces,
            end: pieces + 4 * blocks,
        }
    }
}

/// Bytes of the additional number of each tensor.
fn scalar(kind: &str) -> Option<usize> {
    match kind {
        "c10::complex<float>" => Some(8),
        "c10::complex<double>" => Some(16),
        _ => plain_size(kind).map(|size| size as usize),
    }
}

/// Offsets of the lists' parts in the first argument.
struct ListOffsets {
    /// Capacity in tensors and blocks.
    tensors: usize,
    blocks: usize,
    /// Bytes of a tensor index.
    index: usize,
    /// Numbers of elements of the tensors.
    sizes: usize,
    /// Tensor of each block.
    owners: usize,
    /// Piece of its tensor that each block has.
    pieces: usize,
    end: usize,
}

impl ListOffsets {
    /// Elements of all blocks' pieces; `None` if there are more blocks than the capacity, or the values are
    /// implausible.
    fn elements(&self, grid: Grid, arguments: Arguments) -> Option<u64> {
        let mut elements = 0;
        for block in 0..grid.blocks[0] as usize {
            let tensor = self.tensor(block, arguments)?;
            let piece = u64::try_from(arguments.get_at::<i32>(0, self.pieces + 4 * block)?).ok()?;
            let size = u64::try_from(arguments.get_at::<i64>(0, self.sizes + 8 * tensor)?).ok()?;
            let before = piece.checked_mul(CHUNK_ELEMENTS).filter(|before| *before < size)?;
            elements += (size - before).min(CHUNK_ELEMENTS);
        }
        Some(elements)
    }

    /// Tensor of a block; `None` if there is no such block or tensor.
    fn tensor(&self, block: usize, arguments: Arguments) -> Option<usize> {
        (block < self.blocks).then_some(())?;
        let tensor = match self.index {
            1 => usize::from(arguments.get_at::<u8>(0, self.owners + block)?),
            _ => usize::from(arguments.get_at::<u16>(0, self.owners + 2 * block)?),
        };
        (tensor < self.tensors).then_some(tensor)
    }
}
