//! Copies and fills.

use super::memory::{Extent, PitchedPointer};
use crate::{
    copies::{self, Direction, Moved},
    graphs,
    guard::{Driver, Runtime},
    machine,
    status::{Outcome, Status},
    streams,
};
use memfit_abi::{In, entry_points};

fn copy_and_wait(target: u64, source: u64, size: u64, direction: i32) -> Outcome {
    let direction = Direction::new(direction)?;
    copies::run_and_wait(|| copies::copy(target, source, size, direction))
}

fn copy_on_stream(target: u64, source: u64, size: u64, direction: i32, stream: u64) -> Outcome {
    let direction = Direction::new(direction)?;
    copies::run_on_stream(stream, || copies::copy(target, source, size, direction))?;
    match streams::resolve(stream)?.capture() {
        0 => {}
        capture => graphs::add_effect(capture, copies::replay_copy(target, source, size)),
    }
    Ok(())
}

#[allow(clippy::too_many_arguments, reason = "CUDA's")]
fn copy_2d(
    target: u64,
    target_pitch: u64,
    source: u64,
    source_pitch: u64,
    width: u64,
    height: u64,
    direction: i32,
) -> Outcome<Moved> {
    if width > target_pitch || width > source_pitch {
        return Err(Status(12)); // cudaErrorInvalidPitchValue
    }
    copies::copy_rows(
        (target, target_pitch),
        (source, source_pitch),
        width,
        height,
        Direction::new(direction)?,
    )
}

/// `cudaMemcpy3DParms`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy3D {
    source_array: u64,
    source_at: Extent,
    source: PitchedPointer,
    target_array: u64,
    target_at: Extent,
    target: PitchedPointer,
    extent: Extent,
    kind: i32,
}

/// `cudaMemcpy3DPeerParms`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CopyPeer3D {
    source_array: u64,
    source_at: Extent,
    source: PitchedPointer,
    source_device: i32,
    target_array: u64,
    target_at: Extent,
    target: PitchedPointer,
    target_device: i32,
    extent: Extent,
}

fn start(pitched: &PitchedPointer, at: &Extent) -> u64 {
    pitched.address + (at.depth * pitched.height + at.height) * pitched.pitch + at.width
}

fn copy_box(
    (source, source_at): (PitchedPointer, Extent),
    (target, target_at): (PitchedPointer, Extent),
    extent: Extent,
    kind: i32,
) -> Outcome<Moved> {
    let direction = Direction::new(kind)?;
    (0..extent.depth).try_fold(Moved::default(), |moved, layer| {
        let rows = copies::copy_rows(
            (start(&target, &target_at) + layer * target.pitch * target.height, target.pitch),
            (start(&source, &source_at) + layer * source.pitch * source.height, source.pitch),
            extent.width,
            extent.height,
            direction,
        )?;
        Ok(moved + rows)
    })
}

fn copy_3d(parameters: In<Copy3D>) -> Outcome<Moved> {
    let copy = parameters.get().ok_or(Status::INVALID_VALUE)?;
    if copy.source_array != 0 || copy.target_array != 0 {
        crate::machine::count_unmodelled("cudaMemcpy3D (arrays)");
        return Err(Status::NOT_SUPPORTED);
    }
    copy_box((copy.source, copy.source_at), (copy.target, copy.target_at), copy.extent, copy.kind)
}

fn copy_3d_peer(parameters: In<CopyPeer3D>) -> Outcome<Moved> {
    let copy = parameters.get().ok_or(Status::INVALID_VALUE)?;
    if copy.source_array != 0 || copy.target_array != 0 {
        crate::machine::count_unmodelled("cudaMemcpy3DPeer (arrays)");
        return Err(Status::NOT_SUPPORTED);
    }
    machine::card(copy.source_device)?;
    machine::card(copy.target_device)?;
    copy_box((copy.source, copy.source_at), (copy.target, copy.target_at), copy.extent, 3)
}

fn fill_3d(target: PitchedPointer, value: i32, extent: Extent) -> Outcome<Moved> {
    (0..extent.depth).try_fold(Moved::default(), |moved, layer| {
        let start = target.address + layer * target.pitch * target.height;
        Ok(moved + copies::fill_rows(start, target.pitch, value as u32, 1, extent.width, extent.height)?)
    })
}

entry_points! { Runtime, Driver;
    fn cudaMemcpy(target: u64, source: u64, size: u64, direction: i32) {
        copy_and_wait(target, source, size, direction)
    }

    fn cudaMemcpyAsync(target: u64, source: u64, size: u64, direction: i32, stream: u64) {
        copy_on_stream(target, source, size, direction, stream)
    }

    fn cudaMemcpyPeer(target: u64, target_device: i32, source: u64, source_device: i32, size: u64) {
        machine::card(target_device)?.need_context()?;
        machine::card(source_device)?.need_context()?;
        copy_and_wait(target, source, size, 3)
    }

    fn cudaMemcpyPeerAsync(
        target: u64, target_device: i32, source: u64, source_device: i32, size: u64, stream: u64,
    ) {
        machine::card(target_device)?.need_context()?;
        machine::card(source_device)?.need_context()?;
        copy_on_stream(target, source, size, 3, stream)
    }

    fn cudaMemcpy2D(
        target: u64, target_pitch: u64, source: u64, source_pitch: u64, width: u64, height: u64, direction: i32,
    ) {
        copies::run_and_wait(|| copy_2d(target, target_pitch, source, source_pitch, width, height, direction))
    }

    fn cudaMemcpy2DAsync(
        target: u64, target_pitch: u64, source: u64, source_pitch: u64, width: u64, height: u64, direction: i32,
        stream: u64,
    ) {
        copies::run_on_stream(stream, || copy_2d(target, target_pitch, source, source_pitch, width, height, direction))
    }

    fn cudaMemcpy3D(parameters: In<Copy3D>) {
        copies::run_and_wait(|| copy_3d(parameters))
    }

    fn cudaMemcpy3DAsync(parameters: In<Copy3D>, stream: u64) {
        copies::run_on_stream(stream, || copy_3d(parameters))
    }

    fn cudaMemcpy3DPeer(parameters: In<CopyPeer3D>) {
        copies::run_and_wait(|| copy_3d_peer(parameters))
    }

    fn cudaMemcpy3DPeerAsync(parameters: In<CopyPeer3D>, stream: u64) {
        copies::run_on_stream(stream, || copy_3d_peer(parameters))
    }

    fn cudaMemset(target: u64, value: i32, size: u64) {
        copies::run_and_wait(|| copies::fill(target, value as u32, 1, size))
    }

    fn cudaMemsetAsync(target: u64, value: i32, size: u64, stream: u64) {
        copies::run_on_stream(stream, || copies::fill(target, value as u32, 1, size))
    }

    fn cudaMemset2D(target: u64, pitch: u64, value: i32, width: u64, height: u64) {
        copies::run_and_wait(|| copies::fill_rows(target, pitch, value as u32, 1, width, height))
    }

    fn cudaMemset2DAsync(target: u64, pitch: u64, value: i32, width: u64, height: u64, stream: u64) {
        copies::run_on_stream(stream, || copies::fill_rows(target, pitch, value as u32, 1, width, height))
    }

    fn cudaMemset3D(target: PitchedPointer, value: i32, extent: Extent) {
        copies::run_and_wait(|| fill_3d(target, value, extent))
    }

    fn cudaMemset3DAsync(target: PitchedPointer, value: i32, extent: Extent, stream: u64) {
        copies::run_on_stream(stream, || fill_3d(target, value, extent))
    }

    fn cudaMemPrefetchAsync(address: u64, _size: u64, _to: i64, _flags: u64, _stream: u64) {
        machine::current_context()?;
        check_managed(address)
    }

    fn cudaMemPrefetchAsync_v2(address: u64, _size: u64, _to: i64, _flags: u32, _stream: u64),
    fn cuMemPrefetchAsync_v2() {
        machine::current_context()?;
        check_managed(address)
    }

    fn cudaMemAdvise(address: u64, _size: u64, _advice: i32, _to: i64) {
        machine::current_context()?;
        check_managed(address)
    }

    fn cudaMemAdvise_v2(address: u64, _size: u64, _advice: i32, _to: i64),
    fn cuMemAdvise_v2() {
        machine::current_context()?;
        check_managed(address)
    }

    fn cudaMemcpyWithAttributesAsync(target: u64, source: u64, size: u64, _attributes: In<u64>, stream: u64) {
        copy_on_stream(target, source, size, 4, stream)
    }

    fn cudaMemcpyBatchAsync(
        targets: In<u64>, sources: In<u64>, sizes: In<u64>, count: u64,
        _attributes: In<u64>, _indices: In<u64>, _attribute_count: u64, last: u64, stream: u64,
    ) {
        // In CUDA 12, a pointer to the index of the first failed copy precedes the stream.
        let stream = if crate::versions::major() >= 13 { last } else { stream };
        let copy = |moved, index| {
            let each = (targets.get_at(index), sources.get_at(index), sizes.get_at(index));
            let (Some(target), Some(source), Some(size)) = each else { return Err(Status::INVALID_VALUE) };
            Ok(moved + copies::copy(target, source, size, Direction::Default)?)
        };
        copies::run_on_stream(stream, || (0..count as usize).try_fold(Moved::default(), copy))
    }
}

/// Checks the address of a prefetch or an advice. Both apply to managed memory only, and have no effect here.
fn check_managed(address: u64) -> Outcome {
    match crate::space::find(address) {
        Some(block) if block.kind == crate::space::Kind::Managed => Ok(()),
        _ => Err(Status::INVALID_VALUE),
    }
}
