//! Memory behind a cuDNN handle: the device's properties where the real library expects them.
//!
//! The real library's handle begins with a structure of the device's properties, whose layout differs by
//! release. The library reports it: a property descriptor created from a handle returns its properties as
//! JSON, so a handle whose every word holds its own index yields the offset of each property.

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

/// The last property of a handle.
const LAST: &str = "driverVer";
/// Size of a handle in 32-bit words. The real handle's properties lie in the first hundred; everything after
/// them is zero, and must be readable.
const WORDS: usize = 65_536;
/// Number of words that are searched for properties.
const SEARCHED_WORDS: usize = 512;
/// Offset added to the index in each word of the probe, so that no index is mistaken for a small number.
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

/// Name, offset and length in words of each property, for releases since 9.5 that do not report them. Queries
/// of 9.5 and 9.7 show that their offsets equal those that 9.10 reports.
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

/// Earlier releases had one property less before the threads per multiprocessor; alignment keeps the others
/// in place.
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
    (SMS_PER_CLUSTER, 26, GROUPS),
];

/// Multiprocessors of each graphics processing cluster; the name is memfit's own. On Hopper, cuDNN measures
/// them with a kernel when a handle is created, and stores them behind the properties. 9.1 rejects attention
/// graphs without them.
const SMS_PER_CLUSTER: &str = "multiprocessors of each cluster";
/// Clusters of thread blocks that can run at once, by their number of blocks. They follow the former table in
/// releases that report their layout (seen in a handle of 9.19), and decide into how many parts an engine
/// splits a sum, and so its workspace. The mode without a device has neither table.
const ACTIVE_CLUSTERS: &str = "active clusters of each size";
/// Entries of these tables.
const GROUPS: usize = 24;
const CLUSTER_SIZES: usize = 16;

/// Value of a property under cuDNN's name; `None` for unknown names, which then read as zero.
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
        SMS_PER_CLUSTER => return groups(device),
        ACTIVE_CLUSTERS => {
            let groups = groups(device)?;
            let active = |size: u64| groups.iter().map(|sms| sms / size).sum();
            (1..=CLUSTER_SIZES as u64).map(active).collect()
        }
        "deviceVer" => vec![u64::from(device.compute_capability.sm_version()) * 10],
        "driverVer" => vec![card::driver_version().into()],
        _ => return None,
    })
}

/// Multiprocessors of each graphics processing cluster, where they are known.
fn groups(device: &Device) -> Option<Vec<u64>> {
    let known = !device.sms_per_gpc.is_empty();
    known.then(|| device.sms_per_gpc.iter().map(|sms| u64::from(*sms)).collect())
}

/// Properties of a device in the real library's JSON format, with the names that this release knows.
pub(super) fn json(device: &Device) -> Option<CString> {
    let known = layout().reported.as_ref()?;
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

/// Layout of the properties in this release of the library.
struct Layout {
    /// Name, first word, number of words.
    positions: Vec<(String, usize, usize)>,
    /// Properties that the library reported, if it does.
    reported: Option<BTreeMap<String, Value>>,
}

fn layout() -> &'static Layout {
    static LAYOUT: OnceLock<Layout> = OnceLock::new();
    LAYOUT.get_or_init(|| {
        if let Some(reported) = query_properties() {
            let mut positions: Vec<_> =
                reported.iter().filter_map(|(name, value)| property_position(name, value)).collect();
            let last = positions.iter().find(|(name, ..)| name == LAST).map(|(_, first, _)| *first);
            if let Some(last) = last {
                positions.push((SMS_PER_CLUSTER.to_owned(), last + 1, GROUPS));
                positions.push((ACTIVE_CLUSTERS.to_owned(), last + 1 + GROUPS, CLUSTER_SIZES));
            }
            return Layout { positions, reported: Some(reported) };
        }
        card::remark(Remark::CudnnLayout);
        let version = real!(CUDNN, cudnnGetVersion() -> usize).unwrap_or(0);
        let positions = if version < 90_500 { BEFORE_9_5 } else { SINCE_9_5 };
        let positions = positions.iter().map(|(name, first, words)| ((*name).to_owned(), *first, *words));
        Layout { positions: positions.collect(), reported: None }
    })
}

/// Position of a property, derived from the value that the library read from the probe.
fn property_position(name: &str, value: &Value) -> Option<(String, usize, usize)> {
    let index = |value: &Value| {
        // A 64-bit property spans two words, the lower one first.
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
    (first + words <= SEARCHED_WORDS).then(|| (name.to_owned(), first, words))
}

/// Queries the library for the properties of a handle whose words hold their own index.
fn query_properties() -> Option<BTreeMap<String, Value>> {
    let mut probe = vec![0_u32; WORDS];
    for (word, mark) in probe[..SEARCHED_WORDS].iter_mut().zip(MARK..) {
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

fn read_json(descriptor: usize, capacity: i64, length: &mut i64, target: *mut c_char) -> Option<()> {
    let read = real!(CUDNN, cudnnBackendGetAttribute(
        descriptor => usize, AS_JSON => i32, TYPE_CHAR => i32, capacity => i64,
        &raw mut *length => *mut i64, target => *mut c_char
    ) -> i32)?;
    (read == status::SUCCESS).then_some(())
}

/// Descriptor of the device's properties for the mode without a device; `None` if the library has no such
/// mode, or for a device of which it does not know enough in this mode: a handle's memory has all. It is
/// created once per device and lives as long as the process.
pub(super) fn descriptor() -> Option<Ptr> {
    static DESCRIPTORS: [OnceLock<Option<usize>>; 64] = [const { OnceLock::new() }; 64];
    let descriptor = DESCRIPTORS.get(card::current_ordinal())?.get_or_init(|| {
        let device = card::device()?;
        if has_tables(device) {
            return None;
        }
        let text = json(device)?;
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
    descriptor.map(|address| address as Ptr)
}

/// Returns `true` if handles have tables of a device's clusters, which its properties do not have.
fn has_tables(device: &Device) -> bool {
    !device.sms_per_gpc.is_empty() && layout().positions.iter().any(|(name, ..)| name == ACTIVE_CLUSTERS)
}

/// Memory behind a handle.
pub(super) struct Image(Box<[u32]>);

impl Image {
    /// Creates a handle's memory for a device.
    pub(super) fn new(device: &Device) -> Self {
        let mut words = vec![0_u32; WORDS].into_boxed_slice();
        for (name, first, count) in &layout().positions {
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

    /// Address of the memory, which is the handle.
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
            let spread = property(device, SMS_PER_CLUSTER);
            if device.compute_capability.major == 9 {
                let total = spread.map(|sms| sms.iter().sum::<u64>());
                assert_eq!(total, Some(device.sm_count.into()), "{}", device.name);
            } else {
                assert_eq!(spread, None, "{}", device.name);
            }
        }
    }

    /// Both tables of a handle of cuDNN 9.19 on an H200, of 132 multiprocessors.
    #[test]
    fn an_h200_has_the_clusters_that_were_seen_on_one() {
        let catalogue = Catalogue::builtin().unwrap();
        let device = catalogue.find("h200").unwrap();
        assert_eq!(property(device, SMS_PER_CLUSTER).unwrap(), [18, 18, 16, 16, 16, 16, 16, 8, 2, 2, 2, 2]);
        let active = property(device, ACTIVE_CLUSTERS).unwrap();
        assert_eq!(active, [132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7]);
    }
}
