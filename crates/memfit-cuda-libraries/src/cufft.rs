//! cuFFT: plans, and the work area of each.
//!
//! The real library sizes a plan only on a device. Its guide describes the size of a work area: as much as
//! the data if all sizes are products of small primes; otherwise the size to which Bluestein's algorithm pads
//! them. Each use adds the remark `cufft-areas` to the report.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use memfit_vocabulary::Remark;

use super::entry::{Fails, In, Out, Ptr, entry_points};
use super::real::{forward, real};
use crate::cost::library;
use memfit_cuda::card;
use memfit_kernels::cost::{Speeds, Work};

/// The part of `cufftResult` that is returned here.
mod status {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const INVALID_PLAN: i32 = 1;
    pub(super) const ALLOC_FAILED: i32 = 2;
    pub(super) const INVALID_TYPE: i32 = 3;
    pub(super) const INVALID_VALUE: i32 = 4;
    pub(super) const INTERNAL_ERROR: i32 = 5;
    pub(super) const SETUP_FAILED: i32 = 7;
    pub(super) const INVALID_SIZE: i32 = 8;
}

/// Largest prime factor that cuFFT transforms without padding.
const LARGEST_PRIME: u64 = 127;

/// A plan.
struct Plan {
    work_size: usize,
    /// `true` if the plan allocates its own work area.
    allocates: bool,
    /// Work area that the plan allocated.
    area: Option<usize>,
    /// Stream that it runs on.
    stream: usize,
    /// Transform that one execution computes.
    transform: Option<Transform>,
}

/// Size and padded size of each dimension, number of transforms, and type of the elements.
#[derive(Clone)]
struct Transform {
    sizes: Vec<u64>,
    padded: Vec<u64>,
    batch: u64,
    elements: Elements,
}

impl Transform {
    fn new(sizes: &[i64], batch: i64, elements: Elements) -> Self {
        let mut sizes: Vec<u64> = sizes.iter().map(|size| u64::try_from(*size).unwrap_or(0)).collect();
        let padded = sizes.iter().map(|size| padded(*size)).collect();
        // For real data, half of the last dimension is transformed.
        if let (true, Some(last)) = (elements.half, sizes.last_mut()) {
            *last = *last / 2 + 1;
        }
        Self { sizes, padded, batch: u64::try_from(batch).unwrap_or(0), elements }
    }

    fn work(&self, speeds: &Speeds) -> Work {
        let whole = |(padded, size): (&u64, &u64)| {
            if self.elements.half && *padded <= 2 * size { *size } else { *padded }
        };
        let padded: Vec<u64> = self.padded.iter().zip(&self.sizes).map(whole).collect();
        library::fourier(&self.sizes, &padded, self.batch, self.elements.complex, speeds)
    }
}

/// Executes a plan: takes its time on the plan's stream, and forgets the contents of the output.
fn execute(plan: i32, output: Ptr) -> i32 {
    card::forget_contents(output);
    with_plan(plan, |plan| {
        if let Some(transform) = &plan.transform {
            card::queue_work(plan.stream, |speeds| transform.work(speeds));
        }
        status::SUCCESS
    })
}

impl Drop for Plan {
    fn drop(&mut self) {
        if let Some(area) = self.area.take() {
            card::free(area as Ptr);
        }
    }
}

/// Live plans, and the number of the next.
struct Plans {
    alive: HashMap<i32, Plan>,
    next: i32,
}

static PLANS: Mutex<Option<Plans>> = Mutex::new(None);

fn plans<R>(body: impl FnOnce(&mut Plans) -> R) -> R {
    let mut plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
    body(plans.get_or_insert_with(|| Plans { alive: HashMap::new(), next: 1 }))
}

/// Calls `body` with a plan.
fn with_plan(plan: i32, body: impl FnOnce(&mut Plan) -> i32) -> i32 {
    plans(|plans| plans.alive.get_mut(&plan).map_or(status::INVALID_PLAN, body))
}

fn create(plan: Out<i32>) -> i32 {
    if plan.is_null() {
        return status::INVALID_VALUE;
    }
    if !card::use_libraries() {
        return status::SETUP_FAILED;
    }
    plans(|plans| {
        plan.set(plans.next);
        let made = Plan { work_size: 0, allocates: true, area: None, stream: 0, transform: None };
        plans.alive.insert(plans.next, made);
        plans.next += 1;
    });
    status::SUCCESS
}

/// Elements of a transform.
#[derive(Clone, Copy)]
struct Elements {
    /// Bytes of a complex number.
    complex: u64,
    /// `true` if one side is real, so that half of the last dimension suffices.
    half: bool,
}

/// Elements of a `cufftType`.
fn elements(kind: i32) -> Option<Elements> {
    match kind {
        0x29 => Some(Elements { complex: 8, half: false }), // C2C
        0x2a | 0x2c => Some(Elements { complex: 8, half: true }), // R2C, C2R
        0x69 => Some(Elements { complex: 16, half: false }), // Z2Z
        0x6a | 0x6c => Some(Elements { complex: 16, half: true }), // D2Z, Z2D
        _ => None,
    }
}

/// Elements for the `cudaDataType`s of a transform's input, output and execution.
fn elements_of_types(input: i32, output: i32, execution: i32) -> Option<Elements> {
    let is_complex = |kind| matches!(kind, 4 | 5 | 6 | 15);
    let complex = match execution {
        6 | 15 => 4,
        4 => 8,
        5 => 16,
        _ => return None,
    };
    Some(Elements { complex, half: !(is_complex(input) && is_complex(output)) })
}

/// Effective size of a dimension: itself, or the size that Bluestein's algorithm pads it to.
fn padded(size: u64) -> u64 {
    let mut rest = size;
    let mut prime = 2;
    while prime <= LARGEST_PRIME && rest > 1 {
        while rest.is_multiple_of(prime) {
            rest /= prime;
        }
        prime += 1;
    }
    if rest == 1 { size } else { (2 * size - 1).next_power_of_two() }
}

/// Work area of a transform in bytes; `None` for impossible sizes.
fn work_size(sizes: &[i64], batch: i64, elements: Elements) -> Option<usize> {
    let batch = u64::try_from(batch).ok().filter(|batch| *batch > 0)?;
    let (last, others) = sizes.split_last()?;
    let positive = |size: &i64| u64::try_from(*size).ok().filter(|size| *size > 0);
    let last = positive(last)?;
    // A padded dimension is transformed in full, even for real data.
    let mut total = match padded(last) {
        full if full != last => full,
        _ if elements.half => last / 2 + 1,
        full => full,
    };
    for size in others {
        total = total.checked_mul(padded(positive(size)?))?;
    }
    let bytes = total.checked_mul(batch)?.checked_mul(elements.complex)?;
    card::remark_on_bytes(Remark::CufftAreas, bytes);
    usize::try_from(bytes).ok()
}

/// Initialises a plan: computes its work area and allocates it, unless the caller will.
fn make(plan: i32, sizes: &[i64], batch: i64, elements: Option<Elements>, size: Out<usize>) -> i32 {
    let Some(elements) = elements else { return status::INVALID_TYPE };
    let Some(bytes) = work_size(sizes, batch, elements) else { return status::INVALID_SIZE };
    with_plan(plan, |plan| {
        plan.work_size = bytes;
        plan.transform = Some(Transform::new(sizes, batch, elements));
        if plan.allocates {
            let Some(area) = card::allocate(bytes) else { return status::ALLOC_FAILED };
            plan.area = Some(area as usize);
        }
        size.set(bytes);
        status::SUCCESS
    })
}

/// Returns the size of a work area without creating a plan.
fn estimate(sizes: &[i64], batch: i64, elements: Option<Elements>, size: Out<usize>) -> i32 {
    let Some(elements) = elements else { return status::INVALID_TYPE };
    match work_size(sizes, batch, elements) {
        Some(bytes) if size.write(bytes) => status::SUCCESS,
        Some(_) => status::INVALID_VALUE,
        None => status::INVALID_SIZE,
    }
}

/// Dimensions of a transform, outermost first.
fn dimensions<T: Copy + Into<i64>>(rank: i32, sizes: In<T>) -> Vec<i64> {
    sizes.list(usize::try_from(rank).unwrap_or(0)).into_iter().map(Into::into).collect()
}

/// Creates and initialises a plan; removes it if that fails.
fn create_and_make(plan: Out<i32>, sizes: &[i64], batch: i64, kind: i32) -> i32 {
    let created = create(plan);
    if created != status::SUCCESS {
        return created;
    }
    let number = plans(|plans| plans.next - 1);
    let made = make(number, sizes, batch, elements(kind), Out::nowhere());
    if made != status::SUCCESS {
        plans(|plans| plans.alive.remove(&number));
    }
    made
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Creates an uninitialised plan.
    fn cufftCreate(plan: Out<i32>) { create(plan) }

    /// Destroys a plan and the work area it allocated.
    fn cufftDestroy(plan: i32) {
        if plans(|plans| plans.alive.remove(&plan)).is_some() { status::SUCCESS } else { status::INVALID_PLAN }
    }

    /// Sets whether the plan allocates its own work area.
    fn cufftSetAutoAllocation(plan: i32, allocates: i32) {
        with_plan(plan, |plan| {
            plan.allocates = allocates != 0;
            status::SUCCESS
        })
    }

    /// Sets the caller's work area, in place of the plan's own.
    fn cufftSetWorkArea(plan: i32, area: Ptr) {
        with_plan(plan, |plan| {
            if let Some(own) = plan.area.take() {
                card::free(own as Ptr);
            }
            card::label_workspace(area);
            status::SUCCESS
        })
    }

    /// Sets the plan's stream.
    fn cufftSetStream(plan: i32, stream: Ptr) {
        with_plan(plan, |plan| {
            plan.stream = stream as usize;
            status::SUCCESS
        })
    }

    /// Transforms complex to complex, in single precision.
    fn cufftExecC2C(plan: i32, _input: Ptr, output: Ptr, _direction: i32) { execute(plan, output) }

    /// Transforms complex to real, in single precision.
    fn cufftExecC2R(plan: i32, _input: Ptr, output: Ptr) { execute(plan, output) }

    /// Transforms real to complex, in single precision.
    fn cufftExecR2C(plan: i32, _input: Ptr, output: Ptr) { execute(plan, output) }

    /// Transforms complex to complex, in double precision.
    fn cufftExecZ2Z(plan: i32, _input: Ptr, output: Ptr, _direction: i32) { execute(plan, output) }

    /// Transforms complex to real, in double precision.
    fn cufftExecZ2D(plan: i32, _input: Ptr, output: Ptr) { execute(plan, output) }

    /// Transforms real to complex, in double precision.
    fn cufftExecD2Z(plan: i32, _input: Ptr, output: Ptr) { execute(plan, output) }

    /// Executes a plan, whatever its types; PyTorch calls this.
    fn cufftXtExec(plan: i32, _input: Ptr, output: Ptr, _direction: i32) { execute(plan, output) }

    /// Returns the size of a plan's work area.
    fn cufftGetSize(plan: i32, size: Out<usize>) {
        with_plan(plan, |plan| if size.write(plan.work_size) { status::SUCCESS } else { status::INVALID_VALUE })
    }

    /// Initialises a plan in one dimension.
    fn cufftMakePlan1d(plan: i32, x: i32, kind: i32, batch: i32, size: Out<usize>) {
        make(plan, &[x.into()], batch.into(), elements(kind), size)
    }

    /// Initialises a plan in two dimensions.
    fn cufftMakePlan2d(plan: i32, x: i32, y: i32, kind: i32, size: Out<usize>) {
        make(plan, &[x.into(), y.into()], 1, elements(kind), size)
    }

    /// Initialises a plan in three dimensions.
    fn cufftMakePlan3d(plan: i32, x: i32, y: i32, z: i32, kind: i32, size: Out<usize>) {
        make(plan, &[x.into(), y.into(), z.into()], 1, elements(kind), size)
    }

    /// Initialises a plan for many transforms.
    fn cufftMakePlanMany(
        plan: i32, rank: i32, sizes: In<i32>, _in_embed: Ptr, _in_step: i32, _in_distance: i32, _out_embed: Ptr,
        _out_step: i32, _out_distance: i32, kind: i32, batch: i32, size: Out<usize>,
    ) {
        make(plan, &dimensions(rank, sizes), batch.into(), elements(kind), size)
    }

    /// Does the same with 64-bit indices.
    fn cufftMakePlanMany64(
        plan: i32, rank: i32, sizes: In<i64>, _in_embed: Ptr, _in_step: i64, _in_distance: i64, _out_embed: Ptr,
        _out_step: i64, _out_distance: i64, kind: i32, batch: i64, size: Out<usize>,
    ) {
        make(plan, &dimensions(rank, sizes), batch, elements(kind), size)
    }

    /// Does the same with types given as arguments.
    fn cufftXtMakePlanMany(
        plan: i32, rank: i32, sizes: In<i64>, _in_embed: Ptr, _in_step: i64, _in_distance: i64, in_kind: i32,
        _out_embed: Ptr, _out_step: i64, _out_distance: i64, out_kind: i32, batch: i64, size: Out<usize>, execution: i32,
    ) {
        make(plan, &dimensions(rank, sizes), batch, elements_of_types(in_kind, out_kind, execution), size)
    }

    /// Creates and initialises a plan in one dimension.
    fn cufftPlan1d(plan: Out<i32>, x: i32, kind: i32, batch: i32) {
        create_and_make(plan, &[x.into()], batch.into(), kind)
    }

    /// Creates and initialises a plan in two dimensions.
    fn cufftPlan2d(plan: Out<i32>, x: i32, y: i32, kind: i32) {
        create_and_make(plan, &[x.into(), y.into()], 1, kind)
    }

    /// Creates and initialises a plan in three dimensions.
    fn cufftPlan3d(plan: Out<i32>, x: i32, y: i32, z: i32, kind: i32) {
        create_and_make(plan, &[x.into(), y.into(), z.into()], 1, kind)
    }

    /// Creates and initialises a plan for many transforms.
    fn cufftPlanMany(
        plan: Out<i32>, rank: i32, sizes: In<i32>, _in_embed: Ptr, _in_step: i32, _in_distance: i32, _out_embed: Ptr,
        _out_step: i32, _out_distance: i32, kind: i32, batch: i32,
    ) {
        create_and_make(plan, &dimensions(rank, sizes), batch.into(), kind)
    }

    /// Returns the work area of a plan in one dimension.
    fn cufftEstimate1d(x: i32, kind: i32, batch: i32, size: Out<usize>) {
        estimate(&[x.into()], batch.into(), elements(kind), size)
    }

    /// Returns the work area of a plan in two dimensions.
    fn cufftEstimate2d(x: i32, y: i32, kind: i32, size: Out<usize>) {
        estimate(&[x.into(), y.into()], 1, elements(kind), size)
    }

    /// Returns the work area of a plan in three dimensions.
    fn cufftEstimate3d(x: i32, y: i32, z: i32, kind: i32, size: Out<usize>) {
        estimate(&[x.into(), y.into(), z.into()], 1, elements(kind), size)
    }

    /// Returns the work area of a plan for many transforms.
    fn cufftEstimateMany(
        rank: i32, sizes: In<i32>, _in_embed: Ptr, _in_step: i32, _in_distance: i32, _out_embed: Ptr, _out_step: i32,
        _out_distance: i32, kind: i32, batch: i32, size: Out<usize>,
    ) {
        estimate(&dimensions(rank, sizes), batch.into(), elements(kind), size)
    }

    /// Returns the work area of a plan in one dimension.
    fn cufftGetSize1d(plan: i32, x: i32, kind: i32, batch: i32, size: Out<usize>) {
        with_plan(plan, |_| estimate(&[x.into()], batch.into(), elements(kind), size))
    }

    /// Returns the work area of a plan in two dimensions.
    fn cufftGetSize2d(plan: i32, x: i32, y: i32, kind: i32, size: Out<usize>) {
        with_plan(plan, |_| estimate(&[x.into(), y.into()], 1, elements(kind), size))
    }

    /// Returns the work area of a plan in three dimensions.
    fn cufftGetSize3d(plan: i32, x: i32, y: i32, z: i32, kind: i32, size: Out<usize>) {
        with_plan(plan, |_| estimate(&[x.into(), y.into(), z.into()], 1, elements(kind), size))
    }

    /// Returns the work area of a plan for many transforms.
    fn cufftGetSizeMany(
        plan: i32, rank: i32, sizes: In<i32>, _in_embed: Ptr, _in_step: i32, _in_distance: i32, _out_embed: Ptr,
        _out_step: i32, _out_distance: i32, kind: i32, batch: i32, size: Out<usize>,
    ) {
        with_plan(plan, |_| estimate(&dimensions(rank, sizes), batch.into(), elements(kind), size))
    }

    /// Does the same with 64-bit indices.
    fn cufftGetSizeMany64(
        plan: i32, rank: i32, sizes: In<i64>, _in_embed: Ptr, _in_step: i64, _in_distance: i64, _out_embed: Ptr,
        _out_step: i64, _out_distance: i64, kind: i32, batch: i64, size: Out<usize>,
    ) {
        with_plan(plan, |_| estimate(&dimensions(rank, sizes), batch, elements(kind), size))
    }

    /// Does the same with types given as arguments.
    fn cufftXtGetSizeMany(
        plan: i32, rank: i32, sizes: In<i64>, _in_embed: Ptr, _in_step: i64, _in_distance: i64, in_kind: i32,
        _out_embed: Ptr, _out_step: i64, _out_distance: i64, out_kind: i32, batch: i64, size: Out<usize>, execution: i32,
    ) {
        let elements = elements_of_types(in_kind, out_kind, execution);
        with_plan(plan, |_| estimate(&dimensions(rank, sizes), batch, elements, size))
    }

    /// Returns the real library's version.
    fn cufftGetVersion(version: Out<i32>) {
        real!(CUFFT, cufftGetVersion(version => Out<i32>) -> i32).unwrap_or(status::SETUP_FAILED)
    }
}

forward! {
    CUFFT, missing status::SETUP_FAILED, fail status::INTERNAL_ERROR;

    fn cufftGetProperty(kind: i32, value: Ptr);
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPLEX: Elements = Elements { complex: 8, half: false };
    const REAL: Elements = Elements { complex: 8, half: true };

    #[test]
    fn smooth_sizes_take_as_much_as_the_data() {
        assert_eq!(work_size(&[1024], 10, COMPLEX), Some(1024 * 10 * 8));
        assert_eq!(work_size(&[360, 127], 1, COMPLEX), Some(360 * 127 * 8));
        assert_eq!(work_size(&[64, 64], 3, REAL), Some(64 * 33 * 3 * 8));
    }

    #[test]
    fn other_sizes_are_padded() {
        // 131 is the first prime above the library's limit; 2 · 131 − 1 is padded to 512.
        assert_eq!(work_size(&[131], 1, COMPLEX), Some(512 * 8));
        assert_eq!(work_size(&[131], 1, REAL), Some(512 * 8));
        assert_eq!(work_size(&[8, 262], 1, COMPLEX), Some(8 * 1024 * 8));
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for (sizes, batch) in [(vec![], 1), (vec![0], 1), (vec![-4], 1), (vec![4], 0), (vec![1 << 40; 3], 1)]
        {
            assert_eq!(work_size(&sizes, batch, COMPLEX), None, "{sizes:?} × {batch}");
        }
    }

    #[test]
    fn types_are_those_of_the_header() {
        assert_eq!(elements_of_types(0, 4, 4).map(|known| (known.complex, known.half)), Some((8, true)));
        assert_eq!(elements_of_types(6, 6, 6).map(|known| (known.complex, known.half)), Some((4, false)));
        assert!(elements_of_types(4, 4, 0).is_none());
        assert!(elements(0x28).is_none());
    }
}
