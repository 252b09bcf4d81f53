//! The mathematics and communication libraries, as PyTorch calls them: cuBLAS, cuDNN, cuSOLVER, NCCL and the
//! rest.
//!
//! Nothing is computed. What is kept true is what decides memory and control flow: workspace sizes, reserve
//! spaces, plans, descriptors that give back what was set, communicators that know their size and rank.
//! cuDNN's answers are the real library's own, asked without a device; where a size cannot be had from the
//! library, it comes from a formula that is written beside it, and `fidelity` says so.
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
