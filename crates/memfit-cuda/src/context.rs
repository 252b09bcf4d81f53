//! Contexts: each device has a primary one, which the runtime uses; the driver can create more.
//!
//! A context's handle encodes its device. Apart from that, contexts are interchangeable here.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Relaxed},
        },
    },
};

use crate::{
    machine::{self, Card},
    status::{Outcome, Status},
    thread,
};

const PRIMARY_HANDLES: u64 = 0x7e02_0000_0000_0000;
const CREATED_HANDLES: u64 = 0x7e03_0000_0000_0000;

/// Contexts created by `cuCtxCreate`, with the ordinal of their device and their flags.
static CONTEXTS: Mutex<BTreeMap<u64, (u32, u32)>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Handle of a device's primary context.
pub(crate) fn primary(card: &Card) -> u64 {
    PRIMARY_HANDLES | u64::from(card.ordinal + 1) << 4
}

/// Returns the device of a context.
pub(crate) fn card_of(context: u64) -> Outcome<&'static Card> {
    let ordinal = if context >> 48 == PRIMARY_HANDLES >> 48 {
        ((context & 0xffff_ffff) >> 4).checked_sub(1).ok_or(Status::INVALID_CONTEXT)? as i32
    } else {
        let contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.get(&context).ok_or(Status::INVALID_CONTEXT)?.0 as i32
    };
    machine::card(ordinal)
        .map_err(|status| if status == Status::INVALID_DEVICE { Status::INVALID_CONTEXT } else { status })
}

/// Creates a context and makes it current (`cuCtxCreate`).
pub(crate) fn create(card: &Card, flags: u32) -> Outcome<u64> {
    card.need_context()?;
    let handle = CREATED_HANDLES | NEXT.fetch_add(1, Relaxed) << 4;
    CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, (card.ordinal, flags));
    push(handle)?;
    Ok(handle)
}

/// Destroys a context (`cuCtxDestroy`). A current context is popped first.
pub(crate) fn destroy(context: u64) -> Outcome {
    if !CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&context) {
        return Err(Status::INVALID_CONTEXT);
    }
    if thread::with_contexts(|stack| stack.last() == Some(&context)) {
        pop()?;
    }
    CONTEXTS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .remove(&context)
        .map(drop)
        .ok_or(Status::INVALID_CONTEXT)
}

/// Pushes a context onto the calling thread's stack, which makes it current.
pub(crate) fn push(context: u64) -> Outcome {
    let card = card_of(context)?;
    thread::with_contexts(|stack| stack.push(context));
    thread::set_device(card.ordinal);
    Ok(())
}

/// Pops the current context.
pub(crate) fn pop() -> Outcome<u64> {
    let (popped, now) = thread::with_contexts(|stack| (stack.pop(), stack.last().copied()));
    if let Some(context) = now {
        thread::set_device(card_of(context)?.ordinal);
    }
    popped.ok_or(Status::INVALID_CONTEXT)
}

/// Replaces the top of the context stack (`cuCtxSetCurrent`); 0 pops it.
pub(crate) fn set_current(context: u64) -> Outcome {
    if context == 0 {
        return pop().map(drop).or(Ok(()));
    }
    let card = card_of(context)?;
    thread::with_contexts(|stack| {
        stack.pop();
        stack.push(context);
    });
    thread::set_device(card.ordinal);
    Ok(())
}

/// Returns the current context; 0 if there is none. If the runtime has selected a device and created its
/// context, that one is current.
pub(crate) fn current() -> Outcome<u64> {
    if let Some(context) = thread::with_contexts(|stack| stack.last().copied())
        && card_of(context)?.ordinal == thread::device()
    {
        return Ok(context);
    }
    let card = machine::current()?;
    Ok(if card.has_context() { primary(card) } else { 0 })
}

/// Flags that a context was created with.
pub(crate) fn flags(context: u64) -> Outcome<u32> {
    let made = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner).get(&context).copied();
    match made {
        Some((_, flags)) => Ok(flags),
        None => Ok(card_of(context)?.flags.load(Relaxed)),
    }
}

/// Resets a device (`cudaDeviceReset`): releases everything on it that belongs to this process.
pub(crate) fn reset(card: &Card) {
    crate::memory::device::free_all(card);
    card.peers.store(0, Relaxed);
    card.drop_context();
}

/// Enables peer access (`cudaDeviceEnablePeerAccess`).
pub(crate) fn enable_peer(card: &Card, peer: &Card) -> Outcome {
    if card.ordinal == peer.ordinal {
        return Err(Status::INVALID_DEVICE);
    }
    let bit = 1 << peer.ordinal;
    if card.peers.fetch_or(bit, AcqRel) & bit != 0 {
        Err(Status::PEER_ACCESS_ALREADY_ENABLED)
    } else {
        Ok(())
    }
}

/// Disables peer access (`cudaDeviceDisablePeerAccess`).
pub(crate) fn disable_peer(card: &Card, peer: &Card) -> Outcome {
    let bit = 1 << peer.ordinal;
    if card.peers.fetch_and(!bit, AcqRel) & bit == 0 { Err(Status::PEER_ACCESS_NOT_ENABLED) } else { Ok(()) }
}
