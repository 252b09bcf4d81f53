//! Interposed functions of the C library that list folders: they add entries of the overlay, and omit those
//! it hides.

#![allow(unsafe_code, reason = "functions of the C library are interposed")]
#![allow(clippy::missing_safety_doc, reason = "each is called like the C library's function")]
#![allow(missing_docs, reason = "each has the name of a C library function")]

use std::{
    ffi::{CStr, CString, c_char, c_int},
    mem,
    panic::{self, AssertUnwindSafe},
    path::PathBuf,
    ptr,
    sync::atomic::{AtomicPtr, AtomicUsize, Ordering},
};

use libc::{DIR, dirent64};
use rustix::fs::FileType;

use crate::{
    decide::{Name, Route, folder_path},
    layer::Layer,
    listing::Listing,
    next::{next, set_errno},
};

/// Maximum modified folders that can be listed at the same time.
const MAX_OPEN: usize = 256;

/// A folder that is being listed with the overlay's changes.
struct Open {
    listing: Listing,
    /// Index of the next added entry.
    next: usize,
    /// Storage for the entry that the last call returned.
    entry: dirent64,
}

/// Open modified folders, by stream. A stream belongs to one thread.
struct Slot {
    stream: AtomicPtr<DIR>,
    open: AtomicPtr<Open>,
}

static SLOTS: [Slot; MAX_OPEN] =
    [const { Slot { stream: AtomicPtr::new(ptr::null_mut()), open: AtomicPtr::new(ptr::null_mut()) } };
        MAX_OPEN];
/// Number of slots in use; usually 0.
static OPEN_COUNT: AtomicUsize = AtomicUsize::new(0);

fn slot(stream: *mut DIR) -> Option<&'static Slot> {
    if OPEN_COUNT.load(Ordering::Acquire) == 0 || stream.is_null() {
        return None;
    }
    SLOTS.iter().find(|slot| slot.stream.load(Ordering::Acquire) == stream)
}

/// Registers a stream for a modified listing. If no slot is free, the listing is unmodified.
fn register_stream(stream: *mut DIR, listing: Listing) {
    // SAFETY: a zeroed `dirent64` is valid.
    let open = Box::new(Open { listing, next: 0, entry: unsafe { mem::zeroed() } });
    let free = SLOTS.iter().find(|slot| {
        slot.stream.compare_exchange(ptr::null_mut(), stream, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    });
    if let Some(slot) = free {
        slot.open.store(Box::into_raw(open), Ordering::Release);
        OPEN_COUNT.fetch_add(1, Ordering::AcqRel);
    }
}

fn unregister_stream(stream: *mut DIR) {
    if let Some(slot) = slot(stream) {
        let open = slot.open.swap(ptr::null_mut(), Ordering::AcqRel);
        slot.stream.store(ptr::null_mut(), Ordering::Release);
        OPEN_COUNT.fetch_sub(1, Ordering::AcqRel);
        if !open.is_null() {
            // SAFETY: it came from a box, and only this stream's owner has it.
            drop(unsafe { Box::from_raw(open) });
        }
    }
}

/// Changes of a folder's entries by the overlay, and the route to list it.
fn folder_changes(name: Name<'_>) -> (Route, Option<Listing>) {
    let decide = || {
        let Some(layer) = Layer::get().filter(|layer| layer.is_live()) else { return (Route::Pass, None) };
        let found = match layer.find(name, true) {
            None => return (Route::Pass, None),
            Some(Err(lost)) => return (Route::lost(lost), None),
            Some(Ok(found)) => found,
        };
        (layer.route_found(&found), layer.listing(&found.path).ok())
    };
    panic::catch_unwind(AssertUnwindSafe(decide)).unwrap_or((Route::Pass, None))
}

fn opened(stream: *mut DIR, listing: Option<Listing>) -> *mut DIR {
    if let Some(listing) = listing.filter(|_| !stream.is_null()) {
        register_stream(stream, listing);
    }
    stream
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    let next = |path| next!(c"opendir" as fn(*const c_char) -> *mut DIR, path; else ptr::null_mut());
    if path.is_null() {
        return next(path);
    }
    // SAFETY: the caller's string.
    let name = Name { folder: libc::AT_FDCWD, path: unsafe { CStr::from_ptr(path) }.to_bytes() };
    match folder_changes(name) {
        (Route::At(place), listing) => opened(next(place.as_ptr()), listing),
        (Route::Fail(error), _) => {
            set_errno(error);
            ptr::null_mut()
        }
        (_, listing) => opened(next(path), listing),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopendir(folder: c_int) -> *mut DIR {
    let stream = next!(c"fdopendir" as fn(c_int) -> *mut DIR, folder; else ptr::null_mut());
    let path = folder_path(folder)
        .ok()
        .and_then(|path: PathBuf| CString::new(path.into_os_string().into_encoded_bytes()).ok());
    let Some(path) = path.filter(|_| !stream.is_null()) else { return stream };
    let (_, listing) = folder_changes(Name { folder: libc::AT_FDCWD, path: path.to_bytes() });
    opened(stream, listing)
}

fn read(stream: *mut DIR) -> *mut dirent64 {
    let next = || next!(c"readdir64" as fn(*mut DIR) -> *mut dirent64, stream; else ptr::null_mut());
    let Some(slot) = slot(stream) else { return next() };
    let open = slot.open.load(Ordering::Acquire);
    if open.is_null() {
        return next();
    }
    // SAFETY: only the stream's owner has it, and the C library allows one call per stream at a time.
    let open = unsafe { &mut *open };
    loop {
        let entry = next();
        if entry.is_null() {
            return open.add();
        }
        // SAFETY: the C library has just written a string there.
        let name = unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) }.to_bytes();
        if !open.listing.hidden.contains(name) {
            return entry;
        }
    }
}

impl Open {
    /// Returns the next added entry.
    fn add(&mut self) -> *mut dirent64 {
        let Some((name, kind)) = self.listing.added.get(self.next) else { return ptr::null_mut() };
        self.next += 1;
        let entry = &mut self.entry;
        entry.d_ino = self.next as u64;
        entry.d_off = i64::MAX;
        entry.d_reclen = mem::size_of::<dirent64>() as u16;
        entry.d_type = match kind {
            FileType::Directory => libc::DT_DIR,
            FileType::Symlink => libc::DT_LNK,
            FileType::RegularFile => libc::DT_REG,
            _ => libc::DT_UNKNOWN,
        };
        let length = name.len().min(entry.d_name.len() - 1);
        for (place, byte) in entry.d_name.iter_mut().zip(&name[..length]) {
            *place = *byte as c_char;
        }
        entry.d_name[length] = 0;
        entry
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir(stream: *mut DIR) -> *mut dirent64 {
    read(stream)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir64(stream: *mut DIR) -> *mut dirent64 {
    read(stream)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rewinddir(stream: *mut DIR) {
    if let Some(open) =
        slot(stream).map(|slot| slot.open.load(Ordering::Acquire)).filter(|open| !open.is_null())
    {
        // SAFETY: only the stream's owner has it.
        unsafe { (*open).next = 0 };
    }
    next!(c"rewinddir" as fn(*mut DIR) -> (), stream; else ());
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn closedir(stream: *mut DIR) -> c_int {
    unregister_stream(stream);
    next!(c"closedir" as fn(*mut DIR) -> c_int, stream; else -1)
}
