//! cuDNN's graph interface, through its documented mode without a device.
//!
//! Descriptors belong to the real library. It never sees a handle; instead, heuristics, engines and plans get
//! a descriptor of the device's properties before they are finalised. So heuristics rank engines, and plans
//! report their workspace, as they would on the device. Executing a plan does nothing.

#![allow(unsafe_code, reason = "pointers of C callers are followed here, and the real libraries called")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use memfit_channel::WorkKind;

use super::image::{self, TYPE_HANDLE};
use super::multiplications;
use super::problem::{self, attribute, kind};
use super::status;
use crate::entry::{Fails, In, Out, Ptr, entry_points};
use crate::real::real;
use memfit_cuda::card;
use memfit_kernels::cost::{Speeds, Work};

/// `CUDNN_TYPE_BACKEND_DESCRIPTOR`.
const TYPE_DESCRIPTOR: i32 = 15;
/// `CUDNN_ATTR_VARIANT_PACK_WORKSPACE`.
const WORKSPACE: i32 = 1003;
/// `CUDNN_ATTR_DEVICEPROP_HANDLE`: the only use of a handle that the library may see, since it only reads
/// properties.
const PROPERTIES_FROM_HANDLE: i32 = 2701;

/// The attribute that takes a descriptor of the device's properties, by the kind of descriptor it is set on.
fn property_attribute(kind: i32) -> Option<i32> {
    match kind {
        2 => Some(1307), // CUDNN_BACKEND_ENGINE_DESCRIPTOR: CUDNN_ATTR_ENGINE_DEVICEPROP
        4 => Some(204),  // CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: CUDNN_ATTR_ENGINEHEUR_DEVICEPROP
        5 => Some(407),  // CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP
        _ => None,
    }
}

/// The properties attribute that each unfinalised descriptor still needs. Descriptors of other kinds are not
/// stored.
static UNFINALISED: Mutex<Option<HashMap<usize, i32>>> = Mutex::new(None);

fn unfinalised<R>(body: impl FnOnce(&mut HashMap<usize, i32>) -> R) -> R {
    let mut unfinalised = UNFINALISED.lock().unwrap_or_else(PoisonError::into_inner);
    body(unfinalised.get_or_insert_default())
}

/// Effect of a plan: the problem that it solves and how, and the ids of the tensors that it writes.
#[derive(Clone)]
struct Effect {
    problem: Option<Arc<problem::Attributes>>,
    tensor_cores: bool,
    workspace: f64,
    written: Arc<[i64]>,
}

impl Effect {
    /// Duration at these speeds.
    fn work(&self, speeds: &Speeds) -> Work {
        match &self.problem {
            Some(problem) => problem.work(self.tensor_cores, self.workspace, speeds),
            None => Work::new(WorkKind::Guess, speeds.launch),
        }
    }
}

/// Effect of each plan, computed when it first runs.
static EFFECTS: Mutex<Option<HashMap<usize, Effect>>> = Mutex::new(None);

fn effects<R>(body: impl FnOnce(&mut HashMap<usize, Effect>) -> R) -> R {
    let mut effects = EFFECTS.lock().unwrap_or_else(PoisonError::into_inner);
    body(effects.get_or_insert_default())
}

/// Returns the effect of a plan.
fn effect(plan: Ptr) -> Effect {
    if let Some(known) = effects(|effects| effects.get(&(plan as usize)).cloned()) {
        return known;
    }
    let effect = match problem::find(plan as usize) {
        Some(problem) => Effect {
            tensor_cores: problem.is_single() && runs_on_tensor_cores(plan),
            workspace: plan_workspace(plan),
            written: problem.written_tensors().into(),
            problem: Some(problem),
        },
        None => Effect { problem: None, tensor_cores: false, workspace: 0.0, written: Arc::default() },
    };
    effects(|effects| effects.insert(plan as usize, effect.clone()));
    effect
}

/// Bytes of the plan's workspace.
fn plan_workspace(plan: Ptr) -> f64 {
    /// `CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE`, `CUDNN_TYPE_INT64`.
    const PLAN_WORKSPACE: i32 = 402;
    const TYPE_INT64: i32 = 3;
    let (mut size, mut count) = (0_i64, 0_i64);
    let got = real!(CUDNN, cudnnBackendGetAttribute(
        plan => Ptr, PLAN_WORKSPACE => i32, TYPE_INT64 => i32, 1 => i64, &raw mut count => *mut i64,
        (&raw mut size).cast() => Ptr
    ) -> i32);
    if got == Some(status::SUCCESS) { size.max(0) as f64 } else { 0.0 }
}

/// Returns `true` if the numerical notes of a plan's engine say that it uses tensor cores; without the note,
/// single precision does not.
fn runs_on_tensor_cores(plan: Ptr) -> bool {
    /// `CUDNN_TYPE_NUMERICAL_NOTE`, `CUDNN_NUMERICAL_NOTE_TENSOR_CORE`.
    const TYPE_NOTE: i32 = 11;
    const TENSOR_CORE: i32 = 0;
    let mut notes = [-1_i32; 32];
    let inner = |descriptor: Ptr, attribute: i32, kind: i32, body: &mut dyn FnMut(Ptr)| {
        let (mut made, mut count) = (0_usize, 0_i64);
        real!(CUDNN, cudnnBackendCreateDescriptor(kind => i32, &raw mut made => *mut usize) -> i32);
        let got = real!(CUDNN, cudnnBackendGetAttribute(
            descriptor => Ptr, attribute => i32, TYPE_DESCRIPTOR => i32, 1 => i64, &raw mut count => *mut i64,
            (&raw mut made).cast() => Ptr
        ) -> i32);
        if got == Some(status::SUCCESS) {
            body(made as Ptr);
        }
        real!(CUDNN, cudnnBackendDestroyDescriptor(made as Ptr => Ptr) -> i32);
    };
    inner(plan, attribute::PLAN_CONFIG, kind::ENGINE_CONFIG, &mut |configuration| {
        inner(configuration, attribute::CONFIG_ENGINE, kind::ENGINE, &mut |engine| {
            let mut count = 0_i64;
            real!(CUDNN, cudnnBackendGetAttribute(
                engine => Ptr, attribute::ENGINE_NOTES => i32, TYPE_NOTE => i32, notes.len() as i64 => i64,
                &raw mut count => *mut i64, notes.as_mut_ptr().cast() => Ptr
            ) -> i32);
        });
    });
    notes.contains(&TENSOR_CORE)
}

/// `CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS`, `CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS`.
const NUMBERS: i32 = 1000;
const ADDRESSES: i32 = 1001;

/// Ids and addresses of tensors, by the variant pack that they were set on; the library does not return them.
type Packs = HashMap<usize, (Vec<i64>, Vec<i64>)>;
static PACKS: Mutex<Option<Packs>> = Mutex::new(None);

fn packs<R>(body: impl FnOnce(&mut Packs) -> R) -> R {
    let mut packs = PACKS.lock().unwrap_or_else(PoisonError::into_inner);
    body(packs.get_or_insert_default())
}

/// Stores ids or addresses that are set on a variant pack.
fn store_pack(descriptor: Ptr, name: i32, count: i64, values: Ptr) {
    const MAX_TENSORS: i64 = 64;
    // SAFETY: these attributes of a pack are `count` 64-bit ids or addresses.
    let list = unsafe { In::<i64>::from_address(values as u64) }.list(count.clamp(0, MAX_TENSORS) as usize);
    packs(|packs| {
        let (numbers, addresses) = packs.entry(descriptor as usize).or_default();
        *(if name == NUMBERS { numbers } else { addresses }) = list;
    });
}

/// Forgets the contents of tensors with these ids, at their addresses in a variant pack.
fn forget_tensors(tensors: &[i64], pack: Ptr) {
    let Some((numbers, addresses)) = packs(|packs| packs.get(&(pack as usize)).cloned()) else { return };
    for (number, address) in numbers.iter().zip(addresses) {
        if tensors.contains(number) {
            card::forget_contents(address as u64 as Ptr);
        }
    }
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Creates a descriptor, and records one that will need the device's properties.
    fn cudnnBackendCreateDescriptor(kind: i32, descriptor: Out<usize>) {
        if descriptor.is_null() {
            return status::BAD_PARAM;
        }
        let mut made = 0_usize;
        let result = real!(CUDNN, cudnnBackendCreateDescriptor(kind => i32, &raw mut made => *mut usize) -> i32);
        if result == Some(status::SUCCESS) {
            problem::record_descriptor(made, kind);
            match property_attribute(kind) {
                Some(attribute) => unfinalised(|unfinalised| unfinalised.insert(made, attribute)),
                None => None,
            };
            descriptor.set(made);
        }
        result.unwrap_or(status::NOT_INITIALIZED)
    }

    /// Sets an attribute, unless it is a handle.
    fn cudnnBackendSetAttribute(descriptor: Ptr, name: i32, kind: i32, count: i64, values: Ptr) {
        if kind == TYPE_HANDLE && name != PROPERTIES_FROM_HANDLE && image::descriptor().is_some() {
            return status::SUCCESS;
        }
        match kind {
            _ if name == NUMBERS || name == ADDRESSES => store_pack(descriptor, name, count, values),
            TYPE_DESCRIPTOR => {
                // SAFETY: by its type, the attribute is `count` descriptors.
                let parts = unsafe { In::from_address(values as u64) };
                problem::record_links(descriptor as usize, name, count, parts);
            }
            _ => problem::record_attribute(descriptor as usize, name, count, values),
        }
        if name == WORKSPACE {
            // SAFETY: the attribute is an address.
            let workspace = unsafe { In::<Ptr>::from_address(values as u64) };
            workspace.get().into_iter().for_each(card::label_workspace);
        }
        real!(CUDNN, cudnnBackendSetAttribute(
            descriptor => Ptr, name => i32, kind => i32, count => i64, values => Ptr
        ) -> i32).unwrap_or(status::NOT_INITIALIZED)
    }

    /// Returns an attribute.
    fn cudnnBackendGetAttribute(
        descriptor: Ptr, name: i32, kind: i32, requested: i64, count: Out<i64>, values: Ptr,
    ) {
        let result = real!(CUDNN, cudnnBackendGetAttribute(
            descriptor => Ptr, name => i32, kind => i32, requested => i64, count => Out<i64>, values => Ptr
        ) -> i32);
        if name == attribute::HEURISTICS_RESULTS && result == Some(status::SUCCESS) {
            let given = count.get().unwrap_or(requested).min(requested);
            // SAFETY: cuDNN has written this many descriptors there.
            problem::record_configurations(descriptor as usize, given, unsafe { In::from_address(values as u64) });
        }
        result.unwrap_or(status::NOT_INITIALIZED)
    }

    /// Finalises a descriptor, with the device's properties if it needs them.
    fn cudnnBackendFinalize(descriptor: Ptr) {
        let attribute = unfinalised(|unfinalised| unfinalised.get(&(descriptor as usize)).copied());
        if attribute.is_some() {
            multiplications::support();
        }
        if let Some((attribute, mut properties)) = attribute.zip(image::descriptor()) {
            let set = real!(CUDNN, cudnnBackendSetAttribute(
                descriptor => Ptr, attribute => i32, TYPE_DESCRIPTOR => i32, 1 => i64, &raw mut properties => *mut Ptr
            ) -> i32);
            // A descriptor keeps properties that its creator set; this setting is then refused.
            let _ = set;
        }
        let result = real!(CUDNN, cudnnBackendFinalize(descriptor => Ptr) -> i32);
        if result == Some(status::SUCCESS) && attribute.is_some() {
            unfinalised(|unfinalised| unfinalised.remove(&(descriptor as usize)));
        }
        result.unwrap_or(status::NOT_INITIALIZED)
    }

    /// Destroys a descriptor.
    fn cudnnBackendDestroyDescriptor(descriptor: Ptr) {
        unfinalised(|unfinalised| unfinalised.remove(&(descriptor as usize)));
        problem::remove_descriptor(descriptor as usize);
        packs(|packs| packs.remove(&(descriptor as usize)));
        effects(|effects| effects.remove(&(descriptor as usize)));
        real!(CUDNN, cudnnBackendDestroyDescriptor(descriptor => Ptr) -> i32).unwrap_or(status::NOT_INITIALIZED)
    }

    /// Creates a descriptor in the caller's memory; deprecated, and forwarded for completeness.
    fn cudnnBackendInitialize(descriptor: Ptr) {
        real!(CUDNN, cudnnBackendInitialize(descriptor => Ptr) -> i32).unwrap_or(status::NOT_SUPPORTED)
    }

    /// Executes a plan: nothing is computed, but it takes time.
    fn cudnnBackendExecute(handle: Ptr, plan: Ptr, variant_pack: Ptr) {
        let Some(stream) = super::handle::stream(handle) else { return status::BAD_PARAM };
        if plan.is_null() || variant_pack.is_null() {
            return status::BAD_PARAM;
        }
        let effect = effect(plan);
        forget_tensors(&effect.written, variant_pack);
        card::queue_work(stream, |speeds| effect.work(speeds));
        status::SUCCESS
    }
}
