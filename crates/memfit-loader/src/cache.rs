//! A cache of small copies on disk: large pictures decoded once, and read small from then on.
//!
//! A copy is named by what the picture's file holds and by how it was made, so nothing in it is ever out of
//! date. It is put in place whole, under a name of its own until then, so that a crash leaves no half of one,
//! and two processes that make the same one do no harm. How much there is of it is counted in one file, under
//! a lock that goes with its process.

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

/// What a copy's file begins with: a name and a version.
const MAGIC: &[u8; 8] = b"mfcopy\0\x01";
/// Before the copy: the magic, and a digest of what follows.
const HEAD: usize = MAGIC.len() + DIGEST;
const DIGEST: usize = 16;
/// Quality at which copies are stored, with colours in full.
const QUALITY: u8 = 95;
/// Unfinished files that are older than this are a dead process's.
const STALE: Duration = Duration::from_hours(1);
/// The file that counts the bytes of all copies.
const COUNT: &str = "bytes";
const UNFINISHED: &str = "unfinished";

/// What a cache has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Copies that were found.
    pub found: u64,
    /// Copies that were made and stored.
    pub stored: u64,
    /// Copies that were made and not stored: it is full, or the disk is.
    pub refused: u64,
    /// Copies that were damaged, and made again.
    pub damaged: u64,
}

/// A cache of small copies.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    side: u32,
    most: u64,
    /// The disk would take no more: that is asked once, and not for each picture.
    full: AtomicBool,
    next: AtomicU64,
    found: AtomicU64,
    stored: AtomicU64,
    refused: AtomicU64,
    damaged: AtomicU64,
}

/// Names a copy.
type Key = blake3::Hash;

impl Cache {
    /// A cache in a folder, which is made if it is not there: of copies whose short side is `side` pixels,
    /// and which together take at most `most` bytes.
    pub fn open(folder: &Path, side: u32, most: u64) -> Result<Self, LoaderError> {
        let bad = |reason: String| LoaderError::BadSource { path: folder.to_owned(), reason };
        if side < 8 {
            return Err(LoaderError::Settings(
                "the short side of cached copies has to be at least 8".to_owned(),
            ));
        }
        fs::create_dir_all(folder.join(UNFINISHED))
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

    /// What has been done so far.
    pub fn counts(&self) -> CacheCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CacheCounts {
            found: read(&self.found),
            stored: read(&self.stored),
            refused: read(&self.refused),
            damaged: read(&self.damaged),
        }
    }

    /// Whether a copy would do: of a picture that is larger, of which it leaves at least the pixels that are
    /// wanted.
    ///
    /// That is a function of the picture and the view alone, and never of what the cache holds.
    pub(crate) fn serves(&self, image: &Prepared) -> bool {
        let header = image.header();
        let plain =
            header.layout.sample == Sample::U8 && matches!(header.layout.bands, Bands::Grey | Bands::Rgb);
        plain && header.width.min(header.height) > self.side && image.enough_of(self.side)
    }

    /// How a copy is made.
    pub(crate) fn recipe(&self, upright: bool, page: u32) -> (Framing, Rendering) {
        let framing = Framing { crop: Crop::Short(self.side), size: None, flip: 0.0 };
        (framing, Rendering { mode: Mode::Keep, page, upright, ..Rendering::default() })
    }

    /// The name of a picture's copy.
    pub(crate) fn key(&self, input: &Input, upright: bool, page: u32) -> Result<Key, LoaderError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(MAGIC);
        hasher.update(&self.side.to_le_bytes());
        hasher.update(&page.to_le_bytes());
        // The two decoders of JPEG round otherwise.
        hasher.update(&[upright.into(), QUALITY, crate::Backend::BEST as u8]);
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

    /// The copy of this name, if there is one that is whole.
    pub(crate) fn get(&self, key: Key) -> Option<Vec<u8>> {
        let path = self.path(key);
        let bytes = fs::read(&path).ok()?;
        let whole = bytes.len() > HEAD
            && bytes[..MAGIC.len()] == *MAGIC
            && blake3::hash(&bytes[HEAD..]).as_bytes()[..DIGEST] == bytes[MAGIC.len()..HEAD];
        if !whole {
            self.damaged.fetch_add(1, Ordering::Relaxed);
            // Where it cannot be taken away, it is made again each time.
            let _ = self.discard(&path, bytes.len() as u64);
            return None;
        }
        self.found.fetch_add(1, Ordering::Relaxed);
        Some(bytes[HEAD..].to_vec())
    }

    /// Makes a picture's copy. What this takes beyond the picture's own cost is [`Self::beside`].
    pub(crate) fn make(decoder: &mut Decoder, image: &Prepared) -> Result<Vec<u8>, LoaderError> {
        let (width, height) = image.size();
        let colours = match image.layout().bands {
            Bands::Grey => jpeg_encoder::ColorType::Luma,
            _ => jpeg_encoder::ColorType::Rgb,
        };
        let mut pixels = vec![0; image.bytes()];
        decoder.decode(image, false, &mut pixels)?;
        let mut out = Vec::new();
        let mut encoder = jpeg_encoder::Encoder::new(&mut out, QUALITY);
        encoder.set_sampling_factor(jpeg_encoder::SamplingFactor::R_4_4_4);
        let side =
            |side: u32| u16::try_from(side).map_err(|_| LoaderError::Bug(format!("a copy of {side} pixels")));
        encoder
            .encode(&pixels, side(width)?, side(height)?, colours)
            .map_err(|error| LoaderError::Bug(error.to_string()))?;
        Ok(out)
    }

    /// What making a copy takes beyond decoding, in bytes: its pixels, and what they are encoded to.
    pub(crate) fn beside(image: &Prepared) -> u64 {
        2 * image.bytes() as u64 + (64 << 10)
    }

    /// Keeps a copy, if there is room for it.
    pub(crate) fn put(&self, key: Key, copy: &[u8]) {
        if !self.full.load(Ordering::Relaxed) && self.store(key, copy).unwrap_or(false) {
            self.stored.fetch_add(1, Ordering::Relaxed);
        } else {
            self.full.store(true, Ordering::Relaxed);
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts and writes a copy under one lock, so that no other process counts what is half done; whether it
    /// fits.
    fn store(&self, key: Key, copy: &[u8]) -> std::io::Result<bool> {
        let bytes = (HEAD + copy.len()) as u64;
        let mut file = self.locked()?;
        let used = Self::noted(&mut file)?;
        if used.saturating_add(bytes) > self.most {
            return Ok(false);
        }
        if self.write(key, copy)? {
            Self::note(&mut file, used + bytes)?;
        }
        Ok(true)
    }

    /// Writes a copy under a name of its own, and then puts it in place; whether there was none yet.
    fn write(&self, key: Key, copy: &[u8]) -> std::io::Result<bool> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let unfinished = self.folder.join(UNFINISHED).join(format!("{}-{number}-{key}", std::process::id()));
        let path = self.path(key);
        let written = (|| {
            let mut file = File::create(&unfinished)?;
            file.write_all(MAGIC)?;
            file.write_all(&blake3::hash(copy).as_bytes()[..DIGEST])?;
            file.write_all(copy)?;
            drop(file);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            // A link fails where there is one already, and so tells who was first.
            match fs::hard_link(&unfinished, &path) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
                // Some file systems know no links.
                Err(_) => fs::rename(&unfinished, &path).map(|()| true),
            }
        })();
        let _ = fs::remove_file(&unfinished);
        written
    }

    /// Takes away a copy that is not whole.
    fn discard(&self, path: &Path, bytes: u64) -> std::io::Result<()> {
        let mut file = self.locked()?;
        fs::remove_file(path)?;
        let used = Self::noted(&mut file)?;
        Self::note(&mut file, used.saturating_sub(bytes))
    }

    /// The count of bytes that all processes share, while it is locked.
    fn noted(file: &mut File) -> std::io::Result<u64> {
        let mut text = String::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_string(&mut text)?;
        Ok(text.trim().parse().unwrap_or(0))
    }

    fn locked(&self) -> std::io::Result<File> {
        let path = self.folder.join(COUNT);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.lock()?;
        Ok(file)
    }

    fn note(file: &mut File, bytes: u64) -> std::io::Result<()> {
        file.seek(SeekFrom::Start(0))?;
        // Of one length always, so that no rest of an older number stays behind it.
        file.write_all(format!("{bytes:020}\n").as_bytes())
    }

    /// Counts what there is, and takes away what dead processes left half done.
    fn sweep(&self) -> std::io::Result<()> {
        let mut file = self.locked()?;
        for entry in fs::read_dir(self.folder.join(UNFINISHED))?.flatten() {
            let age = entry
                .metadata()
                .and_then(|about| about.modified())
                .ok()
                .and_then(|time| SystemTime::now().duration_since(time).ok());
            if age.is_some_and(|age| age > STALE) {
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
        fs::read_to_string(cache.folder.join(COUNT)).expect("a count").trim().parse().expect("a number")
    }

    #[test]
    fn what_is_put_is_had_until_it_is_damaged() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::open(folder.path(), 64, 1 << 20).expect("a cache");
        assert_eq!(cache.get(key("a")), None);
        cache.put(key("a"), b"a copy");
        cache.put(key("a"), b"a copy");
        assert_eq!(cache.get(key("a")).as_deref(), Some(&b"a copy"[..]));
        assert_eq!(used(&cache), (HEAD + 6) as u64);
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
        cache.put(key("a"), b"a copy");
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
                    // As another process would: a cache of its own over the same folder.
                    let cache = Cache::open(folder, 64, most).expect("a cache");
                    for number in 0..40 {
                        cache.put(key(&format!("{}", number * (process + 1))), &[0; 100]);
                    }
                });
            }
        });
        let cache = Cache::open(folder.path(), 64, most).expect("a cache");
        let counted = used(&cache);
        assert!(counted <= most && counted > most / 2, "{counted} of {most}");
    }

    #[test]
    fn what_a_dead_process_left_is_taken_away_and_not_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        drop(Cache::open(folder.path(), 64, 1 << 20).expect("a cache"));
        let (old, new) =
            (folder.path().join(UNFINISHED).join("old"), folder.path().join(UNFINISHED).join("new"));
        fs::write(&old, [0; 50]).expect("a file");
        fs::write(&new, [0; 50]).expect("a file");
        let long_ago = SystemTime::now() - 2 * STALE;
        File::options().write(true).open(&old).and_then(|file| file.set_modified(long_ago)).expect("it ages");
        fs::write(folder.path().join(COUNT), "99999999999").expect("a count that is wrong");
        let cache = Cache::open(folder.path(), 64, 1 << 20).expect("a cache");
        assert!(!old.exists() && new.exists());
        assert_eq!(used(&cache), 0);
    }
}
