//! How the cards are connected with each other.

use crate::boundary::{Out, calls};
use crate::cards::{Card, Handle};
use crate::status::{Outcome, Status};

/// `NVML_P2P_STATUS_OK`.
const P2P_OK: i32 = 0;
/// `NVML_P2P_STATUS_NOT_SUPPORTED`.
const P2P_NOT_SUPPORTED: i32 = 5;
/// `NVML_P2P_CAPS_INDEX_NVLINK`.
const BY_NVLINK: i32 = 2;
/// `NVML_TOPOLOGY_HOSTBRIDGE`: the cards of a virtual machine hang on one host bridge.
const HOST_BRIDGE: i32 = 30;

fn two(first: Handle, second: Handle) -> Outcome<(Card, Card)> {
    Ok((first.card()?, second.card()?))
}

calls! {
    fn nvmlDeviceGetP2PStatus(first: Handle, second: Handle, capability: i32, status: Out<i32>) {
        let (first, second) = two(first, second)?;
        if first.index == second.index || !(0..=4).contains(&capability) {
            return Err(Status::INVALID_ARGUMENT);
        }
        let linked = first.device.peer_link.is_some() && second.device.peer_link.is_some();
        status.put(if capability == BY_NVLINK && !linked { P2P_NOT_SUPPORTED } else { P2P_OK })
    }

    fn nvmlDeviceGetTopologyCommonAncestor(first: Handle, second: Handle, level: Out<i32>) {
        let (first, second) = two(first, second)?;
        if first.index == second.index {
            return Err(Status::INVALID_ARGUMENT);
        }
        level.put(HOST_BRIDGE)
    }

    fn nvmlDeviceOnSameBoard(first: Handle, second: Handle, answer: Out<i32>) {
        let (first, second) = two(first, second)?;
        answer.put(i32::from(first.index == second.index))
    }
}
