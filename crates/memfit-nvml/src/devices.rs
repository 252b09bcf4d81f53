//! Device look-up, names and properties.

use std::ffi::c_char;

use memfit_channel::identity;
use memfit_devices::{Class, HostLinkKind};

use crate::boundary::{Checked, Nvml, read_text, write_text};
use crate::cards::{self, Card, Handle};
use crate::status::{Outcome, Status};
use memfit_abi::{In, Out, entry_points};

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PciInfo {
    bus_id_legacy: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    device_id: u32,
    subsystem_id: u32,
    bus_id: [u8; 32],
}

/// NVIDIA's vendor id.
const VENDOR: u32 = 0x10de;

fn pci_info(card: Card) -> PciInfo {
    let bus = identity::pci_bus(card.index);
    PciInfo {
        bus_id_legacy: text(&format!("0000:{bus:02X}:00.0")),
        domain: 0,
        bus,
        device: 0,
        device_id: u32::from(card.device.pci_device_id) << 16 | VENDOR,
        subsystem_id: 0,
        bus_id: text(&bus_id(card)),
    }
}

/// PCI address of the device in NVML's format.
pub(crate) fn bus_id(card: Card) -> String {
    format!("00000000:{:02X}:00.0", identity::pci_bus(card.index))
}

/// UUID of the device as text.
pub(crate) fn uuid(card: Card) -> String {
    identity::uuid_text(card.index)
}

fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

/// Parses a PCI address: domain, bus, device. NVML accepts a domain of any width or none, with or without a
/// function.
fn parse_bus_id(text: &str) -> Option<(u32, u32, u32)> {
    let address = text.trim().split('.').next()?;
    let parts: Vec<&str> = address.split(':').collect();
    let number = |part: &str| u32::from_str_radix(part, 16).ok();
    match parts[..] {
        [domain, bus, device] => Some((number(domain)?, number(bus)?, number(device)?)),
        [bus, device] => Some((0, number(bus)?, number(device)?)),
        _ => None,
    }
}

/// Finds the device at a PCI address.
pub(crate) fn by_bus_id(text: &str) -> Outcome<Card> {
    let (domain, bus, device) = parse_bus_id(text).ok_or(Status::INVALID_ARGUMENT)?;
    let mut cards = cards::all_cards()?;
    let found = cards.find(|card| domain == 0 && device == 0 && bus == identity::pci_bus(card.index));
    found.ok_or(Status::NOT_FOUND)
}

/// Finds the device with a UUID.
pub(crate) fn by_uuid(text: &str) -> Outcome<Card> {
    let found = cards::all_cards()?.find(|card| uuid(*card).eq_ignore_ascii_case(text.trim()));
    found.ok_or(Status::NOT_FOUND)
}

/// `NVML_DEVICE_ARCH_…` of a compute capability.
fn architecture(card: Card) -> u32 {
    match card.device.compute_capability.sm_version() {
        60..=62 => 4,
        70..=72 => 5,
        75 => 6,
        80..=88 => 7,
        89 => 8,
        90..=99 => 9,
        100..=129 => 10,
        _ => u32::MAX,
    }
}

/// `NVML_BRAND_…` of the device's market segment.
fn brand(card: Card) -> i32 {
    match card.device.class {
        Class::Desktop | Class::Laptop if card.device.name.contains("TITAN") => 6,
        Class::Desktop | Class::Laptop => 5,
        Class::Workstation if card.device.name.contains("Quadro") => 12,
        Class::Workstation => 13,
        Class::DataCenter if card.device.name.contains("Tesla") => 2,
        _ => 14,
    }
}

/// Clock in MHz; supports `NVML_CLOCK_GRAPHICS`, `_SM` and `_MEM`.
pub(crate) fn clock(card: Card, kind: i32) -> Outcome<u32> {
    match kind {
        0 | 1 => Ok(card.device.sm_clock_khz / 1000),
        2 => Ok(card.device.memory_clock_khz / 1000),
        3 => Err(Status::NOT_SUPPORTED),
        _ => Err(Status::INVALID_ARGUMENT),
    }
}

/// Generation and lanes of the device's PCIe link.
pub(crate) fn pcie(card: Card) -> Outcome<(u32, u32)> {
    match card.device.host_link.kind {
        HostLinkKind::Pcie { generation, lanes } => Ok((generation, lanes)),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

fn write_device_count(count: Out<u32>) -> Outcome {
    count.write_value(cards::all_cards()?.count() as u32)
}

fn by_index(index: u32, handle: Out<Handle>) -> Outcome {
    handle.write_value(Handle::new(cards::card_at(index as usize)?))
}

entry_points! { Nvml;
    fn nvmlDeviceGetCount(number: Out<u32>) {
        write_device_count(number)
    }

    fn nvmlDeviceGetCount_v2(number: Out<u32>) {
        write_device_count(number)
    }

    fn nvmlDeviceGetHandleByIndex(index: u32, handle: Out<Handle>) {
        by_index(index, handle)
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: u32, handle: Out<Handle>) {
        by_index(index, handle)
    }

    fn nvmlDeviceGetHandleByPciBusId(address: In<c_char>, handle: Out<Handle>) {
        handle.write_value(Handle::new(by_bus_id(&read_text(address)?)?))
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(address: In<c_char>, handle: Out<Handle>) {
        handle.write_value(Handle::new(by_bus_id(&read_text(address)?)?))
    }

    fn nvmlDeviceGetHandleByUUID(uuid: In<c_char>, handle: Out<Handle>) {
        handle.write_value(Handle::new(by_uuid(&read_text(uuid)?)?))
    }

    fn nvmlDeviceGetIndex(handle: Handle, index: Out<u32>) {
        index.write_value(handle.card()?.index as u32)
    }

    fn nvmlDeviceGetMinorNumber(handle: Handle, number: Out<u32>) {
        number.write_value(handle.card()?.index as u32)
    }

    fn nvmlDeviceGetName(handle: Handle, name: Out<u8>, length: u32) {
        write_text(name, &handle.card()?.device.name, length)
    }

    fn nvmlDeviceGetUUID(handle: Handle, place: Out<u8>, length: u32) {
        write_text(place, &uuid(handle.card()?), length)
    }

    fn nvmlDeviceGetPciInfo(handle: Handle, info: Out<PciInfo>) {
        info.write_value(pci_info(handle.card()?))
    }

    fn nvmlDeviceGetPciInfo_v2(handle: Handle, info: Out<PciInfo>) {
        info.write_value(pci_info(handle.card()?))
    }

    fn nvmlDeviceGetPciInfo_v3(handle: Handle, info: Out<PciInfo>) {
        info.write_value(pci_info(handle.card()?))
    }

    fn nvmlDeviceGetCudaComputeCapability(handle: Handle, major: Out<i32>, minor: Out<i32>) {
        let capability = handle.card()?.device.compute_capability;
        major.write_value(capability.major as i32)?;
        minor.write_value(capability.minor as i32)
    }

    fn nvmlDeviceGetArchitecture(handle: Handle, value: Out<u32>) {
        value.write_value(architecture(handle.card()?))
    }

    fn nvmlDeviceGetBrand(handle: Handle, value: Out<i32>) {
        value.write_value(brand(handle.card()?))
    }

    fn nvmlDeviceGetClockInfo(handle: Handle, kind: i32, value: Out<u32>) {
        value.write_value(clock(handle.card()?, kind)?)
    }

    fn nvmlDeviceGetMaxClockInfo(handle: Handle, kind: i32, value: Out<u32>) {
        value.write_value(clock(handle.card()?, kind)?)
    }

    fn nvmlDeviceGetMemoryBusWidth(handle: Handle, bits: Out<u32>) {
        bits.write_value(handle.card()?.device.memory_bus_bits)
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(handle: Handle, generation: Out<u32>) {
        generation.write_value(pcie(handle.card()?)?.0)
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration(handle: Handle, generation: Out<u32>) {
        generation.write_value(pcie(handle.card()?)?.0)
    }

    fn nvmlDeviceGetCurrPcieLinkWidth(handle: Handle, lanes: Out<u32>) {
        lanes.write_value(pcie(handle.card()?)?.1)
    }

    fn nvmlDeviceGetMaxPcieLinkWidth(handle: Handle, lanes: Out<u32>) {
        lanes.write_value(pcie(handle.card()?)?.1)
    }

    /// Returns the default mode: any number of processes.
    fn nvmlDeviceGetComputeMode(handle: Handle, mode: Out<i32>) {
        handle.card()?;
        mode.write_value(0)
    }

    fn nvmlDeviceGetPersistenceMode(handle: Handle, mode: Out<i32>) {
        handle.card()?;
        mode.write_value(1)
    }

    fn nvmlDeviceGetEccMode(handle: Handle, now: Out<i32>, pending: Out<i32>) {
        let ecc = i32::from(handle.card()?.device.ecc);
        now.write_value(ecc)?;
        pending.write_value(ecc)
    }

    fn nvmlDeviceIsMigDeviceHandle(handle: Handle, answer: Out<u32>) {
        handle.card()?;
        answer.write_value(0)
    }

    fn nvmlDeviceGetMultiGpuBoard(handle: Handle, answer: Out<u32>) {
        handle.card()?;
        answer.write_value(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_are_read_as_nvml_writes_them() {
        for (text, expected) in [
            ("00000000:01:00.0", Some((0, 1, 0))),
            ("0000:0A:00.0", Some((0, 10, 0))),
            ("0a:00", Some((0, 10, 0))),
            ("0001:02:03", Some((1, 2, 3))),
            ("card", None),
            ("", None),
            ("1:2:3:4", None),
        ] {
            assert_eq!(parse_bus_id(text), expected, "{text}");
        }
    }

    #[test]
    fn the_pci_structure_is_as_large_as_in_the_header() {
        assert_eq!(size_of::<PciInfo>(), 68);
    }
}
