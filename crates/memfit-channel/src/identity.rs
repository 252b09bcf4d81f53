//! Identity of a virtual device: the same in CUDA and in NVML, in every process and in every run.

/// Unique id of a device, from its index in the run's set-up.
pub fn uuid(index: usize) -> [u8; 16] {
    let mut bytes = *b"memfit-virtual\0\0";
    bytes[14..].copy_from_slice(&(index as u16).to_be_bytes());
    bytes
}

/// The same in the format of `nvidia-smi -L`.
pub fn uuid_text(index: usize) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(uuid(index)));
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// PCI bus of a device, which is alone on it: domain 0, device 0.
pub fn pci_bus(index: usize) -> u32 {
    index as u32 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_differ() {
        assert_eq!(uuid_text(0).len(), "GPU-".len() + 36);
        assert_ne!(uuid_text(0), uuid_text(1));
        assert_ne!(pci_bus(0), pci_bus(1));
    }
}
