//! Copies and fills.

use crate::{
    context,
    copies::{self, Direction, Moved},
    guard::Driver,
    status::{Outcome, Status},
};
use memfit_abi::{In, entry_points};

/// Address of one side of a copy: its `CUmemorytype` and the pointer that belongs to that type.
#[derive(Clone, Copy)]
#[repr(C)]
struct SideAddress {
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
}

impl SideAddress {
    fn address(self) -> Outcome<u64> {
        match self.kind {
            1 => Ok(self.host),
            2 | 4 => Ok(self.device),
            _ => {
                crate::machine::count_unmodelled("cuMemcpy (arrays)");
                Err(Status::NOT_SUPPORTED)
            }
        }
    }
}

/// One side of `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Side2D {
    x: u64,
    y: u64,
    place: SideAddress,
    pitch: u64,
}

/// `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy2D {
    source: Side2D,
    target: Side2D,
    width: u64,
    height: u64,
}

impl Side2D {
    fn start(self, width: u64) -> Outcome<(u64, u64)> {
        let pitch = if self.pitch == 0 { width } else { self.pitch };
        Ok((self.place.address()? + self.y * pitch + self.x, pitch))
    }
}

fn copy_2d(parameters: In<Copy2D>) -> Outcome<Moved> {
    let copy = parameters.get().ok_or(Status::INVALID_VALUE)?;
    let (target, source) = (copy.target.start(copy.width)?, copy.source.start(copy.width)?);
    copies::copy_rows(target, source, copy.width, copy.height, Direction::Default)
}

/// One side of `CUDA_MEMCPY3D`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Side3D {
    x: u64,
    y: u64,
    z: u64,
    level: u64,
    place: SideAddress,
    reserved: u64,
    pitch: u64,
    height: u64,
}

/// `CUDA_MEMCPY3D`, and `CUDA_MEMCPY3D_PEER` with contexts in the reserved words.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy3D {
    source: Side3D,
    target: Side3D,
    width: u64,
    height: u64,
    depth: u64,
}

impl Side3D {
    fn start(self, width: u64, rows: u64, layer: u64) -> Outcome<(u64, u64)> {
        let pitch = if self.pitch == 0 { width } else { self.pitch };
        let height = if self.height == 0 { rows } else { self.height };
        Ok((self.place.address()? + ((self.z + layer) * height + self.y) * pitch + self.x, pitch))
    }
}

fn copy_3d(parameters: In<Copy3D>) -> Outcome<Moved> {
    let copy = parameters.get().ok_or(Status::INVALID_VALUE)?;
    (0..copy.depth).try_fold(Moved::default(), |moved, layer| {
        let target = copy.target.start(copy.width, copy.height, layer)?;
        let source = copy.source.start(copy.width, copy.height, layer)?;
        Ok(moved + copies::copy_rows(target, source, copy.width, copy.height, Direction::Default)?)
    })
}

fn copy_and_wait(target: u64, source: u64, size: u64, direction: Direction) -> Outcome {
    copies::run_and_wait(|| copies::copy(target, source, size, direction))
}

fn copy_on_stream(target: u64, source: u64, size: u64, direction: Direction, stream: u64) -> Outcome {
    copies::run_on_stream(stream, || copies::copy(target, source, size, direction))
}

fn fill(target: u64, pattern: u32, width: u32, count: u64, stream: u64) -> Outcome {
    copies::run_on_stream(stream, || copies::fill(target, pattern, width, count))
}

entry_points! { Driver;
    fn cuMemcpy(target: u64, source: u64, size: u64) {
        copy_and_wait(target, source, size, Direction::Default)
    }

    fn cuMemcpyAsync(target: u64, source: u64, size: u64, stream: u64) {
        copy_on_stream(target, source, size, Direction::Default, stream)
    }

    fn cuMemcpyHtoD_v2(target: u64, source: u64, size: u64) {
        copy_and_wait(target, source, size, Direction::HostToDevice)
    }

    fn cuMemcpyHtoDAsync_v2(target: u64, source: u64, size: u64, stream: u64) {
        copy_on_stream(target, source, size, Direction::HostToDevice, stream)
    }

    fn cuMemcpyDtoH_v2(target: u64, source: u64, size: u64) {
        copy_and_wait(target, source, size, Direction::DeviceToHost)
    }

    fn cuMemcpyDtoHAsync_v2(target: u64, source: u64, size: u64, stream: u64) {
        copy_on_stream(target, source, size, Direction::DeviceToHost, stream)
    }

    fn cuMemcpyDtoD_v2(target: u64, source: u64, size: u64) {
        copy_and_wait(target, source, size, Direction::DeviceToDevice)
    }

    fn cuMemcpyDtoDAsync_v2(target: u64, source: u64, size: u64, stream: u64) {
        copy_on_stream(target, source, size, Direction::DeviceToDevice, stream)
    }

    fn cuMemcpyPeer(target: u64, to: u64, source: u64, from: u64, size: u64) {
        context::card_of(to)?;
        context::card_of(from)?;
        copy_and_wait(target, source, size, Direction::DeviceToDevice)
    }

    fn cuMemcpyPeerAsync(target: u64, to: u64, source: u64, from: u64, size: u64, stream: u64) {
        context::card_of(to)?;
        context::card_of(from)?;
        copy_on_stream(target, source, size, Direction::DeviceToDevice, stream)
    }

    fn cuMemcpy2D_v2(parameters: In<Copy2D>) {
        copies::run_and_wait(|| copy_2d(parameters))
    }

    fn cuMemcpy2DUnaligned_v2(parameters: In<Copy2D>) {
        copies::run_and_wait(|| copy_2d(parameters))
    }

    fn cuMemcpy2DAsync_v2(parameters: In<Copy2D>, stream: u64) {
        copies::run_on_stream(stream, || copy_2d(parameters))
    }

    fn cuMemcpy3D_v2(parameters: In<Copy3D>) {
        copies::run_and_wait(|| copy_3d(parameters))
    }

    fn cuMemcpy3DAsync_v2(parameters: In<Copy3D>, stream: u64) {
        copies::run_on_stream(stream, || copy_3d(parameters))
    }

    fn cuMemcpy3DPeer(parameters: In<Copy3D>) {
        copies::run_and_wait(|| copy_3d(parameters))
    }

    fn cuMemcpy3DPeerAsync(parameters: In<Copy3D>, stream: u64) {
        copies::run_on_stream(stream, || copy_3d(parameters))
    }

    fn cuMemsetD8_v2(target: u64, value: u8, count: u64) {
        fill(target, u32::from(value), 1, count, 0)
    }

    fn cuMemsetD16_v2(target: u64, value: u16, count: u64) {
        fill(target, u32::from(value), 2, count, 0)
    }

    fn cuMemsetD32_v2(target: u64, value: u32, count: u64) {
        fill(target, value, 4, count, 0)
    }

    fn cuMemsetD8Async(target: u64, value: u8, count: u64, stream: u64) {
        fill(target, u32::from(value), 1, count, stream)
    }

    fn cuMemsetD16Async(target: u64, value: u16, count: u64, stream: u64) {
        fill(target, u32::from(value), 2, count, stream)
    }

    fn cuMemsetD32Async(target: u64, value: u32, count: u64, stream: u64) {
        fill(target, value, 4, count, stream)
    }

    fn cuMemsetD2D8_v2(target: u64, pitch: u64, value: u8, width: u64, height: u64) {
        copies::run_and_wait(|| copies::fill_rows(target, pitch, u32::from(value), 1, width, height))
    }

    fn cuMemsetD2D16_v2(target: u64, pitch: u64, value: u16, width: u64, height: u64) {
        copies::run_and_wait(|| copies::fill_rows(target, pitch, u32::from(value), 2, width, height))
    }

    fn cuMemsetD2D32_v2(target: u64, pitch: u64, value: u32, width: u64, height: u64) {
        copies::run_and_wait(|| copies::fill_rows(target, pitch, value, 4, width, height))
    }

    fn cuMemsetD2D8Async(target: u64, pitch: u64, value: u8, width: u64, height: u64, stream: u64) {
        copies::run_on_stream(stream, || copies::fill_rows(target, pitch, u32::from(value), 1, width, height))
    }

    fn cuMemsetD2D16Async(target: u64, pitch: u64, value: u16, width: u64, height: u64, stream: u64) {
        copies::run_on_stream(stream, || copies::fill_rows(target, pitch, u32::from(value), 2, width, height))
    }

    fn cuMemsetD2D32Async(target: u64, pitch: u64, value: u32, width: u64, height: u64, stream: u64) {
        copies::run_on_stream(stream, || copies::fill_rows(target, pitch, value, 4, width, height))
    }
}
