//! All that the libraries ask of the device they run on, and all that they tell it.

use std::sync::OnceLock;

use memfit_devices::Device;
use memfit_link::{RunDir, Setup};

use super::entry::Ptr;

/// The set-up of the run, if this process is in one.
fn setup() -> Option<&'static Setup> {
    static SETUP: OnceLock<Option<Setup>> = OnceLock::new();
    SETUP.get_or_init(|| Setup::read(&RunDir::from_env()?).ok()).as_ref()
}

/// The ordinal of the calling thread's current card.
pub(crate) fn current() -> usize {
    0
}

/// The calling thread's current card, as the catalogue describes it.
pub(crate) fn device() -> Option<&'static Device> {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    let devices = DEVICES.get_or_init(|| {
        let cards = setup().map(|setup| setup.cards.as_slice()).unwrap_or_default();
        cards.iter().filter_map(|card| serde_json::from_value(card.device.clone()).ok()).collect()
    });
    devices.get(current())
}

/// The memory that the calling thread's current card has in this run.
pub(crate) fn capacity() -> Option<u64> {
    setup()?.cards.get(current()).map(|card| card.capacity)
}

/// The driver's version as it tells libraries, such as 13020.
pub(crate) fn driver_version() -> u32 {
    13_020
}

/// A library of the calling thread's current card is in use: its share outside the allocator is booked, once.
pub(crate) fn use_libraries() {}

/// A communicator was made on a card: its buffers are booked. False where the card has no room for them.
pub(crate) fn use_communicator(_card: usize) -> bool {
    true
}

/// A communicator is gone, and its buffers with it.
pub(crate) fn drop_communicator(_card: usize) {}

/// What is booked for a communicator, by the best single guess.
pub(crate) fn communicator_size(card: usize) -> u64 {
    setup().and_then(|setup| setup.cards.get(card)).map_or(0, |card| card.communicator.typical)
}

/// A library was handed this memory as its workspace.
pub(crate) fn workspace(_address: Ptr) {}

/// Something that a report must say, once.
pub(crate) fn note(_text: &'static str) {}

unsafe extern "C" {
    // The runtime's own calls, exported from this library.
    fn cudaMalloc(address: *mut Ptr, size: usize) -> i32;
    fn cudaFree(address: Ptr) -> i32;
    fn cudaMemcpyAsync(to: Ptr, from: Ptr, size: usize, way: i32, stream: Ptr) -> i32;
    fn cudaMemcpy2D(
        to: Ptr, to_pitch: usize, from: Ptr, from_pitch: usize, width: usize, height: usize, way: i32,
    ) -> i32;
}

/// Device memory as the runtime gives it; `None` where the card has no room.
pub(crate) fn allocate(size: usize) -> Option<Ptr> {
    let mut address = std::ptr::null_mut();
    // SAFETY: `address` may be written.
    (unsafe { cudaMalloc(&raw mut address, size) } == 0).then_some(address)
}

/// Gives device memory back; false where the runtime does not know it.
pub(crate) fn free(address: Ptr) -> bool {
    // SAFETY: the runtime checks the address.
    unsafe { cudaFree(address) == 0 }
}

/// Copies within the device, in the order of a stream; false if the runtime would not.
pub(crate) fn copy_on_device(to: Ptr, from: Ptr, size: usize, stream: Ptr) -> bool {
    /// `cudaMemcpyDeviceToDevice`.
    const WITHIN: i32 = 3;
    // SAFETY: the runtime checks the addresses, and follows none of the device's.
    unsafe { cudaMemcpyAsync(to, from, size, WITHIN, stream) == 0 }
}

/// Copies runs of bytes between the host and the device as the runtime does; false if it would not.
pub(crate) fn copy_2d(
    to: Ptr, to_pitch: usize, from: Ptr, from_pitch: usize, width: usize, height: usize, way: i32,
) -> bool {
    // SAFETY: the runtime checks what it can, and the caller of the library vouches for the rest.
    unsafe { cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, way) == 0 }
}
