//! Variables in device memory: `__device__`, `__constant__` and `__managed__`.
//!
//! They are part of the CUDA context, whose memory is counted as a whole, so they add nothing.

use std::sync::OnceLock;

use super::{module::Module, registry};
use crate::{
    copies::{self, Direction},
    guard::Runtime,
    machine,
    space::{self, Kind, addresses, pages},
    status::{Outcome, Status},
    thread,
};
use memfit_abi::{Out, Ptr, entry_points};

/// A registered variable.
pub(crate) struct Variable {
    module: &'static Module,
    size: u64,
    managed: bool,
    /// One address per device; a managed variable has the same on all.
    addresses: [OnceLock<Option<u64>>; CARDS],
}

const CARDS: usize = 64;
const ALIGNMENT: u64 = 512;

impl Variable {
    /// Creates a variable with one instance per device.
    pub(super) fn new(module: &'static Module, size: u64) -> Self {
        Self { module, size, managed: false, addresses: [const { OnceLock::new() }; CARDS] }
    }

    /// Creates a variable that all devices and the host share.
    pub(super) fn managed(module: &'static Module, size: u64) -> Self {
        Self { managed: true, ..Self::new(module, size) }
    }

    /// Module that contains the variable.
    pub(super) fn module(&self) -> &'static Module {
        self.module
    }

    /// Address on the current device.
    pub(super) fn address(&self) -> Option<u64> {
        let slot = if self.managed { 0 } else { thread::device() as usize };
        *self.addresses.get(slot)?.get_or_init(|| {
            // The host reads managed variables directly, so they need pages.
            let size = self.size.max(1);
            if self.managed { pages::allocate(size, false).ok() } else { reserve_addresses(size).ok() }
        })
    }
}

/// Takes address space for a variable. Nothing is reserved: its bytes are part of the context.
fn reserve_addresses(size: u64) -> Outcome<u64> {
    let size = size.next_multiple_of(ALIGNMENT);
    let address = addresses::take(size, ALIGNMENT)?;
    space::write().insert(address, size, Kind::Variable, thread::device());
    Ok(address)
}

fn find(symbol: Ptr) -> Outcome<(&'static Variable, u64)> {
    machine::current_context()?;
    let variable = registry::variable(symbol as usize).ok_or(Status::INVALID_SYMBOL)?;
    Ok((variable, variable.address().ok_or(Status::INVALID_SYMBOL)?))
}

/// Address of a part of a variable.
fn part_address(symbol: Ptr, offset: usize, count: usize) -> Outcome<u64> {
    let (variable, address) = find(symbol)?;
    let end = (offset as u64).checked_add(count as u64).ok_or(Status::INVALID_VALUE)?;
    if end > variable.size { Err(Status::INVALID_VALUE) } else { Ok(address + offset as u64) }
}

entry_points! { Runtime;
    fn cudaGetSymbolAddress(address: Out<u64>, symbol: Ptr) {
        address.set(find(symbol)?.1);
        Ok(())
    }

    fn cudaGetSymbolSize(size: Out<u64>, symbol: Ptr) {
        size.set(find(symbol)?.0.size);
        Ok(())
    }

    fn cudaMemcpyToSymbol(symbol: Ptr, source: Ptr, count: usize, offset: usize, kind: i32) {
        let (target, direction) = (part_address(symbol, offset, count)?, Direction::new(kind)?);
        copies::run_and_wait(|| copies::copy(target, source as u64, count as u64, direction))
    }

    fn cudaMemcpyFromSymbol(target: Ptr, symbol: Ptr, count: usize, offset: usize, kind: i32) {
        let (source, direction) = (part_address(symbol, offset, count)?, Direction::new(kind)?);
        copies::run_and_wait(|| copies::copy(target as u64, source, count as u64, direction))
    }

    fn cudaMemcpyToSymbolAsync(symbol: Ptr, source: Ptr, count: usize, offset: usize, kind: i32, stream: Ptr) {
        let (target, direction) = (part_address(symbol, offset, count)?, Direction::new(kind)?);
        copies::run_on_stream(stream as u64, || copies::copy(target, source as u64, count as u64, direction))
    }

    fn cudaMemcpyFromSymbolAsync(target: Ptr, symbol: Ptr, count: usize, offset: usize, kind: i32, stream: Ptr) {
        let (source, direction) = (part_address(symbol, offset, count)?, Direction::new(kind)?);
        copies::run_on_stream(stream as u64, || copies::copy(target as u64, source, count as u64, direction))
    }
}
