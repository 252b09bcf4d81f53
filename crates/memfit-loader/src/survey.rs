//! Statistics of a source, from every image's header and a few decoded samples.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::LoaderError;
use crate::decode::{Decoder, Prepared};
use crate::header::{Format, Header, Storage};
use crate::pixels::Sample;
use crate::plan::Rendering;
use crate::source::Source;
use crate::view::Framing;

/// Maximum number of broken files that are named; further ones are counted.
const MAX_NAMED: usize = 20;

/// Minimum, median and maximum of numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Minimum.
    pub least: u64,
    /// Median.
    pub median: u64,
    /// Maximum.
    pub greatest: u64,
    /// Sum.
    pub sum: u64,
}

impl Spread {
    fn from_numbers(mut numbers: Vec<u64>) -> Self {
        numbers.sort_unstable();
        let (Some(&least), Some(&greatest)) = (numbers.first(), numbers.last()) else {
            return Self::default();
        };
        Self { least, median: numbers[numbers.len() / 2], greatest, sum: numbers.iter().sum() }
    }
}

/// Statistics of a source.
#[derive(Debug, Default)]
pub struct Survey {
    /// Number of samples.
    pub count: u64,
    /// Number of files and bytes by format.
    pub formats: BTreeMap<Format, (u64, u64)>,
    /// Number of images by sample type.
    pub samples: BTreeMap<&'static str, u64>,
    /// Number of progressive JPEGs and interlaced PNGs.
    pub progressive: u64,
    /// Number of images with an EXIF orientation other than upright.
    pub turned: u64,
    /// Bytes of a file.
    pub bytes: Spread,
    /// Pixels of an image.
    pub pixels: Spread,
    /// Width and height of the image with the most pixels.
    pub largest: (u32, u32),
    /// Bytes that the loader needs to decode an image.
    pub cost: Spread,
    /// Bytes that a program needs that always decodes in full.
    pub full: Spread,
    /// Number of images of which the loader decodes only a part of the pixels.
    pub scaled: u64,
    /// Number of unreadable files, and some of them with the reasons.
    pub broken: (u64, Vec<(String, String)>),
    /// Number of samples by class.
    pub classes: Vec<(String, u64)>,
}

#[derive(Default)]
struct Found {
    survey: Survey,
    bytes: Vec<u64>,
    pixels: Vec<u64>,
    cost: Vec<u64>,
    full: Vec<u64>,
}

impl Survey {
    /// Reads the header of every image; with `verify`, decodes every one.
    pub fn read(
        source: &dyn Source,
        framing: &Framing,
        rendering: &Rendering,
        threads: usize,
        verify: bool,
    ) -> Self {
        let next = AtomicU64::new(0);
        let all = Mutex::new(Found::default());
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    let mut found = Found::default();
                    let mut decoder = Decoder::new();
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        if index >= source.count() {
                            break;
                        }
                        let looked = look(source, index, framing, rendering, &mut found).and_then(|image| {
                            if verify { decode(&mut decoder, &image).map(drop) } else { Ok(()) }
                        });
                        if let Err(error) = looked {
                            found.survey.broken.0 += 1;
                            found.survey.broken.1.push((source.name(index), error.to_string()));
                        }
                    }
                    all.lock().unwrap_or_else(PoisonError::into_inner).add(found);
                });
            }
        });
        let found = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut survey = found.survey;
        survey.count = source.count();
        survey.bytes = Spread::from_numbers(found.bytes);
        survey.pixels = Spread::from_numbers(found.pixels);
        survey.cost = Spread::from_numbers(found.cost);
        survey.full = Spread::from_numbers(found.full);
        survey.broken.1.sort();
        survey.broken.1.truncate(MAX_NAMED);
        survey.classes = classes(source);
        survey
    }
}

impl Found {
    fn add(&mut self, other: Self) {
        let (one, two) = (&mut self.survey, other.survey);
        for (format, (count, bytes)) in two.formats {
            let entry = one.formats.entry(format).or_default();
            entry.0 += count;
            entry.1 += bytes;
        }
        for (name, count) in two.samples {
            *one.samples.entry(name).or_default() += count;
        }
        one.progressive += two.progressive;
        one.turned += two.turned;
        one.scaled += two.scaled;
        one.broken.0 += two.broken.0;
        one.broken.1.extend(two.broken.1);
        let area = |(width, height): (u32, u32)| u64::from(width) * u64::from(height);
        if area(two.largest) > area(one.largest) {
            one.largest = two.largest;
        }
        self.bytes.extend(other.bytes);
        self.pixels.extend(other.pixels);
        self.cost.extend(other.cost);
        self.full.extend(other.full);
    }

    fn note(&mut self, header: &Header, bytes: u64, image: &Prepared) {
        let survey = &mut self.survey;
        let entry = survey.formats.entry(header.format).or_default();
        entry.0 += 1;
        entry.1 += bytes;
        *survey.samples.entry(header.layout.sample.name()).or_default() += 1;
        survey.progressive += u64::from(header.progressive());
        survey.turned += u64::from(header.orientation != 1);
        survey.scaled += u64::from(image.denominator() > 1);
        let area = u64::from(survey.largest.0) * u64::from(survey.largest.1);
        if header.pixels() > area {
            survey.largest = (header.width, header.height);
        }
        self.bytes.push(bytes);
        self.pixels.push(header.pixels());
        self.cost.push(image.cost().total());
        self.full.push(full_decode_bytes(header, bytes));
    }
}

fn look(
    source: &dyn Source,
    index: u64,
    framing: &Framing,
    rendering: &Rendering,
    found: &mut Found,
) -> Result<Prepared, LoaderError> {
    let (input, _) = source.open(index)?;
    let bytes = input.length();
    let image = Prepared::new(input, framing, rendering, &[index])?;
    found.note(image.header(), bytes, &image);
    Ok(image)
}

fn decode(decoder: &mut Decoder, image: &Prepared) -> Result<usize, LoaderError> {
    let mut out = vec![0; image.bytes()];
    decoder.decode(image, true, &mut out)?;
    let _ = decoder.trim(64 << 20);
    Ok(out.len())
}

/// Bytes that a program needs that reads the file and decodes it whole to 8-bit RGB: file, pixels, and
/// coefficients if any.
fn full_decode_bytes(header: &Header, bytes: u64) -> u64 {
    let coefficients = match header.storage {
        Storage::Jpeg { progressive: true, samples, .. } => header.pixels() * 2 * u64::from(samples) / 1000,
        _ => 0,
    };
    let value = if header.layout.sample == Sample::U8 { 3 } else { 3 * header.layout.sample.bytes() as u64 };
    bytes + header.pixels() * value + coefficients
}

fn classes(source: &dyn Source) -> Vec<(String, u64)> {
    let mut counts: BTreeMap<i64, u64> = BTreeMap::new();
    for index in 0..source.count() {
        if let Some(label) = source.label(index) {
            *counts.entry(label).or_default() += 1;
        }
    }
    let name = |label: i64| {
        usize::try_from(label)
            .ok()
            .and_then(|label| source.classes().get(label).cloned())
            .unwrap_or(label.to_string())
    };
    counts.into_iter().map(|(label, count)| (name(label), count)).collect()
}

/// Throughput of decoding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Number of decoded images.
    pub images: u64,
    /// Elapsed time.
    pub wall: Duration,
    /// Number of threads.
    pub threads: usize,
}

/// Decodes images spread over the whole source, with the loader's plan, for about `most`.
pub fn measure(
    source: &dyn Source,
    framing: &Framing,
    rendering: &Rendering,
    threads: usize,
    most: Duration,
) -> Option<Speed> {
    let count = source.count();
    if count == 0 {
        return None;
    }
    // A step that is coprime to the count reaches every sample.
    let step =
        (0..count).map(|more| count * 618 / 1000 + 1 + more).find(|&step| common_factor(step, count) == 1)?;
    let run = |limit: Duration, least: u64| {
        let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    let mut decoder = Decoder::new();
                    loop {
                        let turn = next.fetch_add(1, Ordering::Relaxed);
                        if turn >= count.max(least) || (turn >= least && begin.elapsed() > limit) {
                            break;
                        }
                        let index = (u128::from(turn) * u128::from(step) % u128::from(count)) as u64;
                        let image = source
                            .open(index)
                            .and_then(|(input, _)| Prepared::new(input, framing, rendering, &[index]));
                        if image.and_then(|image| decode(&mut decoder, &image)).is_ok() {
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        (done.into_inner(), begin.elapsed())
    };
    // The first images fill buffers and the page cache.
    run(most / 8, threads as u64);
    let (images, wall) = run(most, threads as u64 * 2);
    (images > 0).then_some(Speed { images, wall, threads })
}

fn common_factor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { common_factor(other, one % other) }
}
