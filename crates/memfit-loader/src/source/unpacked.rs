//! Shards that are compressed as a whole: nothing can be read in the middle of them, so each is unpacked
//! once, into a file without a name, which is gone with the process.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

/// Names of files that are open at the same time differ by it.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// The file itself, or, where it is compressed, what is in it.
pub(super) fn open(mut file: File) -> io::Result<File> {
    let mut begins = [0; 4];
    let got = file.read(&mut begins)?;
    file.seek(SeekFrom::Start(0))?;
    let invalid =
        |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    match &begins[..got] {
        [0x1f, 0x8b, ..] => unpack(MultiGzDecoder::new(io::BufReader::new(file))),
        [0x28, 0xb5, 0x2f, 0xfd] => {
            unpack(StreamingDecoder::new(io::BufReader::new(file)).map_err(|error| invalid(&error))?)
        }
        _ => Ok(file),
    }
}

fn unpack(mut from: impl Read) -> io::Result<File> {
    let mut to = unnamed()?;
    io::copy(&mut from, &mut to)?;
    to.seek(SeekFrom::Start(0))?;
    Ok(to)
}

/// A file in the folder for temporary ones (`$TMPDIR`), whose name is gone at once.
fn unnamed() -> io::Result<File> {
    let folder = std::env::temp_dir();
    loop {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path: PathBuf = folder.join(format!("memfit-shard-{}-{number}", std::process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
            // Someone else's by chance.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Tells the name of a shard from others.
pub fn is_shard(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"].iter().any(|ending| name.ends_with(ending))
}
