//! Lists of tensors, as foreach operations and fused optimizers get them (`TensorListMetadata` and its kin in
//! PyTorch's `MultiTensorApply.cuh`): the first argument has the tensors' addresses and numbers of elements,
//! and says for each block which piece of which tensor is its.

use crate::{
    launch::{Arguments, Grid},
    name::{Signature, plain_size, type_parts},
};

/// The layout of the lists.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lists {
    /// How many lists there are.
    depth: usize,
    /// What stands between the numbers of elements and the blocks' pieces.
    between: Between,
}

/// What stands between the numbers of elements and the blocks' pieces, for each tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    Nothing,
    /// A number of so many bytes.
    Scalar(usize),
    /// The address of a step's number.
    Step,
}

/// For how much a launch has room: PyTorch has lists that fit into the 4 KiB that arguments had before CUDA
/// 12.1, and seven times longer ones.
#[derive(Clone, Copy)]
struct Room {
    times: usize,
    /// Bytes of a tensor's number.
    index: usize,
}

const ROOMS: [Room; 2] = [Room { times: 1, index: 1 }, Room { times: 7, index: 2 }];
/// Tensors of each list, by how many lists there are, in the shorter ones.
const TENSORS: [usize; 5] = [110, 64, 48, 36, 30];
/// The same where each tensor has a number beside it.
const TENSORS_WITH_NUMBERS: [usize; 5] = [96, 64, 48, 36, 30];
/// The same where that is a complex number in double precision.
const TENSORS_WITH_WIDEST: [usize; 5] = [72, 60, 48, 36, 30];
/// Blocks of a launch in the shorter ones.
const BLOCKS: usize = 320;
/// Elements of one block's piece.
const CHUNK: u64 = 65_536;

impl Lists {
    /// From the signature of a kernel; `None` if it is of another family.
    pub(crate) fn of(signature: &Signature) -> Option<Self> {
        if signature.name() != "multi_tensor_apply_kernel" {
            return None;
        }
        let (kind, arguments) = type_parts(signature.template(0)?);
        // Later releases have a flag behind it.
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

    /// How many lists there are.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Elements of all blocks' pieces. Where the lists cannot be read, each block is taken to have a whole
    /// piece.
    pub(crate) fn elements(&self, grid: Grid, arguments: Arguments) -> u64 {
        let most = u64::from(grid.blocks[0]).saturating_mul(CHUNK);
        self.found(arguments).and_then(|places| places.elements(grid, arguments)).unwrap_or(most)
    }

    /// The addresses of the tensors that a launch works on, each with its number of elements; `None` where
    /// the lists cannot be read. Behind those stands what earlier launches left there. The numbers of steps
    /// that fused optimizers read are not among them.
    pub(crate) fn tensors(&self, grid: Grid, arguments: Arguments) -> Option<Vec<(u64, u64)>> {
        let places = self.found(arguments)?;
        let mut tensors = (0..grid.blocks[0] as usize)
            .map(|block| places.tensor(block, arguments))
            .collect::<Option<Vec<usize>>>()?;
        tensors.sort_unstable();
        tensors.dedup();
        let address = |offset: usize| arguments.get_at::<u64>(0, offset);
        let mut found = Vec::with_capacity(tensors.len() * self.depth);
        for tensor in tensors {
            let elements = address(places.sizes + 8 * tensor)?;
            for list in 0..self.depth {
                found.push((address(8 * (list * places.tensors + tensor))?, elements));
            }
        }
        Some(found)
    }

    /// Where things are in the lists of a launch, by the size of its first argument.
    fn found(&self, arguments: Arguments) -> Option<Places> {
        let size = arguments.params()?.first()?.size as usize;
        let places = ROOMS.iter().map(|room| self.places(*room));
        places.filter(|places| places.end <= size).max_by_key(|places| places.end)
    }

    /// The sizes of the argument that has the lists, by how much room there is: the number of the first
    /// tensor stands at the end, where no other numbers do.
    pub(crate) fn sizes(&self) -> [usize; 2] {
        let number = if matches!(self.between, Between::Scalar(_)) { 0 } else { 4 };
        ROOMS.map(|room| (self.places(room).end + number).next_multiple_of(8))
    }

    /// Where things are in the lists with that much room.
    fn places(&self, room: Room) -> Places {
        let (tensors, bytes) = match self.between {
            Between::Nothing => (TENSORS, 0),
            Between::Scalar(16) => (TENSORS_WITH_WIDEST, 16),
            Between::Scalar(bytes) => (TENSORS_WITH_NUMBERS, bytes),
            Between::Step => (TENSORS, 8),
        };
        let tensors = tensors[self.depth - 1] * room.times;
        let between = bytes * tensors;
        let blocks = BLOCKS * room.times;
        let sizes = 8 * self.depth * tensors;
        let owners = sizes + 8 * tensors + between;
        let pieces = (owners + room.index * blocks).next_multiple_of(4);
        Places { tensors, blocks, index: room.index, sizes, owners, pieces, end: pieces + 4 * blocks }
    }
}

/// Bytes of a number beside each tensor.
fn scalar(kind: &str) -> Option<usize> {
    match kind {
        "c10::complex<float>" => Some(8),
        "c10::complex<double>" => Some(16),
        _ => plain_size(kind).map(|size| size as usize),
    }
}

/// Where things are in lists: offsets into the first argument.
struct Places {
    /// For how many tensors and blocks there is room.
    tensors: usize,
    blocks: usize,
    /// Bytes of a tensor's number.
    index: usize,
    /// The numbers of elements of the tensors.
    sizes: usize,
    /// The tensor of each block.
    owners: usize,
    /// Which piece of its tensor each block has.
    pieces: usize,
    end: usize,
}

impl Places {
    /// Elements of all blocks' pieces; `None` if there is no room for so many blocks, or what is read makes
    /// no sense.
    fn elements(&self, grid: Grid, arguments: Arguments) -> Option<u64> {
        let mut elements = 0;
        for block in 0..grid.blocks[0] as usize {
            let tensor = self.tensor(block, arguments)?;
            let piece = u64::try_from(arguments.get_at::<i32>(0, self.pieces + 4 * block)?).ok()?;
            let size = u64::try_from(arguments.get_at::<i64>(0, self.sizes + 8 * tensor)?).ok()?;
            let before = piece.checked_mul(CHUNK).filter(|before| *before < size)?;
            elements += (size - before).min(CHUNK);
        }
        Some(elements)
    }

    /// The tensor of a block; `None` if there is no such block or tensor.
    fn tensor(&self, block: usize, arguments: Arguments) -> Option<usize> {
        (block < self.blocks).then_some(())?;
        let tensor = match self.index {
            1 => usize::from(arguments.get_at::<u8>(0, self.owners + block)?),
            _ => usize::from(arguments.get_at::<u16>(0, self.owners + 2 * block)?),
        };
        (tensor < self.tensors).then_some(tensor)
    }
}
