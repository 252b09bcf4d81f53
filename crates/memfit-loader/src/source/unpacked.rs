//! Compressed shards. They allow no random access, so each is decompressed once into an unnamed temporary
//! file, which vanishes with the process.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

/// Counter that makes the names of temporary files unique.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Returns the file itself, or its decompressed content.
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

/// Creates a file in the temporary folder (`$TMPDIR`) and unlinks it at once.
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
            // The name exists by coincidence.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns `true` for file names of shards.
pub fn is_shard(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"].iter().any(|ending| name.ends_with(ending))
}
