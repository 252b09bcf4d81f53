//! Decoding plan of one image: scale, region and cost.
//!
//! The plan is computed from the header, before memory of the image's size is allocated.

use fast_image_resize::FilterType;

use crate::LoaderError;
use crate::convert;
use crate::header::{Format, Header, Storage};
use crate::pixels::{Layout, Pixels, Rect, Sample};
use crate::turn::Turn;
use crate::view::View;
use crate::{Backend, Mode};

/// Resampling filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// Triangle filter.
    #[default]
    Bilinear,
    /// Cubic filter, as Pillow's `BICUBIC`.
    Bicubic,
    /// Windowed sinc with three lobes, the sharpest.
    Lanczos,
    /// Mean of the covered pixels.
    Box,
    /// Nearest neighbour, for masks, whose values must not be mixed.
    Nearest,
}

impl Filter {
    /// Filter with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "bilinear" => Some(Self::Bilinear),
            "bicubic" => Some(Self::Bicubic),
            "lanczos" => Some(Self::Lanczos),
            "box" => Some(Self::Box),
            "nearest" => Some(Self::Nearest),
            _ => None,
        }
    }

    /// Filter of the resizing library, if there is one.
    pub(crate) fn curve(self) -> Option<FilterType> {
        match self {
            Self::Bilinear => Some(FilterType::Bilinear),
            Self::Bicubic => Some(FilterType::CatmullRom),
            Self::Lanczos => Some(FilterType::Lanczos3),
            Self::Box => Some(FilterType::Box),
            Self::Nearest => None,
        }
    }

    /// Radius of the filter in pixels of the result.
    fn reach(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
            Self::Box | Self::Nearest => 0.5,
        }
    }
}

/// Conversion of a file's pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rendering {
    /// Bands of the result.
    pub mode: Mode,
    /// Sample type of the result; `None` keeps the file's.
    pub sample: Option<Sample>,
    /// Resampling filter.
    pub filter: Filter,
    /// Decode at a smaller scale if that has at least this many times the wanted pixels in each direction;
    /// `None` always decodes in full.
    pub margin: Option<f64>,
    /// Page of a multi-page TIFF.
    pub page: u32,
    /// `true` to apply the EXIF orientation.
    pub upright: bool,
}

impl Default for Rendering {
    fn default() -> Self {
        Self {
            mode: Mode::Rgb,
            sample: None,
            filter: Filter::Bilinear,
            margin: Some(2.0),
            page: 0,
            upright: true,
        }
    }
}

/// Memory needed during decoding, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// File content, if it is held in memory.
    pub file: u64,
    /// Buffers that the loader keeps for the next image: decoded, converted and resized pixels.
    pub buffers: u64,
    /// Temporary allocations of the decoder.
    pub decoder: u64,
}

impl Cost {
    /// Sum of all parts.
    pub fn total(&self) -> u64 {
        self.file.saturating_add(self.buffers).saturating_add(self.decoder)
    }
}

/// Decoding plan of one image, in coordinates of the stored image at the decoding scale.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// Denominator of the scale: 1, 2, 4 or 8.
    pub(crate) denominator: u32,
    /// `true` if the Rust decoder decodes a JPEG in full although there is another decoder.
    pub(crate) in_rust: bool,
    /// Decoded pixels.
    pub(crate) region: Rect,
    /// Pixels that contribute to the result, relative to the region's corner.
    pub(crate) window: Rect,
    /// Part that becomes the result, relative to the window's corner.
    pub(crate) frame: [f64; 4],
    /// Width and height of the result before it is turned.
    pub(crate) size: (u32, u32),
    /// Rotation and mirroring of the result.
    pub(crate) turn: Turn,
    /// Layout of the file.
    pub(crate) from: Layout,
    /// Layout of the result.
    pub(crate) to: Layout,
    /// Resampling filter.
    pub(crate) filter: Filter,
    /// Memory needed.
    pub(crate) cost: Cost,
}

/// Rows decoded at once in formats that are decoded by rows.
pub(crate) const STRIP_ROWS: u32 = 32;

impl Plan {
    /// Plans an image with this header, in a file of this length.
    pub(crate) fn new(
        header: &Header,
        view: &View,
        rendering: &Rendering,
        backend: Backend,
        file: u64,
    ) -> Result<Self, LoaderError> {
        let turn = Turn::exif(if rendering.upright { header.orientation } else { 1 });
        let stored = (header.width, header.height);
        let clip = turn.rect(view.clip, stored);
        let frame = turn.frame(view.frame, stored);
        let size = turn.size(view.size);
        let from = header.layout;
        let to = Layout {
            bands: rendering.mode.bands(from.bands),
            sample: rendering.sample.unwrap_or(from.sample),
        };
        convert::possible(from, to)?;

        let denominator = match (&header.storage, rendering.margin) {
            (Storage::Jpeg { .. }, Some(margin)) if backend.scales() => denominator(&frame, size, margin, 3),
            (Storage::Jp2 { levels, .. }, Some(margin)) => denominator(&frame, size, margin, *levels),
            _ => 1,
        };
        let shrunk = f64::from(denominator);
        let mut frame = frame.map(|part| part / shrunk);
        if matches!(header.storage, Storage::Jp2 { .. }) {
            // The first pixel of a resolution level is aligned with the image's first pixel, not with the
            // centre of the pixels that it represents.
            frame[0] += 0.5 - 0.5 / shrunk;
            frame[1] += 0.5 - 0.5 / shrunk;
        }
        let scaled = (header.width.div_ceil(denominator), header.height.div_ceil(denominator));
        let wanted = region(&clip, &frame, size, rendering.filter, denominator, scaled);
        let resized = (frame[2], frame[3]) != (f64::from(size.0), f64::from(size.1));
        // Without a margin, or without resizing, the pixels must be libjpeg's own.
        let in_rust = backend.is_slow_in_full()
            && denominator == 1
            && resized
            && rendering.margin.is_some()
            && matches!(header.storage, Storage::Jpeg { progressive: false, unusual: None, .. })
            && 2 * u64::from(wanted.width) * u64::from(wanted.height) >= header.pixels();
        let region = if in_rust {
            Rect::whole(scaled.0, scaled.1)
        } else {
            widen(wanted, header, backend, denominator, scaled)
        };
        let window = Rect { left: wanted.left - region.left, top: wanted.top - region.top, ..wanted };
        let [left, top, width, height] = frame;
        let left = (left - f64::from(wanted.left)).max(0.0);
        let top = (top - f64::from(wanted.top)).max(0.0);
        let frame = [
            left,
            top,
            width.min(f64::from(wanted.width) - left),
            height.min(f64::from(wanted.height) - top),
        ];
        let mut plan = Self {
            denominator,
            in_rust,
            region,
            window,
            frame,
            size,
            turn: if view.flip { turn.flipped() } else { turn },
            from,
            to,
            filter: rendering.filter,
            cost: Cost::default(),
        };
        plan.cost = plan.price(header, file).ok_or_else(|| LoaderError::Damaged {
            format: header.format.name(),
            reason: format!("its header says {}x{}, which no memory holds", header.width, header.height),
        })?;
        Ok(plan)
    }

    /// Bytes of the result.
    pub(crate) fn bytes(&self) -> usize {
        self.size.0 as usize * self.size.1 as usize * self.to.pixel()
    }

    /// Bytes of the decoded region.
    pub(crate) fn region_bytes(&self) -> usize {
        self.region.width as usize * self.region.height as usize * self.from.pixel()
    }

    /// Returns `true` if pixels are copied before they are resized: for a conversion, or to crop a wider
    /// strip.
    pub(crate) fn copies(&self) -> bool {
        self.from != self.to || self.window.width != self.region.width
    }

    /// Returns `true` if the image is decoded in several strips of rows.
    pub(crate) fn in_strips(&self, header: &Header) -> bool {
        match &header.storage {
            Storage::Png { interlaced, composed, .. } => {
                !interlaced && !composed && self.region.height > STRIP_ROWS
            }
            Storage::Tiff { chunk, .. } => chunk.1 < self.region.height,
            Storage::Rows(_) => self.region.height > STRIP_ROWS,
            _ => false,
        }
    }

    /// Computes the cost. Returns `None` on overflow.
    fn price(&self, header: &Header, file: u64) -> Option<Cost> {
        let bytes = |width: u32, height: u32, layout: Layout| {
            Pixels::size(width, height, layout).map(|size| size as u64)
        };
        let (region, whole) = (self.region, header.pixels());
        let strips = self.in_strips(header);
        // Resizing is horizontal first, and holds the result for all rows.
        let across = bytes(self.size.0, self.window.height, self.to)?;
        let result = bytes(self.size.0, self.size.1, self.to)?;
        let held = |rows: u32| -> Option<u64> {
            let decoded = bytes(region.width, rows, self.from)?;
            let copied = if self.copies() { bytes(self.window.width, rows, self.to)? } else { 0 };
            decoded.checked_add(copied)
        };
        let mut cost = Cost { file: 0, buffers: across.checked_add(result)?, decoder: 0 };
        match &header.storage {
            Storage::Jpeg { progressive, samples, block, .. } => {
                cost.file = file;
                cost.buffers = cost.buffers.checked_add(held(region.height)?)?;
                let rows = u64::from(header.width) * u64::from(block.1) * 8;
                // All coefficients are held, with two bytes each; blocks at the edges are whole.
                let padded = u64::from(header.width.next_multiple_of(block.0))
                    * u64::from(header.height.next_multiple_of(block.1));
                let coefficients = if *progressive { padded * 2 * u64::from(*samples) / 1000 } else { 0 };
                // The scaled decoder holds tables and a row of blocks.
                let small = if self.denominator >= 4 { SCALED_TABLE_BYTES + rows / 16 } else { 0 };
                cost.decoder = rows + coefficients + small + (64 << 10);
            }
            Storage::Png { interlaced, composed, .. } => {
                let line = u64::from(header.width) * 8;
                cost.decoder = 4 * line + (256 << 10);
                let rows = if strips { STRIP_ROWS } else { region.height };
                cost.buffers = cost.buffers.checked_add(held(rows)?)?;
                // For an animation: the canvas, the current frame, and the area that it covers.
                let pictures = if *composed { 3 } else { u64::from(*interlaced) };
                let held = whole.checked_mul(self.from.pixel() as u64)?.checked_mul(pictures)?;
                cost.buffers = cost.buffers.checked_add(held)?;
            }
            Storage::WebP { beside, .. } => {
                cost.decoder =
                    whole.checked_mul((*beside).into())?.checked_add(file)?.checked_add(256 << 10)?;
                cost.buffers = cost.buffers.checked_add(held(region.height)?)?;
            }
            Storage::Gif => {
                // The canvas three times with four values a pixel, and the decoder's read-ahead.
                cost.buffers = cost.buffers.checked_add(held(region.height)?)?;
                cost.buffers = cost.buffers.checked_add(whole.checked_mul(12)?)?;
                cost.decoder = whole + (256 << 10);
            }
            Storage::Rows(stored) => {
                let rows = if strips { STRIP_ROWS } else { region.height };
                cost.buffers = cost.buffers.checked_add(held(rows)?)?.checked_add(stored.stride)?;
                cost.decoder = 64 << 10;
            }
            Storage::Jp2 { components, .. } => {
                cost.file = file;
                cost.buffers = cost.buffers.checked_add(held(region.height)?)?;
                // Each value is a float: as coefficient, as pixel, and once more during the transform.
                let pixels = u64::from(region.width) * u64::from(region.height);
                let floats = pixels.checked_mul(u64::from(*components))?.checked_mul(JP2_VALUE_BYTES)?;
                cost.decoder = floats.checked_add(file)?.checked_add(1 << 20)?;
            }
            Storage::Tiff { chunk, packed, .. } => {
                // A palette is read as a list of values, each in a separate structure.
                let palette = packed.filter(|packed| packed.palette);
                let colours = palette.map_or(0, |packed| (3_u64 << packed.bits) * PALETTE_VALUE_BYTES);
                let one = bytes(chunk.0, chunk.1, self.from)?.checked_mul(2)?;
                cost.decoder = one.checked_add(256 << 10)?.checked_add(colours)?;
                cost.buffers = cost.buffers.checked_add(held(chunk.1.min(header.height))?)?;
            }
        }
        Some(cost)
    }
}

/// Bytes of the scaled JPEG decoder's tables: three for each of six codes.
const SCALED_TABLE_BYTES: u64 = 6 * 3 * (16 << 10);

/// Bytes that the TIFF decoder holds for a palette value.
const PALETTE_VALUE_BYTES: u64 = 40;

/// Bytes that a JPEG 2000 decoder holds for each value.
const JP2_VALUE_BYTES: u64 = 12;

/// Largest denominator, up to two to the power of `levels`, that leaves at least `margin` times the wanted
/// pixels.
fn denominator(frame: &[f64; 4], size: (u32, u32), margin: f64, levels: u32) -> u32 {
    // Scales between these are slower to decode than the full size.
    (1..=levels)
        .rev()
        .map(|level| 1_u32 << level)
        .find(|&by| {
            let enough = |has: f64, wants: u32| has / f64::from(by) >= margin * f64::from(wants) - 1e-9;
            enough(frame[2], size.0) && enough(frame[3], size.1)
        })
        .unwrap_or(1)
}

/// Pixels that contribute to the result.
fn region(
    clip: &Rect,
    frame: &[f64; 4],
    size: (u32, u32),
    filter: Filter,
    denominator: u32,
    scaled: (u32, u32),
) -> Rect {
    let side = |start: f64, length: f64, wanted: u32, low: u32, high: u32, end: u32| {
        // When enlarging, the filter covers at least the width of one pixel.
        let reach = filter.reach() * (length / f64::from(wanted)).max(1.0) + 1.0;
        let low = f64::from(low / denominator);
        let high = f64::from(high.div_ceil(denominator).min(end));
        let first = (start - reach).floor().clamp(low, high - 1.0);
        let last = (start + length + reach).ceil().clamp(first + 1.0, high);
        (first as u32, (last - first) as u32)
    };
    let (left, width) = side(frame[0], frame[2], size.0, clip.left, clip.right(), scaled.0);
    let (top, height) = side(frame[1], frame[3], size.1, clip.top, clip.bottom(), scaled.1);
    Rect { left, top, width, height }
}

/// Extends a region to one that the decoder can produce.
fn widen(region: Rect, header: &Header, backend: Backend, denominator: u32, scaled: (u32, u32)) -> Rect {
    match (&header.storage, header.format) {
        (Storage::Jpeg { block, .. }, _) if backend.scales() => {
            // Aligned to blocks; one more block on each side, since chroma upsampling needs neighbours.
            let step = (block.0 / denominator).max(1);
            let left = (region.left / step).saturating_sub(1) * step;
            let right = region.right().next_multiple_of(step).saturating_add(step).min(scaled.0);
            Rect { left, width: right - left, ..region }
        }
        (_, Format::Tiff) => region,
        (Storage::Png { composed: true, .. }, _) => Rect::whole(scaled.0, scaled.1),
        // Rows are decoded whole.
        (Storage::Png { .. } | Storage::Rows(_), _) => Rect { left: 0, width: scaled.0, ..region },
        _ => Rect::whole(scaled.0, scaled.1),
    }
}
