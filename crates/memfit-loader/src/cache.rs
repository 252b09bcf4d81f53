//! Disk cache of downscaled copies: large images are decoded once, and read small afterwards.
//!
//! A copy's key is a hash of the image file's content and the parameters of the copy, so that no entry is
//! ever stale. A copy is written under a temporary name and then linked, so that a crash leaves no partial
//! entry, and two processes may create the same copy. The total size is stored in one file, under a lock that
//! the kernel releases with the process.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::LoaderError;
use crate::convert::Mode;
use crate::decode::{Decoder, Prepared};
use crate::input::Input;
use crate::pixels::{Bands, Sample};
use crate::plan::Rendering;
use crate::view::{Crop, Framing};

/// Magic number and version of a copy's file.
const MAGIC: &[u8; 8] = b"mfcopy\0\x01";
/// Header size: the magic number and a digest of the content.
const HEADER_BYTES: usize = MAGIC.len() + DIGEST_BYTES;
const DIGEST_BYTES: usize = 16;
/// JPEG quality of copies, without chroma subsampling.
const JPEG_QUALITY: u8 = 95;
/// Age from which an unfinished file belongs to a dead process.
const STALE_AFTER: Duration = Duration::from_hours(1);
/// Name of the file that holds the total size.
const TOTAL_FILE: &str = "bytes";
const UNFINISHED_PREFIX: &str = "unfinished";

/// Statistics of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Copies found.
    pub found: u64,
    /// Copies created and stored.
    pub stored: u64,
    /// Copies created but not stored, since the cache or the disk was full.
    pub refused: u64,
    /// Damaged copies, which were created again.
    pub damaged: u64,
}

/// Disk cache of downscaled copies.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    side: u32,
    most: u64,
    /// `true` after the disk was full: it is not tried again for each image.
    full: AtomicBool,
    next: AtomicU64,
    found: AtomicU64,
    stored: AtomicU64,
    refused: AtomicU64,
    damaged: AtomicU64,
}

/// Key of a copy.
type Key = blake3::Hash;

impl Cache {
    /// Opens a cache in a folder, which is created if necessary. Copies have a short side of `side` pixels;
    /// their total size is at most `most` bytes.
    pub fn open(folder: &Path, side: u32, most: u64) -> Result<Self, LoaderError> {
        let bad = |reason: String| LoaderError::BadSource { path: folder.to_owned(), reason };
        if side < 8 {
            return Err(LoaderError::Settings(
                "the short side of cached copies has to be at least 8".to_owned(),
            ));
        }
        fs::create_dir_all(folder.join(UNFINISHED_PREFIX))
            .map_err(|error| bad(format!("it cannot hold a cache: {error}")))?;
        let cache = Self {
            folder: folder.to_owned(),
            side,
            most,
            full: AtomicBool::new(false),
            next: AtomicU64::new(0),
            found: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
        };
        cache.sweep().map_err(|error| bad(format!("it cannot hold a cache: {error}")))?;
        Ok(cache)
    }

    /// Statistics so far.
    pub fn counts(&self) -> CacheCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CacheCounts {
            found: read(&self.found),
            stored: read(&self.stored),
            refused: read(&self.refused),
            damaged: read(&self.damaged),
        }
    }

    /// Returns `true` if a copy can replace an image: the image is larger, and the copy has at least the
    /// wanted pixels.
    ///
    /// The result depends on the image and the view alone, never on the content of the cache.
    pub(crate) fn serves(&self, image: &Prepared) -> bool {
        let header = image.header();
        let plain =
            header.layout.sample == Sample::U8 && matches!(header.layout.bands, Bands::Grey | Bands::Rgb);
        plain && header.width.min(header.height) > self.side && image.has_enough_pixels(self.side)
    }

    /// Framing and rendering of a copy.
    pub(crate) fn recipe(&self, upright: bool, page: u32) -> (Framing, Rendering) {
        let framing = Framing { crop: Crop::Short(self.side), size: None, flip: 0.0 };
        (framing, Rendering { mode: Mode::Keep, page, upright, ..Rendering::default() })
    }

    /// Computes the key of an image's copy.
    pub(crate) fn key(&self, input: &Input, upright: bool, page: u32) -> Result<Key, LoaderError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(MAGIC);
        hasher.update(&self.side.to_le_bytes());
        hasher.update(&page.to_le_bytes());
        // The two JPEG decoders round differently.
        hasher.update(&[upright.into(), JPEG_QUALITY, crate::Backend::BEST as u8]);
        match input {
            Input::Memory(bytes) => {
                hasher.update(bytes);
            }
            Input::File { .. } => {
                let mut reader = input.reader();
                let mut buffer = vec![0; 64 << 10];
                loop {
                    match reader.read(&mut buffer) {
                        Ok(0) => break,
                        Ok(count) => {
                            hasher.update(&buffer[..count]);
                        }
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
        Ok(hasher.finalize())
    }

    /// Returns the copy with this key if there is an intact one.
    pub(crate) fn get(&self, key: Key) -> Option<Vec<u8>> {
        let path = self.path(key);
        let bytes = fs::read(&path).ok()?;
        let whole = bytes.len() > HEADER_BYTES
            && bytes[..MAGIC.len()] == *MAGIC
            && blake3::hash(&bytes[HEADER_BYTES..]).as_bytes()[..DIGEST_BYTES]
                == bytes[MAGIC.len()..HEADER_BYTES];
        if !whole {
            self.damaged.fetch_add(1, Ordering::Relaxed);
            // If it cannot be removed, it is created again each time.
            let _ = self.discard(&path, bytes.len() as u64);
            return None;
        }
        self.found.fetch_add(1, Ordering::Relaxed);
        Some(bytes[HEADER_BYTES..].to_vec())
    }

    /// Creates the copy of an image. Needs [`Self::creation_bytes`] bytes in addition to the image's own
    /// cost.
    pub(crate) fn make(decoder: &mut Decoder, image: &Prepared) -> Result<Vec<u8>, LoaderError> {
        let (width, height) = image.size();
        let colours = match image.layout().bands {
            Bands::Grey => jpeg_encoder::ColorType::Luma,
            _ => jpeg_encoder::ColorType::Rgb,
        };
        let mut pixels = vec![0; image.bytes()];
        decoder.decode(image, false, &mut pixels)?;
        let mut out = Vec::new();
        let mut encoder = jpeg_encoder::Encoder::new(&mut out, JPEG_QUALITY);
        encoder.set_sampling_factor(jpeg_encoder::SamplingFactor::R_4_4_4);
        let side =
            |side: u32| u16::try_from(side).map_err(|_| LoaderError::Bug(format!("a copy of {side} pixels")));
        encoder
            .encode(&pixels, side(width)?, side(height)?, colours)
            .map_err(|error| LoaderError::Bug(error.to_string()))?;
        Ok(out)
    }

    /// Bytes that creating a copy needs in addition to decoding: its pixels and their encoding.
    pub(crate) fn creation_bytes(image: &Prepared) -> u64 {
        2 * image.bytes() as u64 + (64 << 10)
    }

    /// Stores a copy if there is space.
    pub(crate) fn store(&self, key: Key, copy: &[u8]) {
        if !self.full.load(Ordering::Relaxed) && self.store_locked(key, copy).unwrap_or(false) {
            self.stored.fetch_add(1, Ordering::Relaxed);
        } else {
            self.full.store(true, Ordering::Relaxed);
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts and writes a copy under one lock, so that other processes see a consistent total. Returns
    /// whether it fits.
    fn store_locked(&self, key: Key, copy: &[u8]) -> std::io::Result<bool> {
        let bytes = (HEADER_BYTES + copy.len()) as u64;
        let mut file = self.locked()?;
        let used = Self::read_total(&mut file)?;
        if used.saturating_add(bytes) > self.most {
            return Ok(false);
        }
        if self.write(key, copy)? {
            Self::note(&mut file, used + bytes)?;
        }
        Ok(true)
    }

    /// Writes a copy under a temporary name and links it. Returns `false` if another process was first.
    fn write(&self, key: Key, copy: &[u8]) -> std::io::Result<bool> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let unfinished =
            self.folder.join(UNFINISHED_PREFIX).join(format!("{}-{number}-{key}", std::process::id()));
        let path = self.path(key);
        let written = (|| {
            let mut file = File::create(&unfinished)?;
            file.write_all(MAGIC)?;
            file.write_all(&blake3::hash(copy).as_bytes()[..DIGEST_BYTES])?;
            file.write_all(copy)?;
            drop(file);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            // A hard link fails if the name exists, which shows whether another process was first.
            match fs::hard_link(&unfinished, &path) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
                // Fallback for file systems without hard links.
                Err(_) => fs::rename(&unfinished, &path).map(|()| true),
            }
        })();
        let _ = fs::remove_file(&unfinished);
        written
    }

    /// Removes a damaged copy.
    fn discard(&self, path: &Path, bytes: u64) -> std::io::Result<()> {
        let mut file = self.locked()?;
        fs::remove_file(path)?;
        let used = Self::read_total(&mut file)?;
        Self::note(&mut file, used.saturating_sub(bytes))
    }

    /// Reads the shared total from the locked file.
    fn read_total(file: &mut File) -> std::io::Result<u64> {
        let mut text = String::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_string(&mut text)?;
        Ok(text.trim().parse().unwrap_or(0))
    }

    fn locked(&self) -> std::io::Result<File> {
        let path = self.folder.join(TOTAL_FILE);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.lock()?;
        Ok(file)
    }

    fn note(file: &mut File, bytes: u64) -> std::io::Result<()> {
        file.seek(SeekFrom::Start(0))?;
        // The length is fixed, so that no digits of a longer number remain.
        file.write_all(format!("{bytes:020}\n").as_bytes())
    }

    /// Recounts the total, and removes unfinished files of dead processes.
    fn sweep(&self) -> std::io::Result<()> {
        let mut file = self.locked()?;
        for entry in fs::read_dir(self.folder.join(UNFINISHED_PREFIX))?.flatten() {
            let age = entry
                .metadata()
                .and_then(|about| about.modified())
                .ok()
                .and_then(|time| SystemTime::now().duration_since(time).ok());
            if age.is_some_and(|age| age > STALE_AFTER) {
                let _ = fs::remove_file(entry.path());
            }
        }
        let mut bytes = 0;
        for part in 0..=u8::MAX {
            let Ok(entries) = fs::read_dir(self.folder.join(format!("{part:02x}"))) else { continue };
            bytes += entries
                .flatten()
                .filter_map(|entry| entry.metadata().ok())
                .map(|about| about.len())
                .sum::<u64>();
        }
        Self::note(&mut file, bytes)
    }

    fn path(&self, key: Key) -> PathBuf {
        let name = key.to_hex();
        self.folder.join(&name[..2]).join(&name[2..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(of: &str) -> Key {
        blake3::hash(of.as_bytes())
    }

    fn used(cache: &Cache) -> u64 {
        fs::read_to_string(cache.folder.join(TOTAL_FILE)).expect("a count").trim().parse().expect("a number")
    }

    #[test]
    fn cached_entries_are_returned_unless_damaged() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::open(folder.path(), 64, 1 << 20).expect("a cache");
        assert_eq!(cache.get(key("a")), None);
        cache.store(key("a"), b"a copy");
        cache.store(key("a"), b"a copy");
        assert_eq!(cache.get(key("a")).as_deref(), Some(&b"a copy"[..]));
        assert_eq!(used(&cache), (HEADER_BYTES + 6) as u64);
        let path = cache.path(key("a"));
        let whole = fs::read(&path).expect("an entry");
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).expect("it can be cut");
            assert_eq!(cache.get(key("a")), None, "cut after {end} bytes");
            assert!(!path.exists());
        }
        let mut other = whole.clone();
        *other.last_mut().expect("bytes") ^= 1;
        fs::write(&path, other).expect("it can be changed");
        assert_eq!(cache.get(key("a")), None);
        cache.store(key("a"), b"a copy");
        assert!(cache.get(key("a")).is_some());
    }

    #[test]
    fn it_holds_no_more_than_it_may_whoever_fills_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let most = 40 * 124;
        std::thread::scope(|scope| {
            for process in 0..4 {
                let folder = folder.path();
                scope.spawn(move || {
                    // Another cache on the same folder, as in another process.
                    let cache = Cache::open(folder, 64, most).expect("a cache");
                    for number in 0..40 {
                        cache.store(key(&format!("{}", number * (process + 1))), &[0; 100]);
                    }
                });
            }
        });
        let cache = Cache::open(folder.path(), 64, most).expect("a cache");
        let counted = used(&cache);
        assert!(counted <= most && counted > most / 2, "{counted} of {most}");
    }

    #[test]
    fn leftovers_of_dead_processes_are_deleted_and_not_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        drop(Cache::open(folder.path(), 64, 1 << 20).expect("a cache"));
        let (old, new) = (
            folder.path().join(UNFINISHED_PREFIX).join("old"),
            folder.path().join(UNFINISHED_PREFIX).join("new"),
        );
        fs::write(&old, [0; 50]).expect("a file");
        fs::write(&new, [0; 50]).expect("a file");
        let long_ago = SystemTime::now() - 2 * STALE_AFTER;
        File::options().write(true).open(&old).and_then(|file| file.set_modified(long_ago)).expect("it ages");
        fs::write(folder.path().join(TOTAL_FILE), "99999999999").expect("a count that is wrong");
        let cache = Cache::open(folder.path(), 64, 1 << 20).expect("a cache");
        assert!(!old.exists() && new.exists());
        assert_eq!(used(&cache), 0);
    }
}
