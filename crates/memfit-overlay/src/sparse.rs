//! Sparse writing: stores the zeros that a dry run's checkpoints consist of as holes.

use std::os::fd::BorrowedFd;

use rustix::{
    fs::{self, OFlags, SeekFrom},
    io::Errno,
};

use crate::layer::Layer;

/// Minimum bytes of a write; smaller ones are made unchanged.
const MIN_WRITE: usize = 64 << 10;
/// Block size for the detection of zeros.
const BLOCK: usize = 64 << 10;

static ZEROS: [u8; BLOCK] = [0; BLOCK];

impl Layer {
    /// Returns `true` if a write of `length` bytes to an open file should be sparse: it is long, and to a
    /// file of the overlay.
    pub(crate) fn leaves_out_zeros(&self, file: BorrowedFd<'_>, length: usize) -> bool {
        use std::os::fd::AsRawFd as _;
        length >= MIN_WRITE
            && self.is_live()
            && fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new()).is_ok_and(|path| {
                use std::os::unix::ffi::OsStrExt as _;
                self.outside(std::path::Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()))).is_some()
            })
    }
}

/// Writes at the file's position, with holes for zeros.
pub(crate) fn write(file: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    if fs::fcntl_getfl(file)?.contains(OFlags::APPEND) {
        return rustix::io::write(file, bytes);
    }
    let start = fs::seek(file, SeekFrom::Current(0))?;
    let written = write_at(file, bytes, start);
    fs::seek(file, SeekFrom::Start(start + *written.as_ref().unwrap_or(&0) as u64))?;
    written
}

/// Writes at an offset, with holes for zeros. The file's position afterwards is unspecified.
fn write_at(file: BorrowedFd<'_>, bytes: &[u8], start: u64) -> Result<usize, Errno> {
    // End of the last hole: no bytes up to there have been written yet.
    let mut hole_until = 0;
    let mut done = 0;
    while done < bytes.len() {
        let at = start + done as u64;
        let block = &bytes[done..bytes.len().min(done + BLOCK - (at as usize % BLOCK))];
        let until = at + block.len() as u64;
        let is_zero = *block == ZEROS[..block.len()];
        if is_zero && until > hole_until {
            hole_until = match fs::seek(file, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => u64::MAX,
                Err(_) => 0,
            };
        }
        if !(is_zero && until <= hole_until) {
            let mut part = 0;
            while part < block.len() {
                match rustix::io::pwrite(file, &block[part..], at + part as u64) {
                    Ok(0) => return Ok(done + part),
                    Ok(more) => part += more,
                    Err(Errno::INTR) => {}
                    Err(error) if done + part == 0 => return Err(error),
                    Err(_) => return Ok(done + part),
                }
            }
        }
        done += block.len();
    }
    let reached = start + done as u64;
    if reached > fs::fstat(file)?.st_size as u64 {
        fs::ftruncate(file, reached)?;
    }
    Ok(done)
}

/// Writes at an offset, with holes for zeros, and keeps the file's position.
pub(crate) fn write_elsewhere(file: BorrowedFd<'_>, bytes: &[u8], start: u64) -> Result<usize, Errno> {
    let position = fs::seek(file, SeekFrom::Current(0))?;
    let written = write_at(file, bytes, start);
    fs::seek(file, SeekFrom::Start(position))?;
    written
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read as _, Seek as _, SeekFrom},
        os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    };

    use super::*;

    #[test]
    fn zeros_are_holes_and_everything_is_read_back() {
        let mut file = tempfile::tempfile().unwrap();
        let mut bytes = vec![0_u8; 40 * BLOCK + 17];
        bytes[100] = 1;
        bytes[30 * BLOCK + 5] = 2;
        // After a header that is not aligned, as in file formats.
        assert_eq!(write(file.as_fd(), b"header").unwrap(), 6);
        assert_eq!(write(file.as_fd(), &bytes).unwrap(), bytes.len());
        assert_eq!(write(file.as_fd(), b"end").unwrap(), 3);
        assert_eq!(read(&mut file), [b"header", bytes.as_slice(), b"end"].concat());
        assert!(file.metadata().unwrap().blocks() * 512 < 5 * BLOCK as u64);
    }

    #[test]
    fn zeros_over_what_was_written_are_zeros_and_a_length_set_before_takes_no_room() {
        let mut file = tempfile::tempfile().unwrap();
        write(file.as_fd(), &vec![7; 3 * BLOCK]).unwrap();
        file.set_len(40 * BLOCK as u64).unwrap();
        file.seek(SeekFrom::Start(5)).unwrap();
        assert_eq!(write_elsewhere(file.as_fd(), &vec![0; 39 * BLOCK], BLOCK as u64).unwrap(), 39 * BLOCK);
        assert_eq!(file.stream_position().unwrap(), 5);
        let whole = read(&mut file);
        assert_eq!(whole, [vec![7; BLOCK], vec![0; 39 * BLOCK]].concat());
        assert!(file.metadata().unwrap().blocks() * 512 < 5 * BLOCK as u64);
    }

    fn read(file: &mut File) -> Vec<u8> {
        let mut whole = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut whole).unwrap();
        whole
    }
}
