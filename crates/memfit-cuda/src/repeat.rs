//! Fills large tensors of random numbers on the host by mapping the same pages again and again, so that they
//! take neither memory nor time.

#![expect(unsafe_code, reason = "maps pages of the host")]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;

use memfit_channel::{RunDir, Setup};

use crate::machine;
use crate::space::{self, pages};
use crate::versions;

/// Smallest tensor. glibc maps larger blocks one by one, so that the pages are given back with the tensor
/// and never become part of another block.
const MIN_BYTES: usize = 64 << 20;
/// Size of the repeated file, if there are not too many repetitions.
const MIN_TILE: usize = 8 << 20;
/// Maximum number of repetitions; Linux limits the mappings of a process (65,530).
const MAX_REPETITIONS: usize = 512;
/// Number of mappings of this process from which on it gets no more.
const MAX_MAPPINGS: usize = 20_000;

/// Repeats the first `period` bytes at `address` over all `bytes` there. Returns `false` without a change if
/// the range is small, page-locked or not memory of its own, and on a GPU whose memory is the host's, where
/// every page counts.
///
/// The range has to belong to the caller alone, as that of a tensor that was just created.
#[unsafe(no_mangle)]
unsafe extern "C" fn memfit_vgpu_repeat(address: usize, bytes: usize, period: usize) -> bool {
    let page = pages::size() as usize;
    if bytes < MIN_BYTES || period == 0 || !period.is_multiple_of(page) || period > bytes / 4 {
        return false;
    }
    // Page-locked memory is cleared by giving its pages back, which would bring the file's contents back.
    let is_page_locked = space::read().overlaps(address as u64, bytes as u64);
    if is_page_locked || shares_host_memory() || !c_library_allocates() {
        return false;
    }
    let (first, last) = pages::within((address + period) as u64, (address + bytes) as u64, page as u64);
    let (first, last) = (first as usize, last as usize);
    if !is_plain_memory(first, last) {
        return false;
    }
    // SAFETY: the caller owns the range, of which these bytes are the beginning.
    let pattern = unsafe { std::slice::from_raw_parts(address as *const u8, period) };
    let Some((file, tile)) = tile(pattern, first - address, last - first) else { return false };
    let done = map_again(&file, tile, first, last);
    for (begin, end) in [(address + period, first), (done, address + bytes)] {
        // SAFETY: the caller owns the range, and the pattern ends before it.
        let rest = unsafe { std::slice::from_raw_parts_mut(begin as *mut u8, end - begin) };
        let repeated = pattern.iter().cycle().skip((begin - address) % period);
        for (byte, value) in rest.iter_mut().zip(repeated) {
            *byte = *value;
        }
    }
    true
}

/// Returns `true` if the virtual GPU has no memory of its own. Does not start the virtual GPU: a process that
/// is forked after the start may not use CUDA.
fn shares_host_memory() -> bool {
    match machine::peek() {
        Some(machine) => machine.setup.shares_host_memory(),
        None => RunDir::from_env()
            .and_then(|run_dir| Setup::read(&run_dir).ok())
            .is_some_and(|setup| setup.shares_host_memory()),
    }
}

/// Returns `true` if memory comes from glibc. Another allocator may reuse the pages of a freed block and take
/// them for empty ones.
fn c_library_allocates() -> bool {
    static GLIBC: OnceLock<bool> = OnceLock::new();
    *GLIBC.get_or_init(|| {
        versions::file_at(libc::malloc as *const () as u64).is_some_and(|file| file.starts_with("libc.so"))
    })
}

/// Creates a file without a name that repeats the pattern, beginning at `phase`. Returns its length, too.
fn tile(pattern: &[u8], phase: usize, bytes: usize) -> Option<(File, usize)> {
    let mut file = pages::file(c"memfit-random").ok()?;
    let repetitions = MIN_TILE.max(bytes / MAX_REPETITIONS).div_ceil(pattern.len());
    let (before, after) = pattern.split_at(phase % pattern.len());
    for _ in 0..repetitions {
        file.write_all(after).and_then(|()| file.write_all(before)).ok()?;
    }
    Some((file, repetitions * pattern.len()))
}

/// Maps the file over the range, each time with a private copy of what is written to it. Returns the end of
/// the mapped part.
fn map_again(file: &File, tile: usize, first: usize, last: usize) -> usize {
    let mut place = first;
    while place < last {
        let length = tile.min(last - place);
        // SAFETY: the range lies within one anonymous mapping that the caller owns.
        let mapped = unsafe {
            libc::mmap(
                place as *mut libc::c_void,
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            break;
        }
        place += length;
    }
    place
}

/// Returns `true` if the range lies within one private, writable mapping without a file or a name, and the
/// process may have more mappings.
fn is_plain_memory(first: usize, last: usize) -> bool {
    let Ok(maps) = File::open("/proc/self/maps") else { return false };
    let mut found = false;
    let mut count = 0;
    for line in BufReader::new(maps).lines().map_while(Result::ok) {
        count += 1;
        found |= is_around(&line, first, last);
    }
    found && count < MAX_MAPPINGS
}

/// Returns `true` if a line of `/proc/self/maps` is a mapping as above that contains the range.
fn is_around(line: &str, first: usize, last: usize) -> bool {
    let mut fields = line.split_ascii_whitespace();
    let (Some(range), Some(access), Some(_), Some(_), Some(inode), None) =
        (fields.next(), fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return false;
    };
    let bounds = range.split_once('-').and_then(|(begin, end)| {
        Some((usize::from_str_radix(begin, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
    });
    access == "rw-p" && inode == "0" && bounds.is_some_and(|(begin, end)| begin <= first && last <= end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: usize = 256 << 10;

    fn block(bytes: usize) -> Vec<u8> {
        let mut block = vec![0; bytes];
        for (place, byte) in block[..PERIOD].iter_mut().enumerate() {
            *byte = (place * 31 % 251) as u8;
        }
        block
    }

    fn repeat(block: &mut [u8]) -> bool {
        // SAFETY: the block belongs to the test.
        unsafe { memfit_vgpu_repeat(block.as_mut_ptr() as usize, block.len(), PERIOD) }
    }

    #[test]
    fn a_block_repeats_its_beginning() {
        let mut block = block(MIN_BYTES + 12_345);
        assert!(repeat(&mut block));
        assert!((PERIOD..block.len()).all(|place| block[place] == block[place % PERIOD]));
    }

    #[test]
    fn writing_changes_one_place_only() {
        let mut block = block(MIN_BYTES + 1);
        assert!(repeat(&mut block));
        let old = block[2 * PERIOD + 5];
        block[2 * PERIOD + 5] = old.wrapping_add(1);
        assert!((3 * PERIOD + 5..block.len()).step_by(PERIOD).all(|other| block[other] == old));
        assert_eq!(block[5], old);
    }

    #[test]
    fn small_blocks_are_left_alone() {
        let mut block = block(MIN_BYTES - 1);
        assert!(!repeat(&mut block));
        assert!(block[PERIOD..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn only_plain_memory_is_mapped_over() {
        let around = |line: &str| is_around(line, 0x2000, 0x3000);
        assert!(around("1000-4000 rw-p 00000000 00:00 0 "));
        for other in [
            "2000-2fff rw-p 00000000 00:00 0",
            "1000-4000 rw-s 00000000 00:00 0",
            "1000-4000 r--p 00000000 00:00 0",
            "1000-4000 rw-p 00000000 00:00 0 [heap]",
            "1000-4000 rw-p 00000000 fd:00 77 /a/file",
            "1000-4000 rw-p",
            "",
        ] {
            assert!(!around(other), "{other}");
        }
    }
}
