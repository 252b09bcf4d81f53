//! Copies and fills of host and device memory.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::ops::Add;

use memfit_channel::WorkKind;
use memfit_vocabulary::Category;

use crate::{
    beside,
    clock::{self, Effort},
    graphs::Effect,
    machine,
    memory::host,
    space::{self, Block, find},
    status::{Outcome, Status},
    streams, transfer, values, watch,
};
use memfit_kernels::cost::{Speeds, Work};

/// Direction of a copy as the caller declares it (`cudaMemcpyKind`).
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
    /// `cudaMemcpyDefault`: inferred from the addresses.
    Default,
}

impl Direction {
    /// Converts CUDA's number.
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

    /// Returns `true` if both sides agree with the declared direction. Memory that host and device share fits
    /// either.
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

/// Route that copied bytes take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Route {
    /// Within the host: takes no device time.
    #[default]
    None,
    /// Between a device and page-locked host memory.
    Pinned,
    /// From pageable host memory to a device.
    FromPageable,
    /// From a device to pageable host memory.
    ToPageable,
    /// Within a device.
    Within,
    /// From one device to another.
    Between,
    /// A fill.
    Fill,
}

/// Bytes that a call has moved, over all its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    way: Route,
    bytes: u64,
}

impl Add for Moved {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let way = if self.bytes > other.bytes { self.way } else { other.way };
        Self { way, bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl Moved {
    /// Duration of the copy on the current device.
    fn work(self) -> Work {
        let Ok(card) = machine::current() else { return Work::none(WorkKind::Transfer) };
        beside::measure(|speeds| self.work_at(speeds));
        self.work_at(&card.speeds)
    }

    fn work_at(self, speeds: &Speeds) -> Work {
        let bytes = self.bytes;
        match self.way {
            Route::None => Work::none(WorkKind::Transfer),
            Route::Pinned => transfer::pinned(bytes, speeds),
            Route::FromPageable | Route::ToPageable => transfer::pageable(bytes, speeds),
            Route::Within => transfer::within(bytes, speeds),
            Route::Between => transfer::between(bytes, speeds),
            Route::Fill => transfer::fill(bytes, speeds),
        }
    }

    /// Returns `true` if even an asynchronous call waits for the copy: the driver stages pageable memory
    /// itself, except for small host-to-device copies, which travel with the command.
    fn is_waited_for(self) -> bool {
        const MAX_INLINE_BYTES: u64 = 64 << 10;
        match self.way {
            Route::ToPageable => true,
            Route::FromPageable => self.bytes > MAX_INLINE_BYTES,
            _ => false,
        }
    }
}

/// Does work on a stream. The closure returns what it moved.
pub(crate) fn run_on_stream(stream: u64, work: impl FnOnce() -> Outcome<Moved>) -> Outcome {
    streams::resolve(stream)?;
    let moved = work()?;
    let stream = streams::queue(stream, moved.work(), Effort::Call)?;
    if moved.is_waited_for() && stream.capture() == 0 {
        clock::wait_until(stream.end());
    }
    Ok(())
}

/// Does work on the default stream and waits for it, as calls without a stream argument do.
pub(crate) fn run_and_wait(work: impl FnOnce() -> Outcome<Moved>) -> Outcome {
    run_on_stream(streams::LEGACY, work)?;
    clock::wait_until(streams::resolve(streams::LEGACY)?.end());
    Ok(())
}

/// Kind of memory on one side of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// Device memory.
    Device,
    /// Host memory that CUDA knows: a device can use it too.
    Shared,
    /// Any other host memory.
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

/// Returns the kind of memory of an address range. A range that begins in device memory must lie entirely in
/// it.
fn side(address: u64, size: u64) -> Outcome<Side> {
    match find(address) {
        Some(block) if block.is_device() => {
            if block_contains(&block, address, size) || space::read().covers(address, size) {
                Ok(Side::Device)
            } else {
                Err(Status::INVALID_VALUE)
            }
        }
        Some(_) => Ok(Side::Shared),
        // Freed, or never allocated: the host must not follow it either.
        None if space::is_device_address(address) => Err(Status::INVALID_VALUE),
        None => Ok(Side::Host),
    }
}

fn block_contains(block: &Block, address: u64, size: u64) -> bool {
    address.checked_add(size).is_some_and(|end| end <= block.end())
}

/// Copies a range; returns what was moved.
pub(crate) fn copy(target: u64, source: u64, size: u64, direction: Direction) -> Outcome<Moved> {
    if size == 0 {
        return Ok(Moved::default());
    }
    if target == 0 || source == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let (to, from) = (side(target, size)?, side(source, size)?);
    if !direction.fits(to, from) {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: memory that is not a device's belongs to the caller, who lends it for this copy. The sizes of
    // the other ranges were checked.
    unsafe {
        match (to, from) {
            (Side::Device, Side::Device) => values::device_to_device(target, source, size),
            (Side::Device, _) => {
                values::host_to_device(target, source as *const u8, size);
                watch::label_block(target, Category::Inputs);
            }
            (_, Side::Device) => {
                let is_clear = host::clear(target, size);
                values::device_to_host(target as *mut u8, source, size, is_clear);
            }
            _ => std::ptr::copy(source as *const u8, target as *mut u8, size as usize),
        }
    }
    let way = match (to, from) {
        (Side::Device, Side::Device) if card_ordinal(target) == card_ordinal(source) => Route::Within,
        (Side::Device, Side::Device) => Route::Between,
        (Side::Device, Side::Host) => Route::FromPageable,
        (Side::Host, Side::Device) => Route::ToPageable,
        (Side::Device, _) | (_, Side::Device) => Route::Pinned,
        _ => Route::None,
    };
    Ok(Moved { way, bytes: size })
}

/// Returns the effect of a captured copy on memory at each launch of its graph. The host memory may have been
/// freed by then.
pub(crate) fn replay_copy(target: u64, source: u64, size: u64) -> Effect {
    Effect::new(move || match (side(target, size), side(source, size)) {
        (Ok(Side::Device), Ok(Side::Device)) => values::device_to_device(target, source, size),
        (Ok(Side::Device), _) => values::record_computed(target, size),
        _ => {}
    })
}

/// Ordinal of the device that owns an address.
fn card_ordinal(address: u64) -> Option<u32> {
    find(address).map(|block| block.card)
}

/// Copies `height` rows of `width` bytes. Each side is an address and its pitch. Returns what was moved.
pub(crate) fn copy_rows(
    target: (u64, u64),
    source: (u64, u64),
    width: u64,
    height: u64,
    direction: Direction,
) -> Outcome<Moved> {
    if width == target.1 && width == source.1 {
        return copy(target.0, source.0, width.checked_mul(height).ok_or(Status::INVALID_VALUE)?, direction);
    }
    (0..height).try_fold(Moved::default(), |moved, row| {
        Ok(moved + copy(target.0 + row * target.1, source.0 + row * source.1, width, direction)?)
    })
}

/// Fills a range with `count` copies of the lowest `width` bytes of a pattern; returns what was moved.
pub(crate) fn fill(target: u64, pattern: u32, width: u32, count: u64) -> Outcome<Moved> {
    let size = count.checked_mul(u64::from(width)).ok_or(Status::INVALID_VALUE)?;
    if size == 0 {
        return Ok(Moved::default());
    }
    match side(target, size)? {
        Side::Device => values::fill(target, pattern, width, count),
        Side::Shared => {
            let unit = &pattern.to_ne_bytes()[..width as usize];
            // SAFETY: page-locked or managed memory of this process; the caller vouches for its size.
            let bytes = unsafe { std::slice::from_raw_parts_mut(target as *mut u8, size as usize) };
            for chunk in bytes.chunks_mut(unit.len()) {
                chunk.copy_from_slice(&unit[..chunk.len()]);
            }
        }
        Side::Host => return Err(Status::INVALID_VALUE),
    }
    Ok(Moved { way: Route::Fill, bytes: size })
}

/// Fills `height` rows of `width` units, `pitch` bytes apart; returns what was moved.
pub(crate) fn fill_rows(
    target: u64,
    pitch: u64,
    pattern: u32,
    unit: u32,
    width: u64,
    height: u64,
) -> Outcome<Moved> {
    if width.checked_mul(u64::from(unit)) == Some(pitch) {
        return fill(target, pattern, unit, width.checked_mul(height).ok_or(Status::INVALID_VALUE)?);
    }
    (0..height).try_fold(Moved::default(), |moved, row| {
        Ok(moved + fill(target + row * pitch, pattern, unit, width)?)
    })
}
