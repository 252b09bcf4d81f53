//! Copies and fills between the memory of the host and of the cards.

use memfit_levers::Category;

use crate::{
    clock, machine,
    memory::{Block, device, find, space},
    status::{Outcome, Status},
    streams, values, watch,
};

/// What the caller says the two sides are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// `cudaMemcpyHostToHost`.
    HostToHost,
    /// `cudaMemcpyHostToDevice`.
    HostToDevice,
    /// `cudaMemcpyDeviceToHost`.
    DeviceToHost,
    /// `cudaMemcpyDeviceToDevice`.
    DeviceToDevice,
    /// `cudaMemcpyDefault`: the addresses tell.
    Default,
}

impl Direction {
    /// From CUDA's number.
    pub(crate) fn new(number: i32) -> Outcome<Self> {
        Ok(match number {
            0 => Self::HostToHost,
            1 => Self::HostToDevice,
            2 => Self::DeviceToHost,
            3 => Self::DeviceToDevice,
            4 => Self::Default,
            _ => return Err(Status::INVALID_MEMCPY_DIRECTION),
        })
    }

    /// Whether the sides can be what they were said to be. Memory that both can use fits either.
    fn fits(self, target: Side, source: Side) -> bool {
        let (to, from) = match self {
            Self::HostToHost => (false, false),
            Self::HostToDevice => (true, false),
            Self::DeviceToHost => (false, true),
            Self::DeviceToDevice => (true, true),
            Self::Default => return true,
        };
        target.can_be(to) && source.can_be(from)
    }
}

/// Does work on a stream; the work tells how long it takes.
pub(crate) fn queued(stream: u64, work: impl FnOnce() -> Outcome<u64>) -> Outcome {
    streams::resolve(stream)?;
    let time = work()?;
    streams::queue(stream, time).map(drop)
}

/// Does work on the default stream and waits for it, as the calls without a stream do.
pub(crate) fn at_once(work: impl FnOnce() -> Outcome<u64>) -> Outcome {
    queued(streams::LEGACY, work)?;
    clock::wait_until(streams::resolve(streams::LEGACY)?.end());
    Ok(())
}

/// Where one side of a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// Memory of a card.
    Device,
    /// Memory of the host that CUDA knows: a device can use it too.
    Shared,
    /// Any other memory of the host.
    Host,
}

impl Side {
    fn can_be(self, device: bool) -> bool {
        match self {
            Self::Shared => true,
            Self::Device => device,
            Self::Host => !device,
        }
    }
}

/// Finds out what a range of addresses is. One that begins in a card's memory must lie in it whole.
fn side(address: u64, size: u64) -> Outcome<Side> {
    match find(address) {
        Some(block) if block.is_device() => {
            if within(&block, address, size) || space::read().covers(address, size) {
                Ok(Side::Device)
            } else {
                Err(Status::INVALID_VALUE)
            }
        }
        Some(_) => Ok(Side::Shared),
        // Freed, or never allocated: the host must not follow it either.
        None if device::is_device_address(address) => Err(Status::INVALID_VALUE),
        None => Ok(Side::Host),
    }
}

fn within(block: &Block, address: u64, size: u64) -> bool {
    address.checked_add(size).is_some_and(|end| end <= block.end())
}

/// Copies a range; gives the time it takes.
pub(crate) fn copy(target: u64, source: u64, size: u64, direction: Direction) -> Outcome<u64> {
    if size == 0 {
        return Ok(0);
    }
    if target == 0 || source == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let (to, from) = (side(target, size)?, side(source, size)?);
    if !direction.fits(to, from) {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: what is not a card's memory is the caller's own, lent for this copy; the sizes of the rest were checked.
    unsafe {
        match (to, from) {
            (Side::Device, Side::Device) => values::device_to_device(target, source, size),
            (Side::Device, _) => {
                values::host_to_device(target, source as *const u8, size);
                watch::note(target, Category::Inputs);
            }
            (_, Side::Device) => values::device_to_host(target as *mut u8, source, size),
            _ => std::ptr::copy(source as *const u8, target as *mut u8, size as usize),
        }
    }
    Ok(clock::transfer(size, rate(to, from)))
}

/// Bytes a second between two sides.
fn rate(to: Side, from: Side) -> u64 {
    let Ok(card) = machine::current() else { return 1 };
    if to == Side::Device && from == Side::Device {
        card.device.memory_bandwidth / 2
    } else {
        card.device.host_link.bandwidth
    }
}

/// Copies `height` rows of `width` bytes; each side is an address and the distance from row to row. Gives the time it takes.
pub(crate) fn rectangle(
    target: (u64, u64),
    source: (u64, u64),
    width: u64,
    height: u64,
    direction: Direction,
) -> Outcome<u64> {
    if width == target.1 && width == source.1 {
        return copy(target.0, source.0, width.checked_mul(height).ok_or(Status::INVALID_VALUE)?, direction);
    }
    (0..height).try_fold(0, |time, row| {
        Ok(time + copy(target.0 + row * target.1, source.0 + row * source.1, width, direction)?)
    })
}

/// Fills a range with `count` times the lowest `width` bytes of a pattern; gives the time it takes.
pub(crate) fn fill(target: u64, pattern: u32, width: u32, count: u64) -> Outcome<u64> {
    let size = count.checked_mul(u64::from(width)).ok_or(Status::INVALID_VALUE)?;
    if size == 0 {
        return Ok(0);
    }
    match side(target, size)? {
        Side::Device => values::fill(target, pattern, width, count),
        Side::Shared => {
            let unit = &pattern.to_ne_bytes()[..width as usize];
            // SAFETY: page-locked or managed memory of this process, whose size was asked for by the caller.
            let bytes = unsafe { std::slice::from_raw_parts_mut(target as *mut u8, size as usize) };
            for chunk in bytes.chunks_mut(unit.len()) {
                chunk.copy_from_slice(&unit[..chunk.len()]);
            }
        }
        Side::Host => return Err(Status::INVALID_VALUE),
    }
    Ok(clock::transfer(size, machine::current()?.device.memory_bandwidth))
}

/// Fills `height` rows of `width` units, `pitch` bytes apart; gives the time it takes.
pub(crate) fn fill_rectangle(
    target: u64,
    pitch: u64,
    pattern: u32,
    unit: u32,
    width: u64,
    height: u64,
) -> Outcome<u64> {
    if width.checked_mul(u64::from(unit)) == Some(pitch) {
        return fill(target, pattern, unit, width.checked_mul(height).ok_or(Status::INVALID_VALUE)?);
    }
    (0..height).try_fold(0, |time, row| Ok(time + fill(target + row * pitch, pattern, unit, width)?))
}
