//! A handle's memory: the device's properties where the real library expects them.
//!
//! The real library's handle begins with a structure of the device's properties, whose layout differs by
//! release. The library tells it: a property descriptor that is made from a handle gives its properties back
//! as JSON, so a handle whose every word holds its own index gives the offset of each property.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::sync::OnceLock;

use memfit_devices::Device;
use memfit_vocabulary::Remark;
use serde_json::Value;

use super::status;
use crate::entry::Ptr;
use crate::real::real;
use memfit_cuda::card;

/// How large a handle is made, in 32-bit words. The real one's properties lie in the first hundred; all that
/// lies behind them reads as zero, and must be there to be read.
const WORDS: usize = 65_536;
/// As many words as are searched for properties.
const SEARCHED: usize = 512;
/// What a word of the probe holds beyond its index, so that no index is mistaken for a small number.
const MARK: u32 = 10_000;

/// `CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR`.
const DEVICE_PROPERTIES: i32 = 38;
/// `CUDNN_ATTR_DEVICEPROP_HANDLE`.
const FROM_HANDLE: i32 = 2701;
/// `CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`.
const AS_JSON: i32 = 2702;
/// `CUDNN_TYPE_HANDLE`.
pub(super) const TYPE_HANDLE: i32 = 0;
/// `CUDNN_TYPE_CHAR`.
const TYPE_CHAR: i32 = 24;

/// Where releases that do not tell keep each property, as found by asking them: 9.5 and 9.7 as 9.10, which
/// tells.
const SINCE_9_5: &[(&str, usize, usize)] = &[
    ("maxGridSize", 0, 3),
    ("maxBlockSize", 3, 3),
    ("regsPerBlock", 6, 1),
    ("multiProcessorCount", 7, 1),
    ("warpSize", 8, 1),
    ("maxSharedMemoryPerBlock", 9, 1),
    ("maxSharedMemoryPerBlockOptin", 10, 1),
    ("reservedSharedMemoryPerBlock", 11, 1),
    ("maxRegistersPerSM", 12, 1),
    ("maxCtasPerSM", 13, 1),
    ("maxThreadsPerSM", 14, 1),
    ("pciDeviceId", 15, 1),
    ("supportCoopLaunch", 17, 1),
    ("totalGlobalMem", 18, 2),
    ("smClockRateKHz", 20, 1),
    ("memClockRateKHz", 21, 1),
    ("l2CacheSize", 22, 1),
    ("deviceVer", 24, 1),
    ("driverVer", 25, 1),
];

/// Before, there was one property less in front of the threads of a multiprocessor; memory is aligned, so the
/// rest stays.
const BEFORE_9_5: &[(&str, usize, usize)] = &[
    ("maxGridSize", 0, 3),
    ("maxBlockSize", 3, 3),
    ("regsPerBlock", 6, 1),
    ("multiProcessorCount", 7, 1),
    ("warpSize", 8, 1),
    ("maxSharedMemoryPerBlock", 9, 1),
    ("maxSharedMemoryPerBlockOptin", 10, 1),
    ("maxRegistersPerSM", 11, 1),
    ("maxCtasPerSM", 12, 1),
    ("maxThreadsPerSM", 13, 1),
    ("pciDeviceId", 14, 1),
    ("supportCoopLaunch", 16, 1),
    ("totalGlobalMem", 18, 2),
    ("smClockRateKHz", 20, 1),
    ("memClockRateKHz", 21, 1),
    ("l2CacheSize", 22, 1),
    ("deviceVer", 24, 1),
    ("driverVer", 25, 1),
    (SMS_OF_EACH_CLUSTER, 26, 24),
];

/// The multiprocessors of each graphics processing cluster. No release names them so: 9.1 measures them on
/// Hopper by a kernel when a handle is made, and refuses attention there without them.
const SMS_OF_EACH_CLUSTER: &str = "multiprocessors of each cluster";
/// NVIDIA H100 Tensor Core GPU Architecture, "H100 GPU Architecture In-Depth": up to 8 clusters of 9 pairs.
const CLUSTERS: u64 = 8;
const MOST_SMS_OF_A_CLUSTER: u64 = 18;

/// A property's value as cuDNN names it; `None` for one that is not known here, which then reads as zero.
fn property(device: &Device, name: &str) -> Option<Vec<u64>> {
    let sm = &device.sm;
    Some(match name {
        "maxGridSize" => vec![0x7fff_ffff, 65_535, 65_535],
        "maxBlockSize" => vec![1024, 1024, 64],
        "regsPerBlock" => vec![sm.registers_per_block.into()],
        "multiProcessorCount" => vec![device.sm_count.into()],
        "warpSize" => vec![sm.warp_size.into()],
        "maxSharedMemoryPerBlock" => vec![sm.shared_memory_per_block.get()],
        "maxSharedMemoryPerBlockOptin" => vec![sm.shared_memory_per_block_optin.get()],
        "reservedSharedMemoryPerBlock" => vec![sm.reserved_shared_memory_per_block.get()],
        "maxRegistersPerSM" => vec![sm.registers.into()],
        "maxCtasPerSM" => vec![sm.max_blocks.into()],
        "maxThreadsPerBlock" => vec![sm.max_threads_per_block.into()],
        "maxThreadsPerSM" => vec![sm.max_threads.into()],
        "pciDeviceId" => vec![device.pci_device_id.into()],
        "supportCoopLaunch" => vec![1],
        "totalGlobalMem" => vec![card::capacity().unwrap_or_else(|| device.memory.get())],
        "smClockRateKHz" => vec![device.sm_clock_khz.into()],
        "memClockRateKHz" => vec![device.memory_clock_khz.into()],
        "l2CacheSize" => vec![device.l2_cache.get()],
        SMS_OF_EACH_CLUSTER => return clusters(device),
        "deviceVer" => vec![u64::from(device.compute_capability.sm_version()) * 10],
        "driverVer" => vec![card::driver_version().into()],
        _ => return None,
    })
}

/// The multiprocessors of each cluster of a Hopper card, spread evenly in pairs: which pairs are switched off
/// differs from card to card.
fn clusters(device: &Device) -> Option<Vec<u64>> {
    if device.compute_capability.major != 9 {
        return None;
    }
    let pairs = u64::from(device.sm_count) / 2;
    let of_cluster = |index: u64| 2 * (pairs / CLUSTERS + u64::from(index < pairs % CLUSTERS));
    let sms: Vec<u64> = (0..CLUSTERS).map(of_cluster).collect();
    sms.iter().all(|sms| (1..=MOST_SMS_OF_A_CLUSTER).contains(sms)).then_some(sms)
}

/// The properties of a card as the real library's JSON, with the names that this release knows.
pub(super) fn json(device: &Device) -> Option<CString> {
    let known = layout().told.as_ref()?;
    let mut object = serde_json::Map::new();
    for (name, shape) in known {
        let values = property(device, name);
        let value = match (shape, values) {
            (Value::Array(slots), values) => {
                let values = values.unwrap_or_else(|| vec![0; slots.len()]);
                Value::from(values)
            }
            (Value::String(_), _) => Value::from(device.name.clone()),
            (_, values) => Value::from(values.and_then(|values| values.first().copied()).unwrap_or(0)),
        };
        object.insert(name.clone(), value);
    }
    CString::new(Value::Object(object).to_string()).ok()
}

/// Where this release of the library keeps the properties.
struct Layout {
    /// Name, first word, number of words.
    places: Vec<(String, usize, usize)>,
    /// What the library told, if it did.
    told: Option<BTreeMap<String, Value>>,
}

fn layout() -> &'static Layout {
    static LAYOUT: OnceLock<Layout> = OnceLock::new();
    LAYOUT.get_or_init(|| {
        if let Some(told) = ask() {
            let places = told.iter().filter_map(|(name, value)| place(name, value)).collect();
            return Layout { places, told: Some(told) };
        }
        card::remark(Remark::CudnnLayout);
        let version = real!(CUDNN, cudnnGetVersion() -> usize).unwrap_or(0);
        let places = if version < 90_500 { BEFORE_9_5 } else { SINCE_9_5 };
        let places = places.iter().map(|(name, first, words)| ((*name).to_owned(), *first, *words));
        Layout { places: places.collect(), told: None }
    })
}

/// Where a property lies, from what the library read there out of the probe.
fn place(name: &str, value: &Value) -> Option<(String, usize, usize)> {
    let index = |value: &Value| {
        // A property of 64 bits reads two words; the lower one comes first.
        let read = value.as_u64()?;
        let words = if read >> 32 == 0 { 1 } else { 2 };
        let first = u32::try_from(read & 0xffff_ffff).ok()?.checked_sub(MARK)?;
        Some((first as usize, words))
    };
    let (first, words) = match value {
        Value::Array(values) => (index(values.first()?)?.0, values.len()),
        Value::Number(_) => index(value)?,
        _ => return None,
    };
    (first + words <= SEARCHED).then(|| (name.to_owned(), first, words))
}

/// Asks the library for the properties of a handle whose words hold their own index.
fn ask() -> Option<BTreeMap<String, Value>> {
    let mut probe = vec![0_u32; WORDS];
    for (word, mark) in probe[..SEARCHED].iter_mut().zip(MARK..) {
        *word = mark;
    }
    let mut handle = probe.as_mut_ptr() as usize;
    let mut descriptor = 0_usize;
    let created = real!(CUDNN, cudnnBackendCreateDescriptor(
        DEVICE_PROPERTIES => i32, &raw mut descriptor => *mut usize
    ) -> i32)?;
    if created != status::SUCCESS {
        return None;
    }
    let text = (|| {
        let set = real!(CUDNN, cudnnBackendSetAttribute(
            descriptor => usize, FROM_HANDLE => i32, TYPE_HANDLE => i32, 1 => i64, (&raw mut handle).cast() => Ptr
        ) -> i32)?;
        let finalized = real!(CUDNN, cudnnBackendFinalize(descriptor => usize) -> i32)?;
        if set != status::SUCCESS || finalized != status::SUCCESS {
            return None;
        }
        let mut length = 0_i64;
        read_json(descriptor, 0, &mut length, std::ptr::null_mut())?;
        let mut text = vec![0_u8; usize::try_from(length).ok()? + 1];
        read_json(descriptor, length, &mut length, text.as_mut_ptr().cast())?;
        Some(text)
    })();
    real!(CUDNN, cudnnBackendDestroyDescriptor(descriptor => usize) -> i32);
    let text = text?;
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    serde_json::from_str(&String::from_utf8_lossy(&text[..end])).ok()
}

fn read_json(descriptor: usize, room: i64, length: &mut i64, target: *mut c_char) -> Option<()> {
    let read = real!(CUDNN, cudnnBackendGetAttribute(
        descriptor => usize, AS_JSON => i32, TYPE_CHAR => i32, room => i64,
        &raw mut *length => *mut i64, target => *mut c_char
    ) -> i32)?;
    (read == status::SUCCESS).then_some(())
}

/// A descriptor of the card's properties for the mode without a device; `None` where the library has no such
/// mode. It is made once for each card and lives as long as the process.
pub(super) fn descriptor() -> Option<Ptr> {
    static DESCRIPTORS: [OnceLock<Option<usize>>; 64] = [const { OnceLock::new() }; 64];
    let made = DESCRIPTORS.get(card::current_ordinal())?.get_or_init(|| {
        let text = json(card::device()?)?;
        let length = i64::try_from(text.count_bytes()).ok()?;
        let mut descriptor = 0_usize;
        let created = real!(CUDNN, cudnnBackendCreateDescriptor(
            DEVICE_PROPERTIES => i32, &raw mut descriptor => *mut usize
        ) -> i32)?;
        let set = real!(CUDNN, cudnnBackendSetAttribute(
            descriptor => usize, AS_JSON => i32, TYPE_CHAR => i32, length => i64, text.as_ptr() => *const c_char
        ) -> i32)?;
        let finalized = real!(CUDNN, cudnnBackendFinalize(descriptor => usize) -> i32)?;
        if [created, set, finalized] == [status::SUCCESS; 3] {
            return Some(descriptor);
        }
        card::remark(Remark::CudnnCard);
        None
    });
    made.map(|address| address as Ptr)
}

/// The memory behind a handle.
pub(super) struct Image(Box<[u32]>);

impl Image {
    /// A handle's memory for a card.
    pub(super) fn of(device: &Device) -> Self {
        let mut words = vec![0_u32; WORDS].into_boxed_slice();
        for (name, first, count) in &layout().places {
            let Some(values) = property(device, name) else { continue };
            match (values.as_slice(), *count) {
                (&[value], 2) => {
                    words[*first] = (value & 0xffff_ffff) as u32;
                    words[first + 1] = (value >> 32) as u32;
                }
                (values, count) => {
                    for (word, value) in words[*first..first + count].iter_mut().zip(values) {
                        *word = u32::try_from(*value).unwrap_or(u32::MAX);
                    }
                }
            }
        }
        Self(words)
    }

    /// Where it lies: the handle.
    pub(super) fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfit_devices::Catalogue;

    #[test]
    fn a_hopper_card_says_how_its_multiprocessors_are_spread() {
        let catalogue = Catalogue::builtin().unwrap();
        for device in catalogue.devices() {
            let spread = property(device, SMS_OF_EACH_CLUSTER);
            if device.compute_capability.major == 9 {
                let total = spread.map(|sms| sms.iter().sum::<u64>());
                assert_eq!(total, Some(device.sm_count.into()), "{}", device.name);
            } else {
                assert_eq!(spread, None, "{}", device.name);
            }
        }
    }
}
