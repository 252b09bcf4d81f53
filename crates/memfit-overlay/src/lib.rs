//! Files of a dry run: an overlay in the run directory in front of the user's own files.
//!
//! A dry run must not touch the user's files: its weights are zeros. Yet a script must find the files that it
//! has just written. So some changes go to an overlay in the run directory, and every process of the run
//! looks there first:
//!
//! * checkpoints under any name: files that `torch.save` or safetensors is writing ([`checkpoints`]);
//! * changes that would overwrite, remove or rename a file that the run did not create itself;
//! * changes in a folder that exists only in the overlay.
//!
//! Everything else (new logs, new caches, appended lines) goes to the user's disk, as without memfit.
//!
//! [`layer`] owns the representation on disk, `walk` resolves a path through both layers, [`decide`] and
//! [`moves`] route calls, `listing` merges the entries of a folder, `sparse` stores zeros as holes.
//! [`calls`], [`writes`] and [`folders`] are the interposed functions of the C library. Routing uses system
//! calls directly, so that they do not come back here.
//!
//! Two kinds of files are left alone: those that are not a regular file, a folder or a symbolic link, and
//! compiled programs and libraries, which the kernel and the loader would open directly. Without an overlay
//! in the run directory, the library passes every call on.

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
