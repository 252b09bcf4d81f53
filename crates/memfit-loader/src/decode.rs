//! Decoding of one image from bytes to the pixels of a result. All decoders are called from here.

mod gif;
#[cfg(feature = "jpeg2000")]
mod jp2;
mod jpeg;
mod png;
mod raw;
mod scaled;
mod tiff;
#[cfg(feature = "turbo")]
mod turbo;
mod webp;

use std::io::{BufReader, Read as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::LoaderError;
use crate::buffer::Buffer;
use crate::header::{Format, Header};
use crate::input::Input;
use crate::pixels::{Layout, Pixels};
use crate::plan::{Cost, Filter, Plan, Rendering};
use crate::random::Stream;
use crate::reduce::{Buffers, Reducer};
use crate::view::{Framing, View};

/// JPEG decoder of this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// libjpeg-turbo: can decode at a smaller scale, and only a part of the image.
    Turbo,
    /// zune-jpeg, in Rust: always decodes the whole image.
    Rust,
}

impl Backend {
    /// The best decoder of this build.
    pub const BEST: Self = if cfg!(feature = "turbo") { Self::Turbo } else { Self::Rust };

    /// Name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Turbo if cfg!(turbo_simd) => "libjpeg-turbo with SIMD",
            Self::Turbo => "libjpeg-turbo without SIMD; zune-jpeg for full-size decoding",
            Self::Rust => "zune-jpeg",
        }
    }

    /// Returns `true` if the Rust decoder is faster at full size, since this libjpeg-turbo has no vector
    /// code.
    pub fn is_slow_in_full(self) -> bool {
        self == Self::Turbo && !cfg!(turbo_simd)
    }

    /// Returns `true` if it can decode at a smaller scale, and parts.
    pub(crate) fn scales(self) -> bool {
        self == Self::Turbo
    }
}

/// Decoder with its buffers, which are reused between images. Each thread has its own.
#[derive(Default)]
pub struct Decoder {
    file: Buffer,
    decoded: Buffer,
    reduce: Buffers,
    #[cfg(feature = "turbo")]
    turbo: Option<turbo::Turbo>,
}

/// Image whose header has been read: the cost of decoding is known, and no memory has been allocated for it.
#[derive(Debug)]
pub struct Prepared {
    input: Input,
    header: Header,
    /// Overview that is decoded instead, if there is one.
    overview: Option<Header>,
    view: View,
    plan: Plan,
    page: u32,
}

impl Prepared {
    /// Reads the header and plans the decoding.
    ///
    /// `place` seeds the random choices.
    pub fn new(
        input: Input,
        framing: &Framing,
        rendering: &Rendering,
        place: &[u64],
    ) -> Result<Self, LoaderError> {
        let header = Header::read(&mut BufReader::with_capacity(4096, input.reader()), rendering.page)?;
        let upright = if rendering.upright { header.upright() } else { (header.width, header.height) };
        let view = framing.view(upright.0, upright.1, &mut Stream::new(place))?;
        let file = if input.in_memory() { 0 } else { input.length() };
        let turned = upright != (header.width, header.height);
        let stored = |(width, height)| if turned { (height, width) } else { (width, height) };
        let shown = if turned { (view.frame[3], view.frame[2]) } else { (view.frame[2], view.frame[3]) };
        // Values of a mask must not come from an averaged overview.
        let small = rendering
            .margin
            .filter(|_| rendering.filter != Filter::Nearest)
            .and_then(|margin| header.overview(shown, stored(view.size), margin));
        let Some((overview, page)) = small else {
            let plan = Plan::new(&header, &view, rendering, Backend::BEST, file)?;
            return Ok(Self { input, header, overview: None, view, plan, page: rendering.page });
        };
        let there = view.scaled(upright, stored((overview.width, overview.height)));
        let plan = Plan::new(&overview, &there, rendering, Backend::BEST, file)?;
        Ok(Self { input, header, overview: Some(overview), view, plan, page })
    }

    /// Returns `true` if a copy with this short side has at least the wanted pixels of the shown part.
    pub(crate) fn has_enough_pixels(&self, side: u32) -> bool {
        let share = f64::from(side) / f64::from(self.header.width.min(self.header.height).max(1));
        let enough = |has: f64, wants: u32| has * share >= f64::from(wants) - 1e-9;
        enough(self.view.frame[2], self.view.size.0) && enough(self.view.frame[3], self.view.size.1)
    }

    /// The same view of the same image, taken from an upright copy of another size.
    pub(crate) fn view_of_copy(&self, copy: Input, rendering: &Rendering) -> Result<Self, LoaderError> {
        let header = Header::read(&mut BufReader::with_capacity(4096, copy.reader()), 0)?;
        let upright =
            if rendering.upright { self.header.upright() } else { (self.header.width, self.header.height) };
        let there = self.view.scaled(upright, (header.width, header.height));
        let plan = Plan::new(&header, &there, rendering, Backend::BEST, 0)?;
        // The header describes the original image, the plan applies to the copy.
        Ok(Self { input: copy, header, overview: None, view: self.view, plan, page: 0 })
    }

    /// Bytes of the image.
    pub(crate) fn input(&self) -> &Input {
        &self.input
    }

    /// Page that is decoded.
    pub(crate) fn page(&self) -> u32 {
        self.page
    }

    /// Header of the stored image that is decoded, which may be an overview.
    fn stored(&self) -> &Header {
        self.overview.as_ref().unwrap_or(&self.header)
    }

    /// Header of the image.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Cost of decoding.
    pub fn cost(&self) -> Cost {
        self.plan.cost
    }

    /// Denominator of the decoding scale, rounded down for an overview.
    pub fn denominator(&self) -> u32 {
        self.overview.as_ref().map_or(self.plan.denominator, |small| self.header.width / small.width.max(1))
    }

    /// Width and height of the result.
    pub fn size(&self) -> (u32, u32) {
        self.view.size
    }

    /// Layout of the result.
    pub fn layout(&self) -> Layout {
        self.plan.to
    }

    /// Bytes of the result.
    pub fn bytes(&self) -> usize {
        self.plan.bytes()
    }

    /// Mapping of points of the image to the result: `x' = a x + b`, `y' = c y + d` as `[a, b, c, d]`.
    pub fn mapping(&self) -> [f64; 4] {
        self.view.mapping()
    }
}

/// Decoding of a whole JPEG at 1/`by` by each decoder that supports it, for benchmarks and comparisons.
#[doc(hidden)]
pub mod at_scale {
    /// Decodes with the Rust decoder if it accepts the file and the result has at most `most` pixels.
    pub fn in_rust(bytes: &[u8], by: usize, most: usize) -> Option<Vec<u8>> {
        super::scaled::whole(bytes, by, most)
    }

    /// Decodes with libjpeg-turbo to `bands` bands. Returns `None` if the file cannot be read.
    #[cfg(feature = "turbo")]
    pub fn by_library(bytes: &[u8], by: usize, bands: usize) -> Option<Vec<u8>> {
        super::turbo::whole(bytes, by, bands)
    }
}

/// Runs a decoder and converts a panic into an error.
pub(crate) fn catch_panic(decode: impl FnOnce() -> Result<(), LoaderError>) -> Result<(), LoaderError> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("it said nothing");
        Err(LoaderError::Bug(text.to_owned()))
    })
}

impl Decoder {
    /// Creates a decoder without buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes into `out`, which has the length of the result, band by band if `planar`, pixel by pixel
    /// otherwise.
    ///
    /// Returns for any input: a panic of a decoder becomes an error.
    pub fn decode(&mut self, image: &Prepared, planar: bool, out: &mut [u8]) -> Result<(), LoaderError> {
        if out.len() != image.bytes() {
            return Err(LoaderError::Bug(format!("{} bytes for an image of {}", out.len(), image.bytes())));
        }
        if let Err(error) = catch_panic(|| self.reduce(image)) {
            if matches!(error, LoaderError::Bug(_)) {
                // The decoder may be in an inconsistent state after a failure.
                *self = Self::default();
            }
            return Err(error);
        }
        let small = std::mem::take(&mut self.reduce.small);
        let stored = Pixels {
            width: image.plan.size.0,
            height: image.plan.size.1,
            layout: image.plan.to,
            data: small,
        };
        image.plan.turn.place(&stored, planar, out);
        self.reduce.small = stored.data;
        Ok(())
    }

    fn reduce(&mut self, image: &Prepared) -> Result<(), LoaderError> {
        let plan = &image.plan;
        let buffered = || BufReader::with_capacity(64 << 10, image.input.reader());
        let mut reducer = Reducer::new(plan, &mut self.reduce);
        match image.header.format {
            Format::Jpeg => {
                let bytes = whole(&image.input, &mut self.file)?;
                let pixels = self.decoded.room(image.plan.region_bytes());
                #[cfg(feature = "turbo")]
                if scaled::decode(bytes, image, pixels).is_none()
                    && (!plan.in_rust || jpeg::decode(bytes, image, pixels).is_err())
                {
                    let decoded = turbo::Turbo::get_or_init(&mut self.turbo)?.decode(bytes, image, pixels);
                    if decoded.is_err() {
                        // After a failure within a header, the library's decompressor would continue it in
                        // the next image.
                        self.turbo = None;
                    }
                    decoded?;
                }
                #[cfg(not(feature = "turbo"))]
                jpeg::decode(bytes, image, pixels)?;
                reducer.rows(plan.region.height, pixels)?;
            }
            Format::Png => png::decode(buffered(), image, &mut self.decoded, &mut reducer)?,
            Format::WebP => webp::decode(buffered(), image, &mut self.decoded, &mut reducer)?,
            Format::Tiff => tiff::decode(buffered(), image, &mut self.decoded, &mut reducer)?,
            Format::Gif => gif::decode(image.input.reader(), image, &mut self.decoded, &mut reducer)?,
            // Rows are read at their positions, so read-ahead would be discarded.
            Format::Bmp | Format::Pnm => {
                raw::decode(image.input.reader(), image, &mut self.decoded, &mut reducer)?;
            }
            #[cfg(feature = "jpeg2000")]
            Format::Jp2 => {
                let bytes = whole(&image.input, &mut self.file)?;
                let pixels = self.decoded.room(image.plan.region_bytes());
                jp2::decode(bytes, image, pixels)?;
                reducer.rows(plan.region.height, pixels)?;
            }
            #[cfg(not(feature = "jpeg2000"))]
            Format::Jp2 => return Err(LoaderError::Bug("a header that this build does not read".to_owned())),
        }
        reducer.finish(image.header.format.name())
    }

    /// Bytes held for the next image.
    pub fn held(&self) -> usize {
        self.file.capacity() + self.decoded.capacity() + self.reduce.held()
    }

    /// Mapped bytes of these, which no allocator counts.
    pub fn mapped(&self) -> usize {
        self.file.mapped() + self.decoded.mapped() + self.reduce.mapped()
    }

    /// Frees the buffers if they hold more than `most` bytes. Returns whether it did.
    pub fn trim(&mut self, most: usize) -> bool {
        let more = self.held() > most;
        if more {
            self.file = Buffer::default();
            self.decoded = Buffer::default();
            self.reduce.clear();
        }
        more
    }

    /// Frees buffers if they and the image's cost together exceed `most` bytes.
    pub(crate) fn make_room(&mut self, cost: Cost, most: u64) {
        let file = cost.file.max(self.file.capacity() as u64);
        let rest = cost.buffers.max((self.decoded.capacity() + self.reduce.held()) as u64);
        if file.saturating_add(rest).saturating_add(cost.decoder) > most {
            let _ = self.trim(0);
        }
    }
}

/// Returns all bytes of an image, in memory or read into a buffer.
fn whole<'a>(input: &'a Input, buffer: &'a mut Buffer) -> Result<&'a [u8], LoaderError> {
    match input {
        Input::Memory(bytes) => Ok(bytes),
        Input::File { length, .. } => {
            let length = usize::try_from(*length)
                .map_err(|_| LoaderError::Bug("a file that no memory holds".to_owned()))?;
            let bytes = buffer.room(length);
            input.reader().read_exact(bytes)?;
            Ok(bytes)
        }
    }
}
