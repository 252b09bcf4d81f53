//! What one process's allocator did.

use memfit_levers::{Category, Phase};

use crate::{TextId, Texts};

/// The index of a moment that did not come: a block that was never given back, a call that did not end.
pub const NEVER: u32 = u32::MAX;

/// What one process's allocator did, in order. Indices of moments are its clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Track {
    /// The process.
    pub pid: u32,
    /// The process's rank, where it is one of several.
    pub rank: Option<u32>,
    /// Whether the end is missing.
    pub truncated: bool,
    /// The texts that the rest refers to.
    pub texts: Texts,
    /// What happened, in order.
    pub moments: Vec<Moment>,
    /// The blocks, in the order in which they were handed out.
    pub blocks: Vec<Block>,
    /// The modules' calls, in the order in which they began.
    pub calls: Vec<Call>,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// What.
    pub kind: MomentKind,
    /// The device, for what concerns one.
    pub device: u8,
    /// Bytes in blocks on the device after it.
    pub allocated: u64,
    /// Bytes in segments on the device after it.
    pub reserved: u64,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MomentKind {
    /// A block was handed out: its index in [`Track::blocks`].
    Alloc(u32),
    /// A block was given back.
    Free(u32),
    /// A phase began.
    Phase(Phase),
    /// So many steps were complete.
    Step(u32),
    /// A module's call began: its index in [`Track::calls`].
    Enter(u32),
    /// A module's call ended.
    Exit(u32),
    /// A request for so many bytes could not be served.
    Oom(u64),
}

/// A block of memory, from when it was handed out to when it was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Where it was.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// What was asked for, where that is known.
    pub requested: Option<u64>,
    /// The moment when it was handed out.
    pub born: u32,
    /// The moment when it was given back, or [`NEVER`].
    pub freed: u32,
    /// The innermost module call that it was made in: its index in [`Track::calls`], or [`NEVER`].
    pub call: u32,
    /// The innermost module that it was made for, in the forward or in the backward.
    pub module: TextId,
    /// The module that its tensor belongs to, where that was told.
    pub owner: TextId,
    /// Steps that were complete when it was made.
    pub step: u32,
    /// The thread that asked for it.
    pub thread: u32,
    /// The device.
    pub device: u8,
    /// The phase in which it was made.
    pub phase: Phase,
    /// What it was told to be for.
    pub noted: Option<Category>,
}

impl Block {
    /// Whether it was in use right after the moment with this index.
    pub fn is_live_at(&self, moment: u32) -> bool {
        self.born <= moment && moment < self.freed
    }
}

/// A module's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The module's name.
    pub module: TextId,
    /// The thread that it ran on.
    pub thread: u32,
    /// The call around it, or [`NEVER`].
    pub parent: u32,
    /// The moment when it began.
    pub began: u32,
    /// The moment when it ended, or [`NEVER`].
    pub ended: u32,
}

impl Track {
    /// The devices that blocks were on, in ascending order.
    pub fn devices(&self) -> Vec<u8> {
        let mut seen = [false; 256];
        self.blocks.iter().for_each(|block| seen[usize::from(block.device)] = true);
        (0..=u8::MAX).filter(|&device| seen[usize::from(device)]).collect()
    }

    /// The moments when phases began, with the phase.
    pub fn phases(&self) -> impl Iterator<Item = (u32, Phase)> + '_ {
        (0..).zip(&self.moments).filter_map(|(index, moment)| match moment.kind {
            MomentKind::Phase(phase) => Some((index, phase)),
            _ => None,
        })
    }
}
