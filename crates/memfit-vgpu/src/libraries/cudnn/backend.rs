//! cuDNN's graph interface, through its documented mode without a device.
//!
//! Descriptors are the real library's. Handles are kept from it; in their place, heuristics, engines and plans get a descriptor
//! of the card's properties before they are finalised. So heuristics rank, and plans tell their workspace, as they would on the
//! card. Executing a plan does nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::image::{self, TYPE_HANDLE};
use super::status;
use crate::libraries::card;
use crate::libraries::entry::{In, Out, Ptr, entry_points};
use crate::libraries::real::real;

/// `CUDNN_TYPE_BACKEND_DESCRIPTOR`.
const TYPE_DESCRIPTOR: i32 = 15;
/// `CUDNN_ATTR_VARIANT_PACK_WORKSPACE`.
const WORKSPACE: i32 = 1003;
/// `CUDNN_ATTR_DEVICEPROP_HANDLE`: the one use of a handle that the library may see, since it only reads properties.
const PROPERTIES_FROM_HANDLE: i32 = 2701;

/// The attribute that takes a descriptor of the device's properties, by the kind of the descriptor it is set on.
fn property_attribute(kind: i32) -> Option<i32> {
    match kind {
        2 => Some(1307), // CUDNN_BACKEND_ENGINE_DESCRIPTOR: CUDNN_ATTR_ENGINE_DEVICEPROP
        4 => Some(204),  // CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: CUDNN_ATTR_ENGINEHEUR_DEVICEPROP
        5 => Some(407),  // CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP
        _ => None,
    }
}

/// The attribute that a descriptor, which is not finalised yet, waits for. Descriptors of other kinds are not kept here.
static WAITING: Mutex<Option<HashMap<usize, i32>>> = Mutex::new(None);

fn waiting<R>(body: impl FnOnce(&mut HashMap<usize, i32>) -> R) -> R {
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    body(waiting.get_or_insert_default())
}

entry_points! {
    fail status::INTERNAL_ERROR;

    /// Makes a descriptor, and remembers one that will want the card's properties.
    fn cudnnBackendCreateDescriptor(kind: i32, descriptor: Out<usize>) {
        if descriptor.is_null() {
            return status::BAD_PARAM;
        }
        let mut made = 0_usize;
        let result = real!(CUDNN, cudnnBackendCreateDescriptor(kind => i32, &raw mut made => *mut usize) -> i32);
        if result == Some(status::SUCCESS) {
            match property_attribute(kind) {
                Some(attribute) => waiting(|waiting| waiting.insert(made, attribute)),
                None => None,
            };
            descriptor.put(made);
        }
        result.unwrap_or(status::NOT_INITIALIZED)
    }

    /// Sets an attribute, unless it is a handle.
    fn cudnnBackendSetAttribute(descriptor: Ptr, name: i32, kind: i32, count: i64, values: In<Ptr>) {
        if kind == TYPE_HANDLE && name != PROPERTIES_FROM_HANDLE && image::descriptor().is_some() {
            return status::SUCCESS;
        }
        if name == WORKSPACE && let Some(workspace) = values.get() {
            card::workspace(workspace);
        }
        real!(CUDNN, cudnnBackendSetAttribute(
            descriptor => Ptr, name => i32, kind => i32, count => i64, values => In<Ptr>
        ) -> i32).unwrap_or(status::NOT_INITIALIZED)
    }

    /// Asks for an attribute.
    fn cudnnBackendGetAttribute(
        descriptor: Ptr, name: i32, kind: i32, requested: i64, count: Out<i64>, values: Ptr,
    ) {
        real!(CUDNN, cudnnBackendGetAttribute(
            descriptor => Ptr, name => i32, kind => i32, requested => i64, count => Out<i64>, values => Ptr
        ) -> i32).unwrap_or(status::NOT_INITIALIZED)
    }

    /// Finalises a descriptor, with the card's properties where it wants them.
    fn cudnnBackendFinalize(descriptor: Ptr) {
        let attribute = waiting(|waiting| waiting.get(&(descriptor as usize)).copied());
        if let Some((attribute, mut properties)) = attribute.zip(image::descriptor()) {
            let set = real!(CUDNN, cudnnBackendSetAttribute(
                descriptor => Ptr, attribute => i32, TYPE_DESCRIPTOR => i32, 1 => i64, &raw mut properties => *mut Ptr
            ) -> i32);
            // A descriptor that was given properties by its maker keeps them: then this setting is refused.
            let _ = set;
        }
        let result = real!(CUDNN, cudnnBackendFinalize(descriptor => Ptr) -> i32);
        if result == Some(status::SUCCESS) && attribute.is_some() {
            waiting(|waiting| waiting.remove(&(descriptor as usize)));
        }
        result.unwrap_or(status::NOT_INITIALIZED)
    }

    /// Destroys a descriptor.
    fn cudnnBackendDestroyDescriptor(descriptor: Ptr) {
        waiting(|waiting| waiting.remove(&(descriptor as usize)));
        real!(CUDNN, cudnnBackendDestroyDescriptor(descriptor => Ptr) -> i32).unwrap_or(status::NOT_INITIALIZED)
    }

    /// Makes a descriptor in the caller's memory; deprecated, and forwarded for completeness.
    fn cudnnBackendInitialize(descriptor: Ptr) {
        real!(CUDNN, cudnnBackendInitialize(descriptor => Ptr) -> i32).unwrap_or(status::NOT_SUPPORTED)
    }

    /// Runs a plan: nothing is computed.
    fn cudnnBackendExecute(handle: Ptr, plan: Ptr, variant_pack: Ptr) {
        if super::handle::is_alive(handle) && !plan.is_null() && !variant_pack.is_null() {
            status::SUCCESS
        } else {
            status::BAD_PARAM
        }
    }
}
