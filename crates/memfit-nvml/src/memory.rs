//! Memory and processes of a device: the ledger's figures in NVML's structures.

use memfit_channel::ledger::{ProcessView, ShareView};

use crate::boundary::{Checked, Nvml};
use crate::cards::{self, Card, Handle};
use crate::status::{Outcome, Status};
use memfit_abi::{Out, entry_points};

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemoryV2 {
    version: u32,
    /// Written, so that none of this process's memory leaks through it.
    padding: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProcessV1 {
    pid: u32,
    padding: u32,
    used: u64,
}

/// `nvmlProcessInfo_v2_t`, which is also version 3.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProcessV2 {
    pid: u32,
    padding: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Utilization {
    gpu: u32,
    memory: u32,
}

/// Instance id of a device that is not partitioned.
const NO_INSTANCE: u32 = u32::MAX;

/// Value of a structure's `version` field: its size and its number.
const fn structure_version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}

/// Memory of a device; used and free bytes equal those of `cudaMemGetInfo`.
pub(crate) fn memory(card: Card) -> Outcome<Memory> {
    let (view, _) = cards::usage(card)?;
    let total = card.device.memory.get();
    let used = view.in_use_upper().min(total);
    Ok(Memory { total, free: total - used, used })
}

/// Live processes with memory on the device, and their bytes.
pub(crate) fn processes(card: Card) -> Outcome<Vec<(u32, u64)>> {
    let held = |share: &ShareView| share.used + share.outside.total();
    let (_, processes) = cards::usage(card)?;
    let on_card = |process: &ProcessView| process.shares.get(card.index).map(held).filter(|bytes| *bytes > 0);
    let live = processes.iter().filter(|process| process.alive);
    Ok(live.filter_map(|process| Some((process.pid, on_card(process)?))).collect())
}

/// Writes a list by NVML's convention: `count` is the capacity on entry, and the required number on return.
fn list<T: Copy>(count: Out<u32>, room: Out<T>, items: &[T]) -> Outcome {
    let space = count.read_value()? as usize;
    count.write_value(items.len() as u32)?;
    if space < items.len() {
        return Err(Status::INSUFFICIENT_SIZE);
    }
    for (index, item) in items.iter().enumerate() {
        room.write_value_at(index, *item)?;
    }
    Ok(())
}

fn compute_v1(handle: Handle, count: Out<u32>, infos: Out<ProcessV1>) -> Outcome {
    let items: Vec<_> =
        processes(handle.card()?)?.iter().map(|&(pid, used)| ProcessV1 { pid, padding: 0, used }).collect();
    list(count, infos, &items)
}

fn compute_v2(handle: Handle, count: Out<u32>, infos: Out<ProcessV2>) -> Outcome {
    let whole = |&(pid, used): &(u32, u64)| ProcessV2 {
        pid,
        padding: 0,
        used,
        gpu_instance: NO_INSTANCE,
        compute_instance: NO_INSTANCE,
    };
    let items: Vec<_> = processes(handle.card()?)?.iter().map(whole).collect();
    list(count, infos, &items)
}

fn empty_list<T: Copy>(handle: Handle, count: Out<u32>, infos: Out<T>) -> Outcome {
    handle.card()?;
    list(count, infos, &[])
}

entry_points! { Nvml;
    fn nvmlDeviceGetMemoryInfo(handle: Handle, info: Out<Memory>) {
        info.write_value(memory(handle.card()?)?)
    }

    fn nvmlDeviceGetMemoryInfo_v2(handle: Handle, info: Out<MemoryV2>) {
        let card = handle.card()?;
        let version = info.read_value()?.version;
        if version != structure_version::<MemoryV2>(2) {
            return Err(Status::VERSION_MISMATCH);
        }
        let Memory { total, free, used } = memory(card)?;
        info.write_value(MemoryV2 { version, padding: 0, total, reserved: 0, free, used })
    }

    fn nvmlDeviceGetComputeRunningProcesses(handle: Handle, count: Out<u32>, infos: Out<ProcessV1>) {
        compute_v1(handle, count, infos)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(handle: Handle, count: Out<u32>, infos: Out<ProcessV2>) {
        compute_v2(handle, count, infos)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v3(handle: Handle, count: Out<u32>, infos: Out<ProcessV2>) {
        compute_v2(handle, count, infos)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses(handle: Handle, count: Out<u32>, infos: Out<ProcessV1>) {
        empty_list(handle, count, infos)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2(handle: Handle, count: Out<u32>, infos: Out<ProcessV2>) {
        empty_list(handle, count, infos)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(handle: Handle, count: Out<u32>, infos: Out<ProcessV2>) {
        empty_list(handle, count, infos)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses(handle: Handle, count: Out<u32>, infos: Out<ProcessV1>) {
        empty_list(handle, count, infos)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(handle: Handle, count: Out<u32>, infos: Out<ProcessV2>) {
        empty_list(handle, count, infos)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(handle: Handle, count: Out<u32>, infos: Out<ProcessV2>) {
        empty_list(handle, count, infos)
    }

    /// Returns 0: kernels run instantly here, so the device is never busy.
    fn nvmlDeviceGetUtilizationRates(handle: Handle, rates: Out<Utilization>) {
        handle.card()?;
        rates.write_value(Utilization { gpu: 0, memory: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_large_as_in_the_header() {
        assert_eq!(size_of::<Memory>(), 24);
        assert_eq!(size_of::<MemoryV2>(), 40);
        assert_eq!(size_of::<ProcessV1>(), 16);
        assert_eq!(size_of::<ProcessV2>(), 24);
        assert_eq!(structure_version::<MemoryV2>(2), 0x0200_0028);
    }
}
