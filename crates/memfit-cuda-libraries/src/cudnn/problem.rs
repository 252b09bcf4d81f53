//! Computation of a graph plan: its operations and their tensors, from the attributes set on the descriptors.
//!
//! Descriptors are the real library's. Their attributes are also stored here, and passed on to the
//! descriptors that they are set on. So a plan knows its operations even after their descriptors are
//! destroyed.

#![allow(unsafe_code, reason = "pointers of C callers are followed here, and the real libraries called")]

mod attention;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use memfit_channel::WorkKind;

use crate::cost::convolution::{Convolution, Direction, Operand};
use crate::entry::{In, Ptr};
use crate::numbers::cudnn_element;
use memfit_kernels::cost::gemm::Gemm;
use memfit_kernels::cost::speeds::Math;
use memfit_kernels::cost::{Speeds, Work};

/// Kinds of descriptors that are stored.
pub(super) mod kind {
    pub(crate) const ENGINE: i32 = 2;
    pub(crate) const ENGINE_CONFIG: i32 = 3;
    pub(crate) const CONVOLUTION_FORWARD: i32 = 10;
    pub(crate) const CONVOLUTION_FILTER: i32 = 11;
    pub(crate) const CONVOLUTION_DATA: i32 = 12;
    pub(crate) const VARIANT_PACK: i32 = 16;
    pub(crate) const POINTWISE: i32 = 13;
    pub(crate) const MATMUL: i32 = 19;
    /// Fused attention as one operation, which later releases have for the forward pass.
    pub(crate) const ATTENTION: i32 = 41;
    /// Masks scores outside a band along the diagonal.
    pub(crate) const BAND: i32 = 44;
}

/// Attributes that are read.
pub(super) mod attribute {
    pub(crate) const HEURISTICS_RESULTS: i32 = 202;
    pub(crate) const CONFIG_ENGINE: i32 = 300;
    pub(crate) const PLAN_CONFIG: i32 = 401;
    pub(crate) const ENGINE_NOTES: i32 = 1303;
    pub(super) const FORWARD: [i32; 3] = [704, 703, 705];
    pub(super) const DATA: [i32; 3] = [710, 709, 711];
    pub(super) const FILTER: [i32; 3] = [716, 715, 717];
    pub(super) const MATMUL: [i32; 3] = [1520, 1521, 1522];
    pub(super) const POINTWISE: [i32; 2] = [751, 752];
    /// Queries and keys.
    pub(super) const ATTENTION: [i32; 2] = [2800, 2801];
    pub(super) const TENSOR_TYPE: i32 = 901;
    pub(super) const TENSOR_EXTENTS: i32 = 902;
    pub(super) const TENSOR_ID: i32 = 906;
    pub(super) const TENSOR_VIRTUAL: i32 = 907;
}

/// Bound on the dimensions of a tensor and on the parts of a descriptor.
const MAX_DIMENSIONS: i64 = 64;

/// Attributes of a descriptor.
#[derive(Clone, Debug, Default)]
pub(super) struct Attributes {
    kind: i32,
    /// Data type, for a tensor.
    numbers: i32,
    extents: Vec<i64>,
    id: i64,
    is_virtual: bool,
    /// Descriptors set as attributes, with the attribute.
    parts: Vec<(i32, Arc<Attributes>)>,
}

static KNOWN: Mutex<Option<HashMap<usize, Arc<Attributes>>>> = Mutex::new(None);

fn with_known<R>(body: impl FnOnce(&mut HashMap<usize, Arc<Attributes>>) -> R) -> R {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    body(known.get_or_insert_default())
}

/// Records a new descriptor.
pub(super) fn record_descriptor(descriptor: usize, kind: i32) {
    // A variant pack is created for each execution, and describes no operation.
    if kind != kind::VARIANT_PACK {
        with_known(|known| known.insert(descriptor, Arc::new(Attributes { kind, ..Attributes::default() })));
    }
}

/// Removes a destroyed descriptor; those that it was set on keep its attributes.
pub(super) fn remove_descriptor(descriptor: usize) {
    with_known(|known| known.remove(&descriptor));
}

/// Records descriptors that were set on another one, or returned by it.
pub(super) fn record_links(descriptor: usize, attribute: i32, count: i64, parts: In<usize>) {
    with_known(|known| {
        let mut found = Vec::new();
        for index in 0..count.clamp(0, MAX_DIMENSIONS) {
            if let Some(part) = parts.get_at(index as usize).and_then(|part| known.get(&part)) {
                found.push((attribute, Arc::clone(part)));
            }
        }
        if let Some(own) = known.get_mut(&descriptor) {
            Arc::make_mut(own).parts.extend(found);
        }
    });
}

/// Records configurations returned by the heuristics, each for the operations of the query.
pub(super) fn record_configurations(heuristics: usize, count: i64, configurations: In<usize>) {
    with_known(|known| {
        let Some(parts) = known.get(&heuristics).map(|own| own.parts.clone()) else { return };
        for index in 0..count.clamp(0, 1 << 12) {
            if let Some(own) = configurations.get_at(index as usize).and_then(|each| known.get_mut(&each)) {
                Arc::make_mut(own).parts.clone_from(&parts);
            }
        }
    });
}

/// Records numbers that were set on a tensor's descriptor.
pub(super) fn record_attribute(descriptor: usize, attribute: i32, count: i64, values: Ptr) {
    let at = values as u64;
    // SAFETY: the attributes read this way are `count` 64-bit numbers.
    let long = || unsafe { In::<i64>::from_address(at) }.list(count.clamp(0, MAX_DIMENSIONS) as usize);
    with_known(|known| {
        let Some(own) = known.get_mut(&descriptor) else { return };
        match attribute {
            attribute::TENSOR_TYPE => {
                // SAFETY: the attribute is a `cudnnDataType_t`.
                Arc::make_mut(own).numbers = unsafe { In::<i32>::from_address(at) }.get().unwrap_or(0);
            }
            attribute::TENSOR_EXTENTS => Arc::make_mut(own).extents = long(),
            attribute::TENSOR_ID => Arc::make_mut(own).id = long().first().copied().unwrap_or(0),
            attribute::TENSOR_VIRTUAL => {
                // SAFETY: the attribute is a `bool`.
                let flag = unsafe { In::<u8>::from_address(at) }.get();
                Arc::make_mut(own).is_virtual = flag.is_some_and(|flag| flag != 0);
            }
            _ => {}
        }
    });
}

/// Returns the attributes of a descriptor.
pub(super) fn find(descriptor: usize) -> Option<Arc<Attributes>> {
    with_known(|known| known.get(&descriptor).cloned())
}

impl Attributes {
    /// Duration of the operations. `tensor_cores` is `true` if single precision uses them; `workspace` has
    /// the bytes that the plan keeps between its kernels.
    pub(super) fn work(&self, tensor_cores: bool, workspace: f64, speeds: &Speeds) -> Work {
        let mut operations = Vec::new();
        self.collect(&mut operations);
        if let Some((attention, shape)) = attention::recognise(&operations) {
            return attention.shape_work(shape, speeds);
        }
        let (mut length, mut moved) = (0.0, 0.0);
        let mut kind = WorkKind::Memory;
        for operation in &operations {
            if let Some(convolution) = operation.convolution(tensor_cores, workspace) {
                length += convolution.work(speeds).length as f64;
                kind = WorkKind::Convolution;
            } else if let Some(gemm) = operation.product(tensor_cores) {
                length += gemm.nanoseconds(speeds) - speeds.launch;
                kind = WorkKind::Matmul;
            }
            moved += operation.tensors().map(Attributes::bytes).sum::<f64>();
        }
        if kind != WorkKind::Convolution {
            length = speeds.launch + length.max(speeds.traffic(moved, 0.8));
        }
        Work::new(kind, length)
    }

    /// Ids of the tensors that it writes, or might: for a convolution the result, for other operations every
    /// tensor that does not hold integers.
    pub(super) fn written_tensors(&self) -> Vec<i64> {
        let mut operations = Vec::new();
        self.collect(&mut operations);
        let mut numbers = Vec::new();
        for operation in operations {
            let result = match operation.kind {
                kind::CONVOLUTION_FORWARD => operation.part(attribute::FORWARD[2]),
                kind::CONVOLUTION_DATA => operation.part(attribute::DATA[0]),
                kind::CONVOLUTION_FILTER => operation.part(attribute::FILTER[1]),
                _ => None,
            };
            if let Some(result) = result {
                numbers.push(result.id);
            } else {
                let computed = operation.tensors().filter(|tensor| !tensor.holds_integers());
                numbers.extend(computed.map(|tensor| tensor.id));
            }
        }
        numbers
    }

    /// Returns `true` for lengths and offsets, which no operation writes.
    fn holds_integers(&self) -> bool {
        /// `CUDNN_DATA_INT32`, `CUDNN_DATA_INT64`.
        const INTEGERS: [i32; 2] = [4, 10];
        INTEGERS.contains(&self.numbers)
    }

    /// Returns `true` if anything in it is computed in single precision.
    pub(super) fn is_single(&self) -> bool {
        let own = !self.extents.is_empty() && cudnn_element(self.numbers).1 == Math::F32;
        own || self.parts.iter().any(|(_, part)| part.is_single())
    }

    /// Collects the operations in it.
    fn collect<'k>(&'k self, found: &mut Vec<&'k Attributes>) {
        let is_operation = self.parts.iter().any(|(_, part)| !part.extents.is_empty());
        if is_operation {
            found.push(self);
        } else {
            self.parts.iter().for_each(|(_, part)| part.collect(found));
        }
    }

    fn part(&self, attribute: i32) -> Option<&Attributes> {
        self.parts.iter().find(|(known, _)| *known == attribute).map(|(_, part)| part.as_ref())
    }

    fn tensors(&self) -> impl Iterator<Item = &Attributes> {
        self.parts.iter().map(|(_, part)| part.as_ref()).filter(|part| !part.extents.is_empty())
    }

    fn elements(&self) -> f64 {
        self.extents.iter().map(|extent| *extent as f64).product()
    }

    /// Number of matrices, and their rows and columns.
    fn matrices(&self) -> (f64, [f64; 2]) {
        let last = |from_end: usize| {
            self.extents.len().checked_sub(from_end).map_or(1.0, |dimension| self.extent(dimension))
        };
        let [rows, columns] = [last(2), last(1)];
        (self.elements() / (rows * columns).max(1.0), [rows, columns])
    }

    /// Bytes in memory.
    fn bytes(&self) -> f64 {
        if self.is_virtual { 0.0 } else { self.elements() * cudnn_element(self.numbers).0 }
    }

    fn extent(&self, dimension: usize) -> f64 {
        self.extents.get(dimension).map_or(1.0, |extent| *extent as f64)
    }

    fn math(&self, tensor_cores: bool) -> (f64, Math) {
        match cudnn_element(self.numbers) {
            (element, Math::F32) if tensor_cores => (element, Math::Tf32),
            known => known,
        }
    }

    fn convolution(&self, tensor_cores: bool, workspace: f64) -> Option<Convolution> {
        let (direction, [x, w, y]) = match self.kind {
            kind::CONVOLUTION_FORWARD => (Direction::Forward, attribute::FORWARD),
            kind::CONVOLUTION_DATA => (Direction::Data, attribute::DATA),
            kind::CONVOLUTION_FILTER => (Direction::Filter, attribute::FILTER),
            _ => return None,
        };
        let (x, w, y) = (self.part(x)?, self.part(w)?, self.part(y)?);
        let operands =
            [x, w, y].map(|part| Operand::from_extents(part.extents.iter().map(|extent| *extent as f64)));
        Some(Convolution::new(direction, operands, x.math(tensor_cores), workspace))
    }

    fn product(&self, tensor_cores: bool) -> Option<Gemm> {
        if self.kind != kind::MATMUL {
            return None;
        }
        let [first, second, result] = attribute::MATMUL.map(|attribute| self.part(attribute));
        let (first, second, result) = (first?, second?, result?);
        let (count, [m, n]) = result.matrices();
        let (_, [_, k]) = first.matrices();
        let (element, mut math) = first.math(tensor_cores);
        if math == Math::F32 && first.is_virtual {
            // An intermediate between two products of one kernel is computed in the operands' precision.
            math = second.math(tensor_cores).1;
        }
        Some(Gemm::new([m, n, k, count], math, element, cudnn_element(result.numbers).0))
    }
}
