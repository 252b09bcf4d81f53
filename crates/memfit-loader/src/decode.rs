//! One image, from bytes to the pixels of a result: the only door to the decoders.

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

/// What decodes JPEG in this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// libjpeg-turbo: at a smaller scale, and only a part, where that is all that is wanted.
    Turbo,
    /// zune-jpeg, in Rust: always the whole image.
    Rust,
}

impl Backend {
    /// The best one that this build has.
    pub const BEST: Self = if cfg!(feature = "turbo") { Self::Turbo } else { Self::Rust };

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Turbo if cfg!(turbo_simd) => "libjpeg-turbo with SIMD",
            Self::Turbo => "libjpeg-turbo without SIMD, zune-jpeg for what is decoded in full",
            Self::Rust => "zune-jpeg",
        }
    }

    /// Whether what is decoded in full comes faster from the decoder in Rust: libjpeg-turbo has no vector
    /// code here.
    pub(crate) fn slow_in_full(self) -> bool {
        self == Self::Turbo && !cfg!(turbo_simd)
    }

    /// Whether it can decode at a smaller scale, and parts.
    pub(crate) fn scales(self) -> bool {
        self == Self::Turbo
    }
}

/// A decoder with its buffers, which are used again from image to image. Each thread has its own.
#[derive(Default)]
pub struct Decoder {
    file: Buffer,
    decoded: Buffer,
    reduce: Buffers,
    #[cfg(feature = "turbo")]
    turbo: Option<turbo::Turbo>,
}

/// An image whose header was read: what decoding it will take is known, and nothing was allocated for it.
#[derive(Debug)]
pub struct Prepared {
    input: Input,
    header: Header,
    /// The overview that is decoded instead, if there is one.
    overview: Option<Header>,
    view: View,
    plan: Plan,
    page: u32,
}

impl Prepared {
    /// Reads the header, and decides how to decode.
    ///
    /// `place` is what random choices are a function of.
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
        // A mask's values must not be those that someone has averaged.
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

    /// Whether a copy with this short side leaves the pixels that are wanted of what is shown.
    pub(crate) fn enough_of(&self, side: u32) -> bool {
        let share = f64::from(side) / f64::from(self.header.width.min(self.header.height).max(1));
        let enough = |has: f64, wants: u32| has * share >= f64::from(wants) - 1e-9;
        enough(self.view.frame[2], self.view.size.0) && enough(self.view.frame[3], self.view.size.1)
    }

    /// The same view of the same picture, out of a copy of it in another size that stands upright already.
    pub(crate) fn out_of(&self, copy: Input, rendering: &Rendering) -> Result<Self, LoaderError> {
        let header = Header::read(&mut BufReader::with_capacity(4096, copy.reader()), 0)?;
        let upright =
            if rendering.upright { self.header.upright() } else { (self.header.width, self.header.height) };
        let there = self.view.scaled(upright, (header.width, header.height));
        let plan = Plan::new(&header, &there, rendering, Backend::BEST, 0)?;
        // What follows is told of the picture, and done to the copy.
        Ok(Self { input: copy, header, overview: None, view: self.view, plan, page: 0 })
    }

    /// The image's bytes.
    pub(crate) fn input(&self) -> &Input {
        &self.input
    }

    /// The page that is decoded.
    pub(crate) fn page(&self) -> u32 {
        self.page
    }

    /// The header of what is decoded: of an overview, where that is large enough.
    fn stored(&self) -> &Header {
        self.overview.as_ref().unwrap_or(&self.header)
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What decoding takes.
    pub fn cost(&self) -> Cost {
        self.plan.cost
    }

    /// The scale at which it is decoded is one over this, rounded down where an overview is.
    pub fn denominator(&self) -> u32 {
        self.overview.as_ref().map_or(self.plan.denominator, |small| self.header.width / small.width.max(1))
    }

    /// Width and height of the result.
    pub fn size(&self) -> (u32, u32) {
        self.view.size
    }

    /// What the result's values are.
    pub fn layout(&self) -> Layout {
        self.plan.to
    }

    /// The size of the result in bytes.
    pub fn bytes(&self) -> usize {
        self.plan.bytes()
    }

    /// How points of the picture come to lie in the result: `x' = a x + b`, `y' = c y + d` as `[a, b, c, d]`.
    pub fn mapping(&self) -> [f64; 4] {
        self.view.mapping()
    }
}

/// A JPEG in all its width and height at one over `by`, by each of the decoders that can: for those who
/// measure and compare them.
#[doc(hidden)]
pub mod at_scale {
    /// By the decoder in Rust, where it takes the file, of up to this many pixels.
    pub fn in_rust(bytes: &[u8], by: usize, most: usize) -> Option<Vec<u8>> {
        super::scaled::whole(bytes, by, most)
    }

    /// By libjpeg-turbo, into so many bands; `None` if it cannot be read at all.
    #[cfg(feature = "turbo")]
    pub fn by_library(bytes: &[u8], by: usize, bands: usize) -> Option<Vec<u8>> {
        super::turbo::whole(bytes, by, bands)
    }
}

/// What a decoder comes to; one that falls over is an error like any other.
pub(crate) fn standing(decode: impl FnOnce() -> Result<(), LoaderError>) -> Result<(), LoaderError> {
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
    /// A decoder without buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes into `out`, which is as long as the result: band by band if `planar`, else pixel by pixel.
    ///
    /// Whatever the bytes are, this returns: a decoder that falls over is an error like any other.
    pub fn decode(&mut self, image: &Prepared, planar: bool, out: &mut [u8]) -> Result<(), LoaderError> {
        if out.len() != image.bytes() {
            return Err(LoaderError::Bug(format!("{} bytes for an image of {}", out.len(), image.bytes())));
        }
        if let Err(error) = standing(|| self.reduce(image)) {
            if matches!(error, LoaderError::Bug(_)) {
                // What it left half done is of no use to the next image.
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
                let pixels = self.decoded.room(image.plan.room());
                #[cfg(feature = "turbo")]
                if scaled::decode(bytes, image, pixels).is_none()
                    && (!plan.in_rust || jpeg::decode(bytes, image, pixels).is_err())
                {
                    let decoded = turbo::Turbo::ready(&mut self.turbo)?.decode(bytes, image, pixels);
                    if decoded.is_err() {
                        // What failed within a header would be gone on with in the next image.
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
            // Rows stand where they stand: what is read ahead of one would be thrown away.
            Format::Bmp | Format::Pnm => {
                raw::decode(image.input.reader(), image, &mut self.decoded, &mut reducer)?;
            }
            #[cfg(feature = "jpeg2000")]
            Format::Jp2 => {
                let bytes = whole(&image.input, &mut self.file)?;
                let pixels = self.decoded.room(image.plan.room());
                jp2::decode(bytes, image, pixels)?;
                reducer.rows(plan.region.height, pixels)?;
            }
            #[cfg(not(feature = "jpeg2000"))]
            Format::Jp2 => return Err(LoaderError::Bug("a header that this build does not read".to_owned())),
        }
        reducer.finish(image.header.format.name())
    }

    /// What it holds for the next image, in bytes.
    pub fn held(&self) -> usize {
        self.file.capacity() + self.decoded.capacity() + self.reduce.held()
    }

    /// What of that was mapped by itself, and is seen by no allocator.
    pub fn mapped(&self) -> usize {
        self.file.mapped() + self.decoded.mapped() + self.reduce.mapped()
    }

    /// Gives back what it holds, if that is more than `most` bytes; whether it was.
    pub fn trim(&mut self, most: usize) -> bool {
        let more = self.held() > most;
        if more {
            self.file = Buffer::default();
            self.decoded = Buffer::default();
            self.reduce.clear();
        }
        more
    }

    /// Sees to it that what it holds and what an image takes are together no more than `most` bytes.
    pub(crate) fn make_room(&mut self, cost: Cost, most: u64) {
        let file = cost.file.max(self.file.capacity() as u64);
        let rest = cost.buffers.max((self.decoded.capacity() + self.reduce.held()) as u64);
        if file.saturating_add(rest).saturating_add(cost.decoder) > most {
            let _ = self.trim(0);
        }
    }
}

/// All bytes of an image: where they are, or read into a buffer.
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
