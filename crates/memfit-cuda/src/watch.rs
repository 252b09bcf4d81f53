//! Reports from the device to the watcher library in the same process, if it is loaded.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::sync::OnceLock;

use memfit_vocabulary::Category;

use crate::{machine::Card, versions::find_symbol};

/// Labels the block at a device address with a category.
pub(crate) fn label_block(address: u64, category: Category) {
    static NOTE: OnceLock<Option<extern "C" fn(u64, u8)>> = OnceLock::new();
    let note = NOTE.get_or_init(|| {
        let symbol = find_symbol(c"memfit_watch_note")?;
        // SAFETY: the watcher library exports a function of this type under this name.
        Some(unsafe { std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn(u64, u8)>(symbol) })
    });
    if let Some(note) = note {
        note(address, category.code());
    }
}

/// Reports a block that a device's pool handed out (or took back, if `bytes` is negative), with the pool's
/// used and reserved bytes.
pub(crate) fn report_pool_block(card: &Card, address: u64, bytes: i64, (used, reserved): (u64, u64)) {
    type Block = extern "C" fn(u32, u64, i64, u64, u64);
    static BLOCK: OnceLock<Option<Block>> = OnceLock::new();
    let block = BLOCK.get_or_init(|| {
        let symbol = find_symbol(c"memfit_watch_block")?;
        // SAFETY: the watcher library exports a function of this type under this name.
        Some(unsafe { std::mem::transmute::<*mut std::ffi::c_void, Block>(symbol) })
    });
    if let Some(block) = block {
        block(card.ordinal, address, bytes, used, reserved);
    }
}
