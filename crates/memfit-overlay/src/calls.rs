//! Interposed functions of the C library that take a path.
//!
//! Each asks the overlay for the target of its call ([`crate::decide`], [`crate::moves`]), and makes the
//! system call that the C library's own function would make.

#![allow(unsafe_code, reason = "functions of the C library are interposed")]
#![allow(clippy::missing_safety_doc, reason = "each is called like the C library's function")]
#![allow(missing_docs, reason = "each has the name of a C library function")]

use std::{
    ffi::{CStr, c_char, c_int, c_long, c_uint, c_void},
    os::{fd::BorrowedFd, unix::ffi::OsStrExt as _},
    panic::{self, AssertUnwindSafe},
    ptr,
};

use libc::{AT_FDCWD, AT_SYMLINK_NOFOLLOW, mode_t, size_t, ssize_t, stat as Stat};
use rustix::{fs, io::Errno};

use crate::{
    decide::{Name, Route},
    layer::Layer,
    next::{next, set_errno},
};

/// Decides a call; a panic in this library must not reach the script.
fn decide_call(path: *const c_char, decide: impl FnOnce(&'static Layer, &[u8]) -> Route) -> Route {
    if path.is_null() {
        return Route::Pass;
    }
    panic::catch_unwind(AssertUnwindSafe(|| {
        let Some(layer) = Layer::get() else { return Route::Pass };
        // SAFETY: the caller's string, which is not null.
        decide(layer, unsafe { CStr::from_ptr(path) }.to_bytes())
    }))
    .unwrap_or(Route::Pass)
}

/// Makes a call with a path on the route that was decided.
fn call(
    folder: c_int,
    path: *const c_char,
    decide: impl FnOnce(&'static Layer, Name<'_>) -> Route,
    make: impl Fn(c_int, *const c_char) -> c_long,
) -> c_long {
    match decide_call(path, |layer, path| decide(layer, Name { folder, path })) {
        Route::Pass => make(folder, path),
        Route::Make => record_created(make(folder, path), folder, path),
        Route::At(place) => make(AT_FDCWD, place.as_ptr()),
        Route::MakeAt(place) => record_created(make(AT_FDCWD, place.as_ptr()), AT_FDCWD, place.as_ptr()),
        Route::Done => 0,
        Route::Fail(error) => fail(error),
    }
}

fn fail(error: Errno) -> c_long {
    set_errno(error);
    -1
}

/// Records the file that a successful call has created.
fn record_created(result: c_long, folder: c_int, path: *const c_char) -> c_long {
    if result >= 0
        && let Some(layer) = Layer::get()
    {
        // SAFETY: both are arguments of the call that has just succeeded.
        let (folder, path) = unsafe { (BorrowedFd::borrow_raw(folder), CStr::from_ptr(path)) };
        if let Ok(stat) = fs::statat(folder, path, fs::AtFlags::SYMLINK_NOFOLLOW) {
            layer.note_made(&stat);
        }
    }
    result
}

/// Makes a system call.
macro_rules! system {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: the caller's own arguments, or paths of this library's, passed on to the kernel.
        unsafe { libc::syscall(libc::$number $(, $argument)*) }
    };
}

/// Declares functions of the C library.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result $body
        )*
    };
}

// Opening

fn open_at(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let make = |folder: c_int, path: *const c_char| system!(SYS_openat, folder, path, flags, mode);
    call(folder, path, |layer, name| layer.open(name, flags), make) as c_int
}

const CREATE: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

functions! {
    // A variadic function is called like any other here: the mode is passed as a third argument.
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int { open_at(AT_FDCWD, path, flags, mode) }
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int { open_at(AT_FDCWD, path, flags, mode) }
    fn __open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int { open_at(AT_FDCWD, path, flags, mode) }
    fn __open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int { open_at(AT_FDCWD, path, flags, mode) }
    fn __open_2(path: *const c_char, flags: c_int) -> c_int { open_at(AT_FDCWD, path, flags, 0) }
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int { open_at(AT_FDCWD, path, flags, 0) }
    fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(folder, path, flags, mode)
    }
    fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(folder, path, flags, mode)
    }
    fn __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int { open_at(folder, path, flags, 0) }
    fn __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int { open_at(folder, path, flags, 0) }
    fn creat(path: *const c_char, mode: mode_t) -> c_int { open_at(AT_FDCWD, path, CREATE, mode) }
    fn creat64(path: *const c_char, mode: mode_t) -> c_int { open_at(AT_FDCWD, path, CREATE, mode) }
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE { open_stream(path, mode) }
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE { open_stream(path, mode) }
}

/// `fopen`: opens through a descriptor if the script belongs to a run.
fn open_stream(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    if path.is_null() || mode.is_null() || Layer::get().is_none() {
        return next!(c"fopen64" as fn(*const c_char, *const c_char) -> *mut libc::FILE, path, mode; else ptr::null_mut());
    }
    // SAFETY: the caller's string.
    let words = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let words = words.split(|byte| *byte == b',').next().unwrap_or_default();
    let access = if words.contains(&b'+') {
        libc::O_RDWR
    } else if words.starts_with(b"r") {
        libc::O_RDONLY
    } else {
        libc::O_WRONLY
    };
    let create = match words.first() {
        Some(b'w') => libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => libc::O_CREAT | libc::O_APPEND,
        Some(b'r') => 0,
        _ => {
            set_errno(Errno::INVAL);
            return ptr::null_mut();
        }
    };
    let exclusive = if words.contains(&b'x') { libc::O_EXCL } else { 0 };
    let closes = if words.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    let file = open_at(AT_FDCWD, path, access | create | exclusive | closes, 0o666);
    if file < 0 {
        return ptr::null_mut();
    }
    // SAFETY: an open descriptor and the caller's own mode, which allows no more access than it was opened
    // with.
    let stream = unsafe { libc::fdopen(file, mode) };
    if stream.is_null() {
        // SAFETY: the descriptor belongs to this function.
        unsafe { libc::close(file) };
    }
    stream
}

// Reading metadata

fn stat_at(folder: c_int, path: *const c_char, stat: *mut Stat, flags: c_int) -> c_int {
    let follow = flags & AT_SYMLINK_NOFOLLOW == 0;
    let make = |folder: c_int, path: *const c_char| system!(SYS_newfstatat, folder, path, stat, flags);
    call(folder, path, |layer, name| layer.route_read(name, follow), make) as c_int
}

fn access_at(folder: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    let follow = flags & AT_SYMLINK_NOFOLLOW == 0;
    let make = |folder: c_int, path: *const c_char| match flags {
        0 => system!(SYS_faccessat, folder, path, mode),
        _ => system!(SYS_faccessat2, folder, path, mode, flags),
    };
    call(folder, path, |layer, name| layer.route_read(name, follow), make) as c_int
}

fn read_link_at(folder: c_int, path: *const c_char, buffer: *mut c_char, size: size_t) -> ssize_t {
    let make = |folder: c_int, path: *const c_char| system!(SYS_readlinkat, folder, path, buffer, size);
    call(folder, path, |layer, name| layer.route_read(name, false), make) as ssize_t
}

functions! {
    fn stat(path: *const c_char, stat: *mut Stat) -> c_int { stat_at(AT_FDCWD, path, stat, 0) }
    fn stat64(path: *const c_char, stat: *mut Stat) -> c_int { stat_at(AT_FDCWD, path, stat, 0) }
    fn lstat(path: *const c_char, stat: *mut Stat) -> c_int { stat_at(AT_FDCWD, path, stat, AT_SYMLINK_NOFOLLOW) }
    fn lstat64(path: *const c_char, stat: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, stat, AT_SYMLINK_NOFOLLOW)
    }
    fn fstatat(folder: c_int, path: *const c_char, stat: *mut Stat, flags: c_int) -> c_int {
        stat_at(folder, path, stat, flags)
    }
    fn fstatat64(folder: c_int, path: *const c_char, stat: *mut Stat, flags: c_int) -> c_int {
        stat_at(folder, path, stat, flags)
    }
    fn __xstat(_version: c_int, path: *const c_char, stat: *mut Stat) -> c_int { stat_at(AT_FDCWD, path, stat, 0) }
    fn __xstat64(_version: c_int, path: *const c_char, stat: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, stat, 0)
    }
    fn __lxstat(_version: c_int, path: *const c_char, stat: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, stat, AT_SYMLINK_NOFOLLOW)
    }
    fn __lxstat64(_version: c_int, path: *const c_char, stat: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, stat, AT_SYMLINK_NOFOLLOW)
    }
    fn __fxstatat(_version: c_int, folder: c_int, path: *const c_char, stat: *mut Stat, flags: c_int) -> c_int {
        stat_at(folder, path, stat, flags)
    }
    fn __fxstatat64(_version: c_int, folder: c_int, path: *const c_char, stat: *mut Stat, flags: c_int) -> c_int {
        stat_at(folder, path, stat, flags)
    }
    fn statx(folder: c_int, path: *const c_char, flags: c_int, mask: c_uint, buffer: *mut c_void) -> c_int {
        let follow = flags & AT_SYMLINK_NOFOLLOW == 0;
        let make = |folder: c_int, path: *const c_char| system!(SYS_statx, folder, path, flags, mask, buffer);
        call(folder, path, |layer, name| layer.route_read(name, follow), make) as c_int
    }
    fn access(path: *const c_char, mode: c_int) -> c_int { access_at(AT_FDCWD, path, mode, 0) }
    fn eaccess(path: *const c_char, mode: c_int) -> c_int { access_at(AT_FDCWD, path, mode, libc::AT_EACCESS) }
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int { access_at(AT_FDCWD, path, mode, libc::AT_EACCESS) }
    fn faccessat(folder: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        access_at(folder, path, mode, flags)
    }
    fn readlink(path: *const c_char, buffer: *mut c_char, size: size_t) -> ssize_t {
        read_link_at(AT_FDCWD, path, buffer, size)
    }
    fn readlinkat(folder: c_int, path: *const c_char, buffer: *mut c_char, size: size_t) -> ssize_t {
        read_link_at(folder, path, buffer, size)
    }
    fn __readlink_chk(path: *const c_char, buffer: *mut c_char, size: size_t, _room: size_t) -> ssize_t {
        read_link_at(AT_FDCWD, path, buffer, size)
    }
    fn __readlinkat_chk(
        folder: c_int, path: *const c_char, buffer: *mut c_char, size: size_t, _room: size_t
    ) -> ssize_t {
        read_link_at(folder, path, buffer, size)
    }
    fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char { real_path(path, resolved) }
    fn __realpath_chk(path: *const c_char, resolved: *mut c_char, _room: size_t) -> *mut c_char {
        real_path(path, resolved)
    }
}

fn real_path(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    let mut found = None;
    let route = decide_call(path, |layer, path| {
        if !layer.is_live() {
            return Route::Pass;
        }
        match layer.find(Name { folder: AT_FDCWD, path }, true) {
            Some(Ok(end)) if layer.route_found(&end) != Route::Pass && end.is_there() => {
                found = Some(end.path.as_os_str().as_bytes().to_vec());
                Route::Done
            }
            _ => Route::Pass,
        }
    });
    let found = found.filter(|found| route == Route::Done && found.len() < libc::PATH_MAX as usize);
    let Some(mut found) = found else {
        return next!(c"realpath" as fn(*const c_char, *mut c_char) -> *mut c_char, path, resolved; else ptr::null_mut());
    };
    found.push(0);
    // SAFETY: a buffer from the caller has space for a path of this length; another is allocated here.
    unsafe {
        let target = if resolved.is_null() { libc::malloc(found.len()).cast() } else { resolved };
        if !target.is_null() {
            ptr::copy_nonoverlapping(found.as_ptr().cast(), target, found.len());
        }
        target
    }
}

// Attributes of files

/// Makes a call that reads or changes a file's attributes.
fn change_attributes(
    folder: c_int,
    path: *const c_char,
    follow: bool,
    make: impl Fn(c_int, *const c_char) -> c_long,
) -> c_long {
    call(folder, path, |layer, name| layer.route_read(name, follow), make)
}

functions! {
    fn chmod(path: *const c_char, mode: mode_t) -> c_int {
        change_attributes(AT_FDCWD, path, true, |folder, path| system!(SYS_fchmodat, folder, path, mode)) as c_int
    }
    fn fchmodat(folder: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
        change_attributes(folder, path, flags & AT_SYMLINK_NOFOLLOW == 0, |folder, path| {
            c_long::from(next!(
                c"fchmodat" as fn(c_int, *const c_char, mode_t, c_int) -> c_int, folder, path, mode, flags; else -1
            ))
        }) as c_int
    }
    fn chown(path: *const c_char, owner: c_uint, group: c_uint) -> c_int {
        change_attributes(AT_FDCWD, path, true, |folder, path| system!(SYS_fchownat, folder, path, owner, group, 0)) as c_int
    }
    fn lchown(path: *const c_char, owner: c_uint, group: c_uint) -> c_int {
        change_attributes(AT_FDCWD, path, false, |folder, path| {
            system!(SYS_fchownat, folder, path, owner, group, AT_SYMLINK_NOFOLLOW)
        }) as c_int
    }
    fn fchownat(folder: c_int, path: *const c_char, owner: c_uint, group: c_uint, flags: c_int) -> c_int {
        change_attributes(folder, path, flags & AT_SYMLINK_NOFOLLOW == 0, |folder, path| {
            system!(SYS_fchownat, folder, path, owner, group, flags)
        }) as c_int
    }
    fn utimensat(folder: c_int, path: *const c_char, times: *const c_void, flags: c_int) -> c_int {
        change_attributes(folder, path, flags & AT_SYMLINK_NOFOLLOW == 0, |folder, path| {
            system!(SYS_utimensat, folder, path, times, flags)
        }) as c_int
    }
    // ARM has no system calls for these two.
    fn utimes(path: *const c_char, times: *const c_void) -> c_int {
        change_attributes(AT_FDCWD, path, true, |_, path| {
            c_long::from(next!(c"utimes" as fn(*const c_char, *const c_void) -> c_int, path, times; else -1))
        }) as c_int
    }
    fn utime(path: *const c_char, times: *const c_void) -> c_int {
        change_attributes(AT_FDCWD, path, true, |_, path| {
            c_long::from(next!(c"utime" as fn(*const c_char, *const c_void) -> c_int, path, times; else -1))
        }) as c_int
    }
    fn getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t {
        change_attributes(AT_FDCWD, path, true, |_, path| system!(SYS_getxattr, path, name, value, size)) as ssize_t
    }
    fn lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t {
        change_attributes(AT_FDCWD, path, false, |_, path| system!(SYS_lgetxattr, path, name, value, size)) as ssize_t
    }
    fn listxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t {
        change_attributes(AT_FDCWD, path, true, |_, path| system!(SYS_listxattr, path, list, size)) as ssize_t
    }
    fn llistxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t {
        change_attributes(AT_FDCWD, path, false, |_, path| system!(SYS_llistxattr, path, list, size)) as ssize_t
    }
    fn setxattr(path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int {
        change_attributes(AT_FDCWD, path, true, |_, path| system!(SYS_setxattr, path, name, value, size, flags)) as c_int
    }
    fn lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int {
        change_attributes(AT_FDCWD, path, false, |_, path| system!(SYS_lsetxattr, path, name, value, size, flags)) as c_int
    }
    fn truncate(path: *const c_char, length: i64) -> c_int {
        call(AT_FDCWD, path, Layer::truncate, |_, path| system!(SYS_truncate, path, length)) as c_int
    }
    fn truncate64(path: *const c_char, length: i64) -> c_int {
        call(AT_FDCWD, path, Layer::truncate, |_, path| system!(SYS_truncate, path, length)) as c_int
    }
    fn chdir(path: *const c_char) -> c_int {
        change_attributes(AT_FDCWD, path, true, |_, path| system!(SYS_chdir, path)) as c_int
    }
    fn getcwd(buffer: *mut c_char, size: size_t) -> *mut c_char {
        let result = next!(c"getcwd" as fn(*mut c_char, size_t) -> *mut c_char, buffer, size; else ptr::null_mut());
        if !result.is_null() && let Some(layer) = Layer::get() {
            // SAFETY: the C library has just written a string there.
            let path = unsafe { CStr::from_ptr(result) }.to_bytes();
            let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
            if let Some(outside) = layer.outside(path).map(<[u8]>::to_vec) {
                // SAFETY: the outside path is shorter than the one that was written.
                unsafe {
                    ptr::copy_nonoverlapping(outside.as_ptr().cast(), result, outside.len());
                    *result.add(outside.len()) = 0;
                }
            }
        }
        result
    }
}

// Directory entries

fn unlink_at(folder: c_int, path: *const c_char) -> c_int {
    call(folder, path, Layer::unlink, |folder, path| system!(SYS_unlinkat, folder, path, 0)) as c_int
}

fn rmdir_at(folder: c_int, path: *const c_char) -> c_int {
    let make = |folder: c_int, path: *const c_char| system!(SYS_unlinkat, folder, path, libc::AT_REMOVEDIR);
    call(folder, path, Layer::rmdir, make) as c_int
}

fn mkdir_at(folder: c_int, path: *const c_char, mode: mode_t) -> c_int {
    let make = |folder: c_int, path: *const c_char| system!(SYS_mkdirat, folder, path, mode);
    call(folder, path, |layer, name| layer.mkdir(name, mode), make) as c_int
}

fn symlink_at(target: *const c_char, folder: c_int, path: *const c_char) -> c_int {
    let make = |folder: c_int, path: *const c_char| system!(SYS_symlinkat, target, folder, path);
    if target.is_null() {
        return make(folder, path) as c_int;
    }
    // SAFETY: the caller's string, which is not null.
    let words = unsafe { CStr::from_ptr(target) }.to_bytes();
    call(folder, path, |layer, name| layer.symlink(words, name), make) as c_int
}

/// Makes a call with two paths, routed by the second one's folder.
fn call_with_two_paths(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    decide: impl FnOnce(&'static Layer, Name<'_>, Name<'_>) -> Route,
    make: impl Fn() -> c_long,
) -> c_int {
    let route = decide_call(from.1, |layer, path| {
        let from = Name { folder: from.0, path };
        decide_call(to.1, |_, path| decide(layer, from, Name { folder: to.0, path }))
    });
    match route {
        Route::Done => 0,
        Route::Fail(error) => fail(error) as c_int,
        _ => make() as c_int,
    }
}

fn rename_at(from: (c_int, *const c_char), to: (c_int, *const c_char), flags: c_uint) -> c_int {
    call_with_two_paths(
        from,
        to,
        |layer, from, to| layer.rename_to(from, to, flags),
        || match flags {
            0 => system!(SYS_renameat, from.0, from.1, to.0, to.1),
            _ => system!(SYS_renameat2, from.0, from.1, to.0, to.1, flags),
        },
    )
}

fn link_at(from: (c_int, *const c_char), to: (c_int, *const c_char), flags: c_int) -> c_int {
    let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
    call_with_two_paths(
        from,
        to,
        |layer, from, to| layer.link(from, to, follow),
        || system!(SYS_linkat, from.0, from.1, to.0, to.1, flags),
    )
}

functions! {
    fn unlink(path: *const c_char) -> c_int { unlink_at(AT_FDCWD, path) }
    fn rmdir(path: *const c_char) -> c_int { rmdir_at(AT_FDCWD, path) }
    fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
        if flags & libc::AT_REMOVEDIR == 0 { unlink_at(folder, path) } else { rmdir_at(folder, path) }
    }
    fn remove(path: *const c_char) -> c_int {
        match unlink_at(AT_FDCWD, path) {
            // SAFETY: the address of this thread's `errno`.
            -1 if unsafe { *libc::__errno_location() } == libc::EISDIR => rmdir_at(AT_FDCWD, path),
            result => result,
        }
    }
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int { mkdir_at(AT_FDCWD, path, mode) }
    fn mkdirat(folder: c_int, path: *const c_char, mode: mode_t) -> c_int { mkdir_at(folder, path, mode) }
    fn symlink(target: *const c_char, path: *const c_char) -> c_int { symlink_at(target, AT_FDCWD, path) }
    fn symlinkat(target: *const c_char, folder: c_int, path: *const c_char) -> c_int {
        symlink_at(target, folder, path)
    }
    fn rename(from: *const c_char, to: *const c_char) -> c_int { rename_at((AT_FDCWD, from), (AT_FDCWD, to), 0) }
    fn renameat(folder: c_int, from: *const c_char, other: c_int, to: *const c_char) -> c_int {
        rename_at((folder, from), (other, to), 0)
    }
    fn renameat2(folder: c_int, from: *const c_char, other: c_int, to: *const c_char, flags: c_uint) -> c_int {
        rename_at((folder, from), (other, to), flags)
    }
    fn link(from: *const c_char, to: *const c_char) -> c_int { link_at((AT_FDCWD, from), (AT_FDCWD, to), 0) }
    fn linkat(folder: c_int, from: *const c_char, other: c_int, to: *const c_char, flags: c_int) -> c_int {
        link_at((folder, from), (other, to), flags)
    }
}
