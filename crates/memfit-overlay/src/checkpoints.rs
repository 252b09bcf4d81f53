//! Checkpoints that are written to a file which the script has opened itself.
//!
//! When such a file is opened, it is unknown that it will be a checkpoint. So it is redirected to the overlay
//! when the first bytes are written: the descriptor is exchanged, and the file on the user's disk is removed.

use std::{
    ffi::CStr,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd},
        unix::ffi::OsStringExt as _,
    },
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    fs::{self, FileType, Mode, OFlags, SeekFrom},
    io::Errno,
};

use crate::{layer::Layer, next};

/// First bytes of a zip archive, as PyTorch's checkpoints are.
const ZIP: &[u8] = b"PK\x03\x04";
/// First byte of a pickle, as older checkpoints are.
const PICKLE: u8 = 0x80;
/// End of the name of its first entry.
const FIRST_ENTRY: &[u8] = b"/data.pkl";
/// Maximum offset of the end of that name.
const MAX_NAME_END: usize = 30 + 256;
/// Maximum bytes of a safetensors header.
const MAX_HEADER: u64 = 100_000_000;
/// Maximum bytes before a checkpoint in a file; with more, the file is left unchanged.
const MAX_BYTES_BEFORE: u64 = 64 << 20;

/// `true` if this process has serialised a checkpoint in memory, to write it itself. Otherwise bytes that
/// look like one are a download, which is not redirected.
static IN_MEMORY: AtomicBool = AtomicBool::new(false);

/// Records that this process serialises a checkpoint in memory, or reads one from the overlay.
pub fn expect_checkpoint() {
    IN_MEMORY.store(true, Ordering::Relaxed);
}

/// Returns `true` if bytes are the beginning of a checkpoint that this process has serialised in memory.
pub(crate) fn begins_checkpoint(bytes: &[u8]) -> bool {
    IN_MEMORY.load(Ordering::Relaxed) && (is_zip(bytes) || is_safetensors(bytes))
}

/// Returns `true` if a file has the first bytes of a checkpoint: of a zip archive, a pickle, or safetensors.
pub(crate) fn is_checkpoint(path: &CStr) -> bool {
    let mut start = [0; 9];
    let read = fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| rustix::io::read(&file, &mut start));
    read.is_ok_and(|_| start.starts_with(ZIP) || start[0] == PICKLE || start[8] == b'{')
}

fn is_zip(bytes: &[u8]) -> bool {
    bytes.starts_with(ZIP)
        && bytes[..bytes.len().min(MAX_NAME_END)]
            .windows(FIRST_ENTRY.len())
            .any(|window| window == FIRST_ENTRY)
}

/// Detects a safetensors file: it begins with the length of its header, which is a JSON object.
fn is_safetensors(bytes: &[u8]) -> bool {
    let Some((length, header)) = bytes.split_first_chunk() else { return false };
    u64::from_le_bytes(*length) <= MAX_HEADER && header.starts_with(b"{\"")
}

impl Layer {
    /// Redirects an open file to the overlay, if the run has created it on the user's disk. If that fails, it
    /// stays.
    pub fn divert(&self, file: BorrowedFd<'_>) -> bool {
        self.try_divert(file).is_ok()
    }

    fn try_divert(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let stat = fs::fstat(file)?;
        let flags = fs::fcntl_getfl(file)?;
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !regular || !writes || stat.st_size as u64 > MAX_BYTES_BEFORE {
            return Err(Errno::INVAL);
        }
        let path = fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new())?;
        let path = PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes()));
        if self.outside(&path).is_some() {
            // It is in the overlay already.
            self.record_checkpoint();
            return Ok(());
        }
        let here = fs::lstat(&path)?;
        let same = (here.st_dev, here.st_ino) == (stat.st_dev, stat.st_ino);
        if !same || !self.has_made(&stat) || self.is_exempt(&path) {
            return Err(Errno::INVAL);
        }
        let at = fs::seek(file, SeekFrom::Current(0))?;
        let place = self.prepare_file(&path, &stat)?;
        if stat.st_size > 0 {
            crate::layer::copy(&path, &place)?;
        }
        let wanted = flags - OFlags::TRUNC - OFlags::CREATE - OFlags::EXCL;
        let own = fs::open(&place, wanted, Mode::empty())?;
        fs::seek(&own, SeekFrom::Start(at))?;
        next::exchange(own.as_fd(), file)?;
        self.record_checkpoint();
        self.forget_made(&stat);
        fs::unlink(&path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_put_together_here_is_a_checkpoint() {
        let mut zip = b"PK\x03\x04".to_vec();
        zip.extend([0; 26]);
        zip.extend(b"archive/data.pkl and more");
        let tensors = [&64_u64.to_le_bytes()[..], b"{\"weight\":"].concat();
        assert!(is_zip(&zip) && !is_zip(b"PK\x03\x04 of another program") && !is_zip(b"PK"));
        assert!(is_safetensors(&tensors) && !is_safetensors(b"{\"weight\": {}}"));
        assert!(!begins_checkpoint(&zip), "a download");
        expect_checkpoint();
        assert!(begins_checkpoint(&zip) && begins_checkpoint(&tensors) && !begins_checkpoint(b"step,loss"));
    }
}
