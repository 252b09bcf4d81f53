//! Mathematics and communication libraries, as PyTorch calls them: cuBLAS, cuDNN, cuSOLVER, NCCL and others.
//!
//! Nothing is computed. What stays faithful decides memory and control flow: workspace sizes, reserve spaces,
//! plans, descriptors that return their settings, communicators that know their size and rank. cuDNN's
//! answers are the real library's own, obtained without a device; where a library cannot tell a size, it
//! comes from a formula that is written beside it, and `fidelity` says so.
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
