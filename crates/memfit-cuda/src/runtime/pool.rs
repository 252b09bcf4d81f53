//! Memory pools and stream-ordered allocation.

use memfit_channel::WorkKind;

use crate::{
    graphs,
    guard::{Driver, Runtime},
    machine,
    memory::{device, host, pool},
    space::{self, Kind},
    status::{Outcome, Status},
    streams,
};
use memfit_abi::{In, Out, entry_points};
use memfit_kernels::cost::Work;

/// `cudaMemLocation`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Location {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

/// `cudaMemLocationTypeDevice`.
pub(crate) const ON_DEVICE: i32 = 1;

/// `cudaMemAccessDesc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Access {
    pub(crate) location: Location,
    pub(crate) flags: i32,
}

/// The part of `cudaMemPoolProps` that is read.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PoolProperties {
    allocation: i32,
    handles: i32,
    location: Location,
    security: u64,
    max_size: u64,
}

pub(crate) fn allocate(address: Out<u64>, size: u64, pool: Option<u64>, stream: u64) -> Outcome {
    if address.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let stream = streams::resolve(stream)?;
    let pool = match pool {
        _ if stream.capture() != 0 => pool::graph_pool(machine::card(stream.card() as i32)?),
        Some(pool) => pool,
        None => pool::current_pool(machine::card(stream.card() as i32)?),
    };
    graphs::add_node(stream.capture(), Work::none(WorkKind::Memory), 0);
    address.set(if size == 0 { 0 } else { pool::allocate(pool, size)? });
    Ok(())
}

pub(crate) fn free(address: u64, stream: u64) -> Outcome {
    graphs::add_node(streams::resolve(stream)?.capture(), Work::none(WorkKind::Memory), 0);
    match space::find(address).map(|block| block.kind) {
        _ if address == 0 => Err(Status::INVALID_VALUE),
        Some(Kind::Pooled(_)) => pool::free(address),
        Some(Kind::Managed) => host::free_managed(address),
        _ => device::free(address, |kind| kind == Kind::Device),
    }
}

pub(crate) fn create(handle: Out<u64>, properties: In<PoolProperties>) -> Outcome {
    let properties = properties.get().ok_or(Status::INVALID_VALUE)?;
    if handle.is_null() || properties.allocation != 1 || properties.location.kind != ON_DEVICE {
        return Err(Status::INVALID_VALUE);
    }
    handle.set(pool::create(machine::card(properties.location.id)?, properties.max_size));
    Ok(())
}

pub(crate) fn get_attribute(pool: u64, attribute: i32, value: Out<u64>) -> Outcome {
    if value.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let answer = pool::get(pool, attribute)?;
    if attribute <= pool::attribute::LAST_REUSE {
        value.cast::<i32>().set(answer as i32);
    } else {
        value.set(answer);
    }
    Ok(())
}

pub(crate) fn set_attribute(pool: u64, attribute: i32, value: Out<u64>) -> Outcome {
    let wanted = if attribute <= pool::attribute::LAST_REUSE {
        value.cast::<i32>().get().map(|value| value as u64)
    } else {
        value.get()
    };
    pool::set(pool, attribute, wanted.ok_or(Status::INVALID_VALUE)?)
}

pub(crate) fn set_access(pool: u64, list: In<Access>, count: u64) -> Outcome {
    pool::card_ordinal(pool)?;
    for access in list.list(count as usize) {
        machine::card(access.location.id)?;
    }
    Ok(())
}

pub(crate) fn get_access(flags: Out<i32>, pool: u64, location: In<Location>) -> Outcome {
    let location = location.get().ok_or(Status::INVALID_VALUE)?;
    pool::card_ordinal(pool)?;
    machine::card(location.id)?;
    flags.set(3); // read and write
    Ok(())
}

fn put_pool(target: Out<u64>, find: impl FnOnce() -> Outcome<u64>) -> Outcome {
    if target.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    target.set(find()?);
    Ok(())
}

/// Pool attribute that corresponds to a `cudaGraphMemAttributeType`.
fn graph_attribute(attribute: i32) -> Outcome<i32> {
    use pool::attribute::{RESERVED, RESERVED_HIGH, USED, USED_HIGH};
    let index = usize::try_from(attribute).map_err(|_| Status::INVALID_VALUE)?;
    [USED, USED_HIGH, RESERVED, RESERVED_HIGH].get(index).copied().ok_or(Status::INVALID_VALUE)
}

/// Device of a location. Pools of host memory are not modelled.
fn located(location: In<Location>, kind: i32) -> Outcome<&'static machine::Card> {
    let location = location.get().ok_or(Status::INVALID_VALUE)?;
    if location.kind != ON_DEVICE || kind != 1 {
        crate::machine::count_unmodelled("cudaMemGetMemPool (location or type)");
        return Err(Status::NOT_SUPPORTED);
    }
    machine::card(location.id)
}

entry_points! { Runtime, Driver;
    fn cudaMallocAsync(address: Out<u64>, size: u64, stream: u64),
    fn cuMemAllocAsync() {
        allocate(address, size, None, stream)
    }

    fn cudaMallocFromPoolAsync(address: Out<u64>, size: u64, pool: u64, stream: u64),
    fn cuMemAllocFromPoolAsync() {
        allocate(address, size, Some(pool), stream)
    }

    fn cudaFreeAsync(address: u64, stream: u64),
    fn cuMemFreeAsync() {
        free(address, stream)
    }

    fn cudaDeviceGetDefaultMemPool(pool: Out<u64>, device: i32),
    fn cuDeviceGetDefaultMemPool() {
        put_pool(pool, || Ok(pool::default_pool(machine::card(device)?)))
    }

    fn cudaDeviceGetMemPool(pool: Out<u64>, device: i32),
    fn cuDeviceGetMemPool() {
        put_pool(pool, || Ok(pool::current_pool(machine::card(device)?)))
    }

    fn cudaDeviceSetMemPool(device: i32, pool: u64),
    fn cuDeviceSetMemPool() {
        pool::set_current(machine::card(device)?, pool)
    }

    fn cudaMemPoolCreate(pool: Out<u64>, properties: In<PoolProperties>),
    fn cuMemPoolCreate() {
        create(pool, properties)
    }

    fn cudaMemPoolDestroy(pool: u64),
    fn cuMemPoolDestroy() {
        pool::destroy(pool)
    }

    fn cudaMemPoolTrimTo(pool: u64, keep: u64),
    fn cuMemPoolTrimTo() {
        pool::trim(pool, keep)
    }

    fn cudaMemPoolGetAttribute(pool: u64, attribute: i32, value: Out<u64>),
    fn cuMemPoolGetAttribute() {
        get_attribute(pool, attribute, value)
    }

    fn cudaMemPoolSetAttribute(pool: u64, attribute: i32, value: Out<u64>),
    fn cuMemPoolSetAttribute() {
        set_attribute(pool, attribute, value)
    }

    fn cudaMemPoolSetAccess(pool: u64, list: In<Access>, count: u64),
    fn cuMemPoolSetAccess() {
        set_access(pool, list, count)
    }

    fn cudaMemPoolGetAccess(flags: Out<i32>, pool: u64, location: In<Location>),
    fn cuMemPoolGetAccess() {
        get_access(flags, pool, location)
    }

    fn cudaDeviceGetGraphMemAttribute(device: i32, attribute: i32, value: Out<u64>),
    fn cuDeviceGetGraphMemAttribute() {
        let pool = pool::graph_pool(machine::card(device)?);
        if value.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        value.set(pool::get(pool, graph_attribute(attribute)?)?);
        Ok(())
    }

    fn cudaDeviceSetGraphMemAttribute(device: i32, attribute: i32, value: Out<u64>),
    fn cuDeviceSetGraphMemAttribute() {
        let pool = pool::graph_pool(machine::card(device)?);
        match (value.get(), attribute) {
            (Some(0), 1 | 3) => pool::set(pool, graph_attribute(attribute)?, 0),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    fn cudaDeviceGraphMemTrim(device: i32),
    fn cuDeviceGraphMemTrim() {
        pool::trim(pool::graph_pool(machine::card(device)?), 0)
    }

    fn cudaMemGetDefaultMemPool(pool: Out<u64>, location: In<Location>, kind: i32),
    fn cuMemGetDefaultMemPool() {
        put_pool(pool, || Ok(pool::default_pool(located(location, kind)?)))
    }

    fn cudaMemGetMemPool(pool: Out<u64>, location: In<Location>, kind: i32),
    fn cuMemGetMemPool() {
        put_pool(pool, || Ok(pool::current_pool(located(location, kind)?)))
    }

    fn cudaMemSetMemPool(location: In<Location>, kind: i32, pool: u64),
    fn cuMemSetMemPool() {
        pool::set_current(located(location, kind)?, pool)
    }
}
