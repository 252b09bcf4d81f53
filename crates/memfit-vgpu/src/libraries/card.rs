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

/// A communicator was made on the calling thread's current card.
pub(crate) fn use_communicator() {}

/// A communicator is gone.
pub(crate) fn drop_communicator() {}

/// A library was handed this memory as its workspace.
pub(crate) fn workspace(_address: Ptr) {}

/// Something that a report must say, once.
pub(crate) fn note(_text: &'static str) {}

unsafe extern "C" {
    // The runtime's own call, exported from this library.
    fn cudaMemcpy2D(
        to: Ptr, to_pitch: usize, from: Ptr, from_pitch: usize, width: usize, height: usize, way: i32,
    ) -> i32;
}

/// Copies runs of bytes between the host and the device as the runtime does; false if it would not.
pub(crate) fn copy_2d(
    to: Ptr, to_pitch: usize, from: Ptr, from_pitch: usize, width: usize, height: usize, way: i32,
) -> bool {
    // SAFETY: the runtime checks what it can, and the caller of the library vouches for the rest.
    unsafe { cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, way) == 0 }
}
