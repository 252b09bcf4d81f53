//! DICOM: position and format of the pixels, and the order of a series. Compressed pixels are decoded in
//! [`super::coded`].

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::coded::Coding;
use super::{Slice, Volume, Voxel};
use crate::LoaderError;

const NAME: &str = "DICOM";
/// Maximum number of elements read from a file, and maximum nesting of sequences.
const MAX_ELEMENTS: u32 = 100_000;
const MAX_DEPTH: u32 = 16;
/// Maximum length of a value that is read.
const MAX_VALUE_BYTES: u32 = 4096;
const UNDEFINED: u32 = u32::MAX;
/// Maximum number of frames in a file.
const MAX_FRAMES: u64 = 1 << 20;

const ITEM: (u16, u16) = (0xfffe, 0xe000);
const ITEM_END: (u16, u16) = (0xfffe, 0xe00d);
const SEQUENCE_END: (u16, u16) = (0xfffe, 0xe0dd);
const PIXELS: (u16, u16) = (0x7fe0, 0x0010);

/// Returns `true` if a file begins like a DICOM file.
pub(super) fn begins(bytes: &[u8]) -> bool {
    bytes.get(128..132) == Some(b"DICM")
}

/// Combines a series of files into a volume; of several series, selects the one with this identifier.
pub(super) fn series(paths: &[PathBuf], about: &Path, wanted: Option<&str>) -> Result<Volume, LoaderError> {
    let wrong = |reason: String| LoaderError::BadSource { path: about.to_owned(), reason };
    let mut images = Vec::new();
    for path in paths {
        match Image::read(path) {
            Ok(Some(image)) => images.push(image),
            // Folders of series may contain files that are not DICOM or hold no image.
            Ok(None) => {}
            Err(error) => {
                let name = path.display().to_string();
                return Err(LoaderError::Sample { name, error: Box::new(error) });
            }
        }
    }
    let found: BTreeSet<String> = images.iter().map(|image| image.series.clone()).collect();
    let chosen = match (wanted, found.first()) {
        (_, None) => return Err(wrong("there is no DICOM image in it".to_owned())),
        (Some(wanted), _) if found.contains(wanted) => wanted.to_owned(),
        (None, Some(only)) if found.len() == 1 => only.clone(),
        _ => {
            let names: Vec<&str> = found.iter().map(String::as_str).collect();
            return Err(wrong(format!(
                "it holds {} series; pass series= with one of them: {}",
                names.len(),
                names.join(", ")
            )));
        }
    };
    images.retain(|image| image.series == chosen);
    let placed = images.iter().all(|image| image.along.is_some());
    images.sort_by(|one, other| {
        let place = |image: &Image| if placed { image.along.unwrap_or(0.0) } else { image.number };
        place(one).total_cmp(&place(other))
    });
    assemble(images, placed)
}

fn assemble(images: Vec<Image>, placed: bool) -> Result<Volume, LoaderError> {
    let Some(first) = images.first().cloned() else {
        return Err(LoaderError::Bug("a series without images".to_owned()));
    };
    let alike = |image: &Image| {
        (image.width, image.height, image.voxel, image.bits)
            == (first.width, first.height, first.voxel, first.bits)
            && (image.slope, image.intercept) == (first.slope, first.intercept)
    };
    if let Some(other) = images.iter().find(|image| !alike(image)) {
        return Err(LoaderError::BadSource {
            path: other.path.clone(),
            reason: "its size, type or scale differs from the rest of its series".to_owned(),
        });
    }
    let between =
        match (images.first().and_then(|image| image.along), images.last().and_then(|image| image.along)) {
            (Some(low), Some(high)) if placed && images.len() > 1 => {
                (high - low).abs() / (images.len() - 1) as f64
            }
            _ => first.thickness,
        };
    let mut slices = Vec::new();
    for (file, image) in images.iter().enumerate() {
        slices.extend(image.slices.iter().map(|slice| match slice {
            Slice::Plain { start, .. } => Slice::Plain { file, start: *start },
            Slice::Coded { coding, parts, .. } => {
                Slice::Coded { file, coding: *coding, parts: parts.clone() }
            }
        }));
    }
    Ok(Volume {
        files: images.into_iter().map(|image| image.path).collect(),
        gzip: false,
        slices,
        height: first.height,
        width: first.width,
        voxel: first.voxel,
        big_endian: false,
        bits: first.bits,
        slope: first.slope,
        intercept: first.intercept,
        spacing: [between, first.spacing[0], first.spacing[1]],
    })
}

/// Header of one file.
#[derive(Clone, Debug)]
struct Image {
    path: PathBuf,
    series: String,
    number: f64,
    /// Position along the normal of its plane.
    along: Option<f64>,
    width: u64,
    height: u64,
    voxel: Voxel,
    bits: u32,
    slope: f64,
    intercept: f64,
    spacing: [f64; 2],
    thickness: f64,
    slices: Vec<Slice>,
}

/// Values of the relevant elements.
#[derive(Default)]
struct Found {
    syntax: String,
    series: String,
    frames: Option<f64>,
    number: f64,
    position: Vec<f64>,
    orientation: Vec<f64>,
    spacing: Vec<f64>,
    thickness: f64,
    between: f64,
    slope: Option<f64>,
    intercept: Option<f64>,
    samples: u16,
    rows: u16,
    columns: u16,
    allocated: u16,
    stored: u16,
    signed: u16,
}

impl Image {
    /// Reads a file up to its pixels. Returns `None` if it is not DICOM or has no pixels.
    fn read(path: &Path) -> Result<Option<Self>, LoaderError> {
        let damaged = |reason: String| LoaderError::Damaged { format: NAME, reason };
        let unsupported = |reason: String| LoaderError::Unsupported { format: NAME, reason };
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut reader = Elements { reader: BufReader::with_capacity(8192, file), explicit: true, seen: 0 };
        let mut begin = Vec::new();
        reader.reader.by_ref().take(132).read_to_end(&mut begin)?;
        if !begins(&begin) {
            return Ok(None);
        }
        let mut found = Found::default();
        let pixels = match reader.find_pixels(&mut found) {
            Ok(pixels) => pixels,
            Err(LoaderError::Read(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => None,
            Err(error) => return Err(error),
        };
        let Some(size) = pixels else { return Ok(None) };
        if found.samples > 1 {
            return Err(unsupported(format!("a pixel has {} values", found.samples)));
        }
        let voxel = match (found.allocated, found.signed) {
            (8, 0) => Voxel::U8,
            (8, _) => Voxel::I8,
            (16, 0) => Voxel::U16,
            (16, _) => Voxel::I16,
            (32, 0) => Voxel::U32,
            (32, _) => Voxel::I32,
            (bits, _) => return Err(unsupported(format!("its values have {bits} bits"))),
        };
        let (height, width) = (u64::from(found.rows), u64::from(found.columns));
        let frames = found.frames.unwrap_or(1.0).clamp(0.0, MAX_FRAMES as f64) as u64;
        if height == 0 || width == 0 || frames == 0 {
            return Err(damaged(format!("its header says {width}x{height}, {frames} times")));
        }
        let slices = match found.syntax.as_str() {
            "1.2.840.10008.1.2" | "1.2.840.10008.1.2.1" => {
                let start = reader.reader.stream_position()?;
                let each = width * height * voxel.bytes() as u64;
                let whole = each.checked_mul(frames).filter(|whole| start.saturating_add(*whole) <= length);
                if whole.is_none()
                    || (size != UNDEFINED && whole.is_some_and(|whole| whole > u64::from(size)))
                {
                    return Err(damaged(
                        "it is truncated: it has fewer pixels than its header says".to_owned(),
                    ));
                }
                (0..frames).map(|frame| Slice::Plain { file: 0, start: start + frame * each }).collect()
            }
            other => match Coding::from_syntax(other) {
                Some(coding) => reader.fragments(frames, coding)?,
                None => {
                    return Err(unsupported(format!(
                        "its pixels are compressed ({other}); write it uncompressed, as `gdcmconv --raw` does"
                    )));
                }
            },
        };
        let along = along(&found.position, &found.orientation);
        let spacing =
            [found.spacing.first().copied().unwrap_or(0.0), found.spacing.get(1).copied().unwrap_or(0.0)];
        Ok(Some(Self {
            path: path.to_owned(),
            series: found.series,
            number: found.number,
            along,
            width,
            height,
            voxel,
            bits: found.stored.into(),
            slope: found.slope.filter(|slope| *slope != 0.0).unwrap_or(1.0),
            intercept: found.intercept.unwrap_or(0.0),
            spacing,
            thickness: if found.between > 0.0 { found.between } else { found.thickness },
            slices,
        }))
    }
}

/// Position along the normal of the plane spanned by the row and column directions.
fn along(position: &[f64], orientation: &[f64]) -> Option<f64> {
    let place: [f64; 3] = position.try_into().ok()?;
    let ([row, column], []) = orientation.as_chunks::<3>() else { return None };
    let normal = [(1, 2), (2, 0), (0, 1)].map(|(one, two)| row[one] * column[two] - row[two] * column[one]);
    Some(place.iter().zip(normal).map(|(place, normal)| place * normal).sum())
}

/// Reader of a file's elements.
struct Elements<R> {
    reader: R,
    /// `true` if elements state the type of their values.
    explicit: bool,
    seen: u32,
}

impl<R: Read + Seek> Elements<R> {
    /// Records relevant values, and stops at the pixels. Returns their declared length in bytes.
    fn find_pixels(&mut self, found: &mut Found) -> Result<Option<u32>, LoaderError> {
        let mut meta = true;
        loop {
            let begin = self.reader.stream_position()?;
            let [g0, g1]: [u8; 2] = self.read_array()?;
            let group = u16::from_le_bytes([g0, g1]);
            if meta && group != 2 {
                meta = false;
                match found.syntax.as_str() {
                    "1.2.840.10008.1.2" => self.explicit = false,
                    "1.2.840.10008.1.2.2" | "1.2.840.10008.1.2.1.99" => {
                        return Err(LoaderError::Unsupported {
                            format: NAME,
                            reason: "it is stored with the high byte first, or deflated".to_owned(),
                        });
                    }
                    _ => {}
                }
            }
            self.reader.seek(SeekFrom::Start(begin))?;
            let (tag, length) = self.element()?;
            if tag == PIXELS {
                return Ok(Some(length));
            }
            if length == UNDEFINED {
                self.skip_sequence(0)?;
            } else if wanted(tag) && length <= MAX_VALUE_BYTES {
                let mut value = vec![0; length as usize];
                self.reader.read_exact(&mut value)?;
                found.note(tag, &value);
            } else {
                self.reader.seek(SeekFrom::Current(length.into()))?;
            }
        }
    }

    /// Reads the next element's tag and length.
    fn element(&mut self) -> Result<((u16, u16), u32), LoaderError> {
        self.seen += 1;
        if self.seen > MAX_ELEMENTS {
            return Err(LoaderError::Damaged {
                format: NAME,
                reason: "it has elements without end".to_owned(),
            });
        }
        let [g0, g1, e0, e1]: [u8; 4] = self.read_array()?;
        let tag = (u16::from_le_bytes([g0, g1]), u16::from_le_bytes([e0, e1]));
        if !self.explicit || tag.0 == 0xfffe {
            return Ok((tag, u32::from_le_bytes(self.read_array()?)));
        }
        let [a, b, l0, l1]: [u8; 4] = self.read_array()?;
        let long = matches!(
            &[a, b],
            b"OB"
                | b"OD"
                | b"OF"
                | b"OL"
                | b"OV"
                | b"OW"
                | b"SQ"
                | b"SV"
                | b"UC"
                | b"UN"
                | b"UR"
                | b"UT"
                | b"UV"
        );
        let length =
            if long { u32::from_le_bytes(self.read_array()?) } else { u16::from_le_bytes([l0, l1]).into() };
        Ok((tag, length))
    }

    /// Skips a sequence of unknown length.
    fn skip_sequence(&mut self, depth: u32) -> Result<(), LoaderError> {
        if depth > MAX_DEPTH {
            return Err(LoaderError::Damaged {
                format: NAME,
                reason: "its sequences are nested too deeply".to_owned(),
            });
        }
        loop {
            let (tag, length) = self.element()?;
            match (tag, length) {
                (SEQUENCE_END, _) => return Ok(()),
                (ITEM, UNDEFINED) => self.skip_item(depth)?,
                (_, UNDEFINED) => self.skip_sequence(depth + 1)?,
                (_, length) => {
                    self.reader.seek(SeekFrom::Current(length.into()))?;
                }
            }
        }
    }

    fn skip_item(&mut self, depth: u32) -> Result<(), LoaderError> {
        loop {
            let (tag, length) = self.element()?;
            match (tag, length) {
                (ITEM_END, _) => return Ok(()),
                (_, UNDEFINED) => self.skip_sequence(depth + 1)?,
                (_, length) => {
                    self.reader.seek(SeekFrom::Current(length.into()))?;
                }
            }
        }
    }

    /// Positions of the compressed fragments by frame. The first fragment is a table of frame offsets. It may
    /// be empty if each frame has one fragment, or if all fragments belong to one frame.
    fn fragments(&mut self, frames: u64, coding: Coding) -> Result<Vec<Slice>, LoaderError> {
        let damaged = |reason: String| LoaderError::Damaged { format: NAME, reason };
        let mut found: Vec<(u64, u64)> = Vec::new();
        let mut table = None;
        loop {
            let (tag, length) = self.element()?;
            if tag == SEQUENCE_END {
                break;
            }
            if tag != ITEM || length == UNDEFINED {
                return Err(damaged("its pixels are not in items".to_owned()));
            }
            let start = self.reader.stream_position()?;
            if table.is_none() {
                let mut offsets = Vec::new();
                // One number of four bytes for each frame.
                let most = u64::from(length).min(frames * 4);
                self.reader.by_ref().take(most).read_to_end(&mut offsets)?;
                table = Some(offsets);
            } else {
                found.push((start, length.into()));
            }
            self.reader.seek(SeekFrom::Start(start + u64::from(length)))?;
        }
        let slice = |parts: &[(u64, u64)]| Slice::Coded { file: 0, coding, parts: parts.to_vec() };
        if found.len() as u64 == frames {
            return Ok(found.iter().map(|part| slice(std::slice::from_ref(part))).collect());
        }
        if frames == 1 && !found.is_empty() {
            return Ok(vec![slice(&found)]);
        }
        let table = table.unwrap_or_default();
        let begins: Vec<u64> =
            table.as_chunks::<4>().0.iter().map(|at| u32::from_le_bytes(*at).into()).collect();
        let wrong = || damaged(format!("it has {} parts of pixels for {frames} frames", found.len()));
        // Relative to the first fragment's header, which is eight bytes long.
        let first = found.first().ok_or_else(wrong)?.0;
        if begins.len() as u64 != frames || begins[0] != 0 || !begins.is_sorted_by(|one, next| one < next) {
            return Err(wrong());
        }
        let place = |begin: u64| found.partition_point(|(start, _)| start - first < begin);
        let ends = begins.iter().skip(1).map(|begin| place(*begin)).chain([found.len()]);
        let slices = begins.iter().zip(ends).map(|(begin, end)| match found.get(place(*begin)..end) {
            Some(parts) if !parts.is_empty() => Ok(slice(parts)),
            _ => Err(wrong()),
        });
        slices.collect()
    }

    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], LoaderError> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

fn wanted(tag: (u16, u16)) -> bool {
    matches!(
        tag,
        (0x0002, 0x0010)
            | (0x0018, 0x0050 | 0x0088)
            | (0x0020, 0x000e | 0x0013 | 0x0032 | 0x0037)
            | (
                0x0028,
                0x0002 | 0x0008 | 0x0010 | 0x0011 | 0x0030 | 0x0100 | 0x0101 | 0x0103 | 0x1052 | 0x1053
            )
    )
}

impl Found {
    fn note(&mut self, tag: (u16, u16), value: &[u8]) {
        let text = String::from_utf8_lossy(value);
        let text = text.trim_matches(|letter: char| letter == '\0' || letter.is_whitespace());
        let numbers = || -> Vec<f64> {
            let parsed = text.split('\\').filter_map(|part| part.trim().parse::<f64>().ok());
            parsed.filter(|number| number.is_finite()).collect()
        };
        let one = || numbers().first().copied();
        let short = match value {
            [low, high, ..] => u16::from_le_bytes([*low, *high]),
            _ => 0,
        };
        match tag {
            (0x0002, 0x0010) => text.clone_into(&mut self.syntax),
            (0x0020, 0x000e) => text.clone_into(&mut self.series),
            (0x0018, 0x0050) => self.thickness = one().unwrap_or(0.0),
            (0x0018, 0x0088) => self.between = one().unwrap_or(0.0),
            (0x0020, 0x0013) => self.number = one().unwrap_or(0.0),
            (0x0020, 0x0032) => self.position = numbers(),
            (0x0020, 0x0037) => self.orientation = numbers(),
            (0x0028, 0x0008) => self.frames = one(),
            (0x0028, 0x0030) => self.spacing = numbers(),
            (0x0028, 0x1052) => self.intercept = one(),
            (0x0028, 0x1053) => self.slope = one(),
            (0x0028, 0x0002) => self.samples = short,
            (0x0028, 0x0010) => self.rows = short,
            (0x0028, 0x0011) => self.columns = short,
            (0x0028, 0x0100) => self.allocated = short,
            (0x0028, 0x0101) => self.stored = short,
            (0x0028, 0x0103) => self.signed = short,
            _ => {}
        }
    }
}
