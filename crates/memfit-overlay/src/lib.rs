//! The files of a dry run: a layer in the run directory in front of the user's own files.
//!
//! A dry run must not touch what the user has: its weights are zeros. Yet a script must find what it has just
//! written. So some changes go to a layer in the run directory, and every process of the run looks there
//! first:
//!
//! * checkpoints, by whatever name: the file that `torch.save` or safetensors is writing ([`checkpoints`]);
//! * whatever would overwrite, remove or rename a file that the run did not make itself;
//! * whatever is done in a folder that only the layer has.
//!
//! Everything else (new logs, new caches, appended lines) goes to the user's disk, as without memfit.
//!
//! [`layer`] owns the representation on disk, `walk` follows a path through both layers, [`decide`] and
//! [`moves`] decide where a call goes, `listing` merges the entries of a folder, `sparse` leaves out zeros.
//! [`calls`], [`writes`] and [`folders`]
//! are the C library's functions that a process calls in place of its own. The
//! decisions are made with system calls of their own, so that they do not come back here.
//!
//! Two kinds of files are left alone: what is not a regular file, a folder or a symbolic link, and compiled
//! programs and libraries, which the kernel and the loader would open without asking here. Without a layer in
//! the run directory the library passes every call on.

pub mod calls;
pub mod checkpoints;
pub mod decide;
pub mod folders;
pub mod layer;
mod listing;
pub mod moves;
mod next;
mod sparse;
mod walk;
pub mod writes;
