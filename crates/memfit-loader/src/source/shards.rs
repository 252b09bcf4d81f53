//! Tar shards in WebDataset's layout: files with the same name up to the first dot form one sample.
//!
//! The shards are indexed once by their headers; images are then read in place. Compressed shards are
//! decompressed first.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Source, Target, is_readable, unpacked};
use crate::LoaderError;
use crate::input::Input;

const BLOCK: u64 = 512;
/// Maximum length of a name or a label.
const MAX_TEXT_BYTES: u64 = 1 << 16;

/// Images of shards.
#[derive(Debug, Default)]
pub struct Shards {
    files: Vec<(PathBuf, Arc<File>)>,
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    shard: u32,
    key: Box<str>,
    start: u64,
    length: u64,
    label: Option<i64>,
}

impl Shards {
    /// Indexes shards in this order.
    pub fn read(paths: &[PathBuf]) -> Result<Self, LoaderError> {
        let mut shards = Self::default();
        for path in paths {
            shards.add(path)?;
        }
        if shards.samples.is_empty() {
            return Err(LoaderError::BadSource {
                path: paths.first().cloned().unwrap_or_default(),
                reason: "there are no images in it".to_owned(),
            });
        }
        shards.labelled()?;
        Ok(shards)
    }

    /// Checks that either all samples have labels or none has: a missing label is not 0.
    fn labelled(&self) -> Result<(), LoaderError> {
        let missing = self.samples.iter().find(|sample| sample.label.is_none());
        match missing {
            Some(sample) if self.samples.iter().any(|sample| sample.label.is_some()) => {
                Err(LoaderError::BadSource {
                    path: self.files[sample.shard as usize].0.clone(),
                    reason: format!(
                        "`{}` has no label (`.cls`), and others have: give it one, or leave it out",
                        sample.key
                    ),
                })
            }
            _ => Ok(()),
        }
    }

    fn add(&mut self, path: &Path) -> Result<(), LoaderError> {
        let wrong = |reason: String| LoaderError::BadSource { path: path.to_owned(), reason };
        let file = File::open(path).map_err(|error| wrong(format!("it cannot be opened: {error}")))?;
        let file = unpacked::open(file).map_err(|error| wrong(format!("it cannot be unpacked: {error}")))?;
        let length = file.metadata().map_err(|error| wrong(error.to_string()))?.len();
        let file = Arc::new(file);
        let shard = self.files.len() as u32;
        let mut reader = Members { reader: BufReader::new(&*file), at: 0, length };
        // Index and label by key, whichever file comes first.
        let mut keys: HashMap<String, usize> = HashMap::new();
        let mut labels: HashMap<String, i64> = HashMap::new();
        while let Some(member) = reader.next().map_err(wrong)? {
            let Some((key, ending)) = split(&member.name) else { continue };
            if is_readable(&member.name) {
                if keys.contains_key(key) {
                    continue;
                }
                keys.insert(key.to_owned(), self.samples.len());
                let label = labels.get(key).copied();
                self.samples.push(Sample {
                    shard,
                    key: key.into(),
                    start: member.start,
                    length: member.length,
                    label,
                });
            } else if ending == "cls" {
                let text = reader.text(&member).map_err(wrong)?;
                let label = text
                    .trim()
                    .parse()
                    .map_err(|_| {
                        let text = text.trim();
                        wrong(format!(
                            "the label of `{key}` is not a number: `{text}`; pass other targets with your own data set"
                        ))
                    })?;
                if let Some(&sample) = keys.get(key) {
                    self.samples[sample].label = Some(label);
                }
                labels.insert(key.to_owned(), label);
            }
        }
        self.files.push((path.to_owned(), file));
        Ok(())
    }
}

impl Source for Shards {
    fn count(&self) -> u64 {
        self.samples.len() as u64
    }

    fn name(&self, index: u64) -> String {
        self.samples.get(index as usize).map_or_else(String::new, |sample| {
            format!("{} in {}", sample.key, self.files[sample.shard as usize].0.display())
        })
    }

    fn open(&self, index: u64) -> Result<(Input, Target), LoaderError> {
        let sample = self
            .samples
            .get(index as usize)
            .ok_or_else(|| LoaderError::Bug(format!("there is no sample {index}")))?;
        let file = self.files[sample.shard as usize].1.clone();
        let input = Input::File { file, start: sample.start, length: sample.length };
        Ok((input, Target::Label(sample.label.unwrap_or(0))))
    }

    fn label(&self, index: u64) -> Option<i64> {
        self.samples.get(index as usize).map(|sample| sample.label.unwrap_or(0))
    }
}

/// Splits a name at the first dot of its last component.
fn split(name: &str) -> Option<(&str, &str)> {
    let begin = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = begin + name[begin..].find('.')?;
    (dot > begin).then(|| (&name[..dot], &name[dot + 1..]))
}

struct Member {
    name: String,
    start: u64,
    length: u64,
}

struct Members<R> {
    reader: R,
    at: u64,
    length: u64,
}

impl<R: Read + Seek> Members<R> {
    /// Reads the next file of the archive.
    fn next(&mut self) -> Result<Option<Member>, String> {
        let mut long_name = None;
        loop {
            if self.at + BLOCK > self.length {
                return Ok(None);
            }
            let mut header = [0_u8; BLOCK as usize];
            self.seek(self.at)?;
            self.reader.read_exact(&mut header).map_err(|error| error.to_string())?;
            if header.iter().all(|&byte| byte == 0) {
                return Ok(None);
            }
            let sum: u64 = header
                .iter()
                .enumerate()
                .map(|(at, &byte)| u64::from(if (148..156).contains(&at) { b' ' } else { byte }))
                .sum();
            if number(&header[148..156]) != Some(sum) {
                return Err(format!("it is not a tar archive, or a damaged one, at byte {}", self.at));
            }
            let length = number(&header[124..136])
                .filter(|&length| length <= self.length - self.at - BLOCK)
                .ok_or_else(|| format!("it is truncated at byte {}", self.at))?;
            let start = self.at + BLOCK;
            self.at = start + length.next_multiple_of(BLOCK);
            let member = Member { name: String::new(), start, length };
            match header[156] {
                b'0' | 0 => {
                    let name = long_name.take().unwrap_or_else(|| name(&header));
                    return Ok(Some(Member { name, ..member }));
                }
                b'L' => long_name = Some(self.text(&member)?.trim_end_matches('\0').to_owned()),
                b'x' => long_name = pax_path(&self.text(&member)?).or(long_name),
                _ => long_name = None,
            }
        }
    }

    fn text(&mut self, member: &Member) -> Result<String, String> {
        if member.length > MAX_TEXT_BYTES {
            return Err(format!("a text of {} bytes at byte {}", member.length, member.start));
        }
        self.seek(member.start)?;
        let mut bytes = vec![0; member.length as usize];
        self.reader.read_exact(&mut bytes).map_err(|error| error.to_string())?;
        String::from_utf8(bytes).map_err(|_| format!("text that is not UTF-8 at byte {}", member.start))
    }

    fn seek(&mut self, to: u64) -> Result<(), String> {
        self.reader.seek(SeekFrom::Start(to)).map(drop).map_err(|error| error.to_string())
    }
}

/// Parses a number of a tar header: octal digits, or binary if the first bit is set.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        return field[1..].iter().try_fold(u64::from(field[0] & 0x7f), |value, &byte| {
            value.checked_mul(256)?.checked_add(u64::from(byte))
        });
    }
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok()
}

fn name(header: &[u8]) -> String {
    let text = |field: &[u8]| {
        let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
        String::from_utf8_lossy(&field[..end]).into_owned()
    };
    let prefix = if &header[257..262] == b"ustar" { text(&header[345..500]) } else { String::new() };
    let name = text(&header[..100]);
    if prefix.is_empty() { name } else { format!("{prefix}/{name}") }
}

/// Path in a block of extended attributes, whose lines are `LENGTH path=VALUE`.
fn pax_path(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.split_once(' ')?.1.strip_prefix("path=").map(str::to_owned))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use super::*;

    /// Builds an archive of files.
    fn tar(files: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, text) in files {
            let mut header = [0_u8; BLOCK as usize];
            header[..name.len()].copy_from_slice(name.as_bytes());
            header[124..135].copy_from_slice(format!("{:011o}", text.len()).as_bytes());
            header[148..156].fill(b' ');
            header[156] = b'0';
            let sum: u64 = header.iter().map(|&byte| u64::from(byte)).sum();
            header[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
            out.extend_from_slice(&header);
            out.extend_from_slice(text.as_bytes());
            out.resize(out.len().next_multiple_of(BLOCK as usize), 0);
        }
        out.resize(out.len() + 2 * BLOCK as usize, 0);
        out
    }

    #[test]
    fn a_label_that_is_missing_is_not_zero() {
        let folder = tempfile::tempdir().unwrap();
        let read = |files: &[(&str, &str)]| {
            let path = folder.path().join("a.tar");
            std::fs::write(&path, tar(files)).unwrap();
            Shards::read(&[path]).map_err(|error| error.to_string())
        };
        let labels = |shards: &Shards| -> Vec<Option<i64>> {
            (0..shards.count()).map(|index| shards.label(index)).collect()
        };
        let all = read(&[("a.jpg", "x"), ("a.cls", "3"), ("b.cls", "-1"), ("b.jpg", "x")]).unwrap();
        assert_eq!(labels(&all), [Some(3), Some(-1)]);
        let none = read(&[("a.jpg", "x"), ("b.jpg", "x")]).unwrap();
        assert_eq!(labels(&none), [Some(0), Some(0)]);
        let error = read(&[("a.jpg", "x"), ("a.cls", "3"), ("b.jpg", "x")]).unwrap_err();
        assert!(error.contains("`b` has no label"), "{error}");
        let error = read(&[("a.jpg", "x"), ("a.cls", "0.5")]).unwrap_err();
        assert!(error.contains("the label of `a` is not a number: `0.5`"), "{error}");
        let name = "a species whose name is longer than that of a number";
        let error = read(&[("a.jpg", "x"), ("a.cls", name)]).unwrap_err();
        assert!(error.contains("is not a number: `a species"), "{error}");
    }
}
