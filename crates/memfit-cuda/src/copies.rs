//! Copies and fills between the memory of the host and of the cards.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::ops::Add;

use memfit_channel::WorkKind;
use memfit_vocabulary::Category;

use crate::{
    beside,
    clock::{self, Effort},
    graphs::Act,
    machine,
    memory::host,
    space::{self, Block, find},
    status::{Outcome, Status},
    streams, transfer, values, watch,
};
use memfit_kernels::cost::{Speeds, Work};

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

/// Over which way bytes are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    /// Nowhere that takes a card's time.
    #[default]
    None,
    /// Between a card and page-locked memory of the host.
    Pinned,
    /// From other memory of the host to a card.
    FromPageable,
    /// From a card to other memory of the host.
    ToPageable,
    /// Within a card.
    Within,
    /// From one card to another.
    Between,
    /// A fill.
    Fill,
}

/// What a call has moved, all its rows together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    way: Way,
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
    /// How long it takes on the current card.
    fn work(self) -> Work {
        let Ok(card) = machine::current() else { return Work::none(WorkKind::Transfer) };
        beside::measure(|speeds| self.work_at(speeds));
        self.work_at(&card.speeds)
    }

    fn work_at(self, speeds: &Speeds) -> Work {
        let bytes = self.bytes;
        match self.way {
            Way::None => Work::none(WorkKind::Transfer),
            Way::Pinned => transfer::pinned(bytes, speeds),
            Way::FromPageable | Way::ToPageable => transfer::pageable(bytes, speeds),
            Way::Within => transfer::within(bytes, speeds),
            Way::Between => transfer::between(bytes, speeds),
            Way::Fill => transfer::fill(bytes, speeds),
        }
    }

    /// Whether even a call that should only queue the copy waits for it: the driver copies pageable memory
    /// itself, but takes along what is small.
    fn is_waited_for(self) -> bool {
        const TAKEN_ALONG: u64 = 64 << 10;
        match self.way {
            Way::ToPageable => true,
            Way::FromPageable => self.bytes > TAKEN_ALONG,
            _ => false,
        }
    }
}

/// Does work on a stream; the work tells what it moved.
pub(crate) fn queued(stream: u64, work: impl FnOnce() -> Outcome<Moved>) -> Outcome {
    streams::resolve(stream)?;
    let moved = work()?;
    let stream = streams::queue(stream, moved.work(), Effort::Call)?;
    if moved.is_waited_for() && stream.capture() == 0 {
        clock::wait_until(stream.end());
    }
    Ok(())
}

/// Does work on the default stream and waits for it, as the calls without a stream do.
pub(crate) fn at_once(work: impl FnOnce() -> Outcome<Moved>) -> Outcome {
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
        None if space::is_device_address(address) => Err(Status::INVALID_VALUE),
        None => Ok(Side::Host),
    }
}

fn within(block: &Block, address: u64, size: u64) -> bool {
    address.checked_add(size).is_some_and(|end| end <= block.end())
}

/// Copies a range; gives what was moved.
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
    // SAFETY: what is not a card's memory is the caller's own, lent for this copy; the sizes of the rest were
    // checked.
    unsafe {
        match (to, from) {
            (Side::Device, Side::Device) => values::device_to_device(target, source, size),
            (Side::Device, _) => {
                values::host_to_device(target, source as *const u8, size);
                watch::note(target, Category::Inputs);
            }
            (_, Side::Device) => {
                let is_clear = host::clear(target, size);
                values::device_to_host(target as *mut u8, source, size, is_clear);
            }
            _ => std::ptr::copy(source as *const u8, target as *mut u8, size as usize),
        }
    }
    let way = match (to, from) {
        (Side::Device, Side::Device) if card_of(target) == card_of(source) => Way::Within,
        (Side::Device, Side::Device) => Way::Between,
        (Side::Device, Side::Host) => Way::FromPageable,
        (Side::Host, Side::Device) => Way::ToPageable,
        (Side::Device, _) | (_, Side::Device) => Way::Pinned,
        _ => Way::None,
    };
    Ok(Moved { way, bytes: size })
}

/// What a captured copy does to memory at each launch of its graph. The host's memory may be gone by then.
pub(crate) fn again(target: u64, source: u64, size: u64) -> Act {
    Act::new(move || match (side(target, size), side(source, size)) {
        (Ok(Side::Device), Ok(Side::Device)) => values::device_to_device(target, source, size),
        (Ok(Side::Device), _) => values::computed(target, size),
        _ => {}
    })
}

/// The card that an address is on.
fn card_of(address: u64) -> Option<u32> {
    find(address).map(|block| block.card)
}

/// Copies `height` rows of `width` bytes; each side is an address and the distance from row to row. Gives
/// what was moved.
pub(crate) fn rectangle(
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

/// Fills a range with `count` times the lowest `width` bytes of a pattern; gives what was moved.
pub(crate) fn fill(target: u64, pattern: u32, width: u32, count: u64) -> Outcome<Moved> {
    let size = count.checked_mul(u64::from(width)).ok_or(Status::INVALID_VALUE)?;
    if size == 0 {
        return Ok(Moved::default());
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
    Ok(Moved { way: Way::Fill, bytes: size })
}

/// Fills `height` rows of `width` units, `pitch` bytes apart; gives what was moved.
pub(crate) fn fill_rectangle(
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
