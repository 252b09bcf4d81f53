//! Mathematics and communication libraries, as PyTorch calls them: cuBLAS, cuDNN, cuSOLVER, NCCL and others.
//!
//! Nothing is computed. Everything that determines memory and control flow is faithful: workspace sizes,
//! reserve spaces, plans, descriptors that return their settings, communicators that know their size and
//! rank. cuDNN's answers come from the real library, obtained without a device. If a library cannot report a
//! size, a documented formula computes it, and `fidelity` reports that.
//!
//! These modules know the device only through [`memfit_cuda::card`].

#![allow(non_snake_case, reason = "exported names are the libraries'")]

mod cost;
mod cublas;
mod cublaslt;
mod cudnn;
mod cufft;
mod cupti;
mod curand;
mod cusolver;
mod cusparse;
mod entry;
mod nccl;
mod numbers;
mod nvrtc;
mod overwritten;
mod real;
mod static_runtime;
mod stubs;

use memfit_cuda::report_refusal;
