//! Connections between the devices.

use crate::boundary::{Checked, Nvml};
use crate::cards::{Card, Handle};
use crate::status::{Outcome, Status};
use memfit_abi::{Out, entry_points};

/// `NVML_P2P_STATUS_OK`.
const P2P_OK: i32 = 0;
/// `NVML_P2P_STATUS_NOT_SUPPORTED`.
const P2P_NOT_SUPPORTED: i32 = 5;
/// `NVML_P2P_CAPS_INDEX_NVLINK`.
const BY_NVLINK: i32 = 2;
/// `NVML_TOPOLOGY_HOSTBRIDGE`: the devices of a virtual machine share one host bridge.
const HOST_BRIDGE: i32 = 30;

/// `version` field (number and size) and size of `nvmlGpuFabricInfo_v2` and `_v3`.
const FABRIC_VERSIONS: [(u32, usize); 2] = [(0x0200_0024, 36), (0x0300_0028, 40)];

/// First compute capability whose devices can be part of an NVSwitch fabric.
const FIRST_WITH_FABRIC: u32 = 90;

fn card_pair(first: Handle, second: Handle) -> Outcome<(Card, Card)> {
    Ok((first.card()?, second.card()?))
}

entry_points! { Nvml;
    fn nvmlDeviceGetP2PStatus(first: Handle, second: Handle, capability: i32, status: Out<i32>) {
        let (first, second) = card_pair(first, second)?;
        if first.index == second.index || !(0..=4).contains(&capability) {
            return Err(Status::INVALID_ARGUMENT);
        }
        let linked = first.device.peer_link.is_some() && second.device.peer_link.is_some();
        status.write_value(if capability == BY_NVLINK && !linked { P2P_NOT_SUPPORTED } else { P2P_OK })
    }

    fn nvmlDeviceGetTopologyCommonAncestor(first: Handle, second: Handle, level: Out<i32>) {
        let (first, second) = card_pair(first, second)?;
        if first.index == second.index {
            return Err(Status::INVALID_ARGUMENT);
        }
        level.write_value(HOST_BRIDGE)
    }

    fn nvmlDeviceOnSameBoard(first: Handle, second: Handle, answer: Out<i32>) {
        let (first, second) = card_pair(first, second)?;
        answer.write_value(i32::from(first.index == second.index))
    }

    /// Returns all zeros, which means that the device is not part of a fabric.
    fn nvmlDeviceGetGpuFabricInfoV(handle: Handle, info: Out<u32>) {
        let version = info.read_value()?;
        let known = FABRIC_VERSIONS.iter().find(|(each, _)| *each == version);
        let (_, size) = known.ok_or(Status::VERSION_MISMATCH)?;
        if handle.card()?.device.compute_capability.sm_version() < FIRST_WITH_FABRIC {
            return Err(Status::NOT_SUPPORTED);
        }
        (1..size / 4).try_for_each(|word| info.write_value_at(word, 0))
    }
}
