//! `memfit.gpus/1` and `memfit.gpu/1`: the catalogue.

use memfit_devices::{Device, Overhead};
use serde::Serialize;

use super::schema;

/// All GPUs.
#[derive(Debug, Serialize)]
pub struct GpuList<'a> {
    /// [`schema::GPUS`].
    pub schema: &'static str,
    /// The GPUs, in the catalogue's order.
    pub gpus: Vec<&'a Device>,
}

impl<'a> GpuList<'a> {
    /// A list of GPUs.
    pub fn new(gpus: impl IntoIterator<Item = &'a Device>) -> Self {
        Self { schema: schema::GPUS, gpus: gpus.into_iter().collect() }
    }
}

/// One GPU, with the memory outside PyTorch's allocator on it.
#[derive(Debug, Serialize)]
pub struct GpuReport<'a> {
    /// [`schema::GPU`].
    pub schema: &'static str,
    /// The GPU.
    pub gpu: &'a Device,
    /// Memory outside PyTorch's allocator, for torch builds with CUDA 12 and 13.
    pub outside: OutsideByCuda,
}

/// Overheads by CUDA's major version.
#[derive(Debug, Serialize)]
pub struct OutsideByCuda {
    /// Builds of torch for CUDA 12.
    pub cuda_12: Overhead,
    /// Builds of torch for CUDA 13.
    pub cuda_13: Overhead,
}

impl<'a> GpuReport<'a> {
    /// The report on a GPU.
    pub fn new(gpu: &'a Device) -> Self {
        let outside = OutsideByCuda { cuda_12: gpu.overhead(12), cuda_13: gpu.overhead(13) };
        Self { schema: schema::GPU, gpu, outside }
    }
}
