//! One image, from bytes to the pixels of a result: the only door to the decoders.

mod jpeg;
mod png;
mod tiff;
#[cfg(feature = "turbo")]
mod turbo;
mod webp;

use std::io::{BufReader, Read as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::LoaderError;
use crate::header::{Format, Header};
use crate::input::Input;
use crate::pixels::{Layout, Pixels};
use crate::plan::{Cost, Plan, Rendering};
use crate::random::Stream;
use crate::reduce::{Buffers, Reducer, room};
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
            Self::Turbo => "libjpeg-turbo without SIMD",
            Self::Rust => "zune-jpeg",
        }
    }

    /// Whether it can decode at a smaller scale, and parts.
    pub(crate) fn scales(self) -> bool {
        self == Self::Turbo
    }
}

/// A decoder with its buffers, which are used again from image to image. Each thread has its own.
#[derive(Default)]
pub struct Decoder {
    file: Vec<u8>,
    decoded: Vec<u8>,
    reduce: Buffers,
    #[cfg(feature = "turbo")]
    turbo: Option<turbo::Turbo>,
}

/// An image whose header was read: what decoding it will take is known, and nothing was allocated for it.
#[derive(Debug)]
pub struct Prepared {
    input: Input,
    header: Header,
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
        let plan = Plan::new(&header, &view, rendering, Backend::BEST, file)?;
        Ok(Self { input, header, view, plan, page: rendering.page })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What decoding takes.
    pub fn cost(&self) -> Cost {
        self.plan.cost
    }

    /// The scale at which it is decoded is one over this.
    pub fn denominator(&self) -> u32 {
        self.plan.denominator
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
        let result = catch_unwind(AssertUnwindSafe(|| self.reduce(image)));
        match result {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error),
            Err(panic) => {
                // What it left half done is of no use to the next image.
                *self = Self::default();
                let text = panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or_else(|| panic.downcast_ref::<&str>().copied())
                    .unwrap_or("it said nothing");
                return Err(LoaderError::Bug(text.to_owned()));
            }
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
        let reader = image.input.reader();
        let mut reducer = Reducer::new(plan, &mut self.reduce);
        match image.header.format {
            Format::Jpeg => {
                let bytes: &[u8] = match &image.input {
                    Input::Memory(bytes) => bytes,
                    Input::File { length, .. } => {
                        let length = usize::try_from(*length)
                            .map_err(|_| LoaderError::Bug("a file that no memory holds".to_owned()))?;
                        let bytes = room(&mut self.file, length);
                        let mut reader = reader;
                        reader.read_exact(bytes)?;
                        bytes
                    }
                };
                let pixels = room(&mut self.decoded, jpeg::room(image));
                #[cfg(feature = "turbo")]
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
            Format::Png => png::decode(
                BufReader::with_capacity(64 << 10, reader),
                image,
                &mut self.decoded,
                &mut reducer,
            )?,
            Format::WebP => webp::decode(
                BufReader::with_capacity(64 << 10, reader),
                image,
                &mut self.decoded,
                &mut reducer,
            )?,
            Format::Tiff => tiff::decode(
                BufReader::with_capacity(64 << 10, reader),
                image,
                &mut self.decoded,
                &mut reducer,
            )?,
        }
        reducer.finish(image.header.format.name())
    }

    /// What it holds for the next image, in bytes.
    pub fn held(&self) -> usize {
        self.file.capacity() + self.decoded.capacity() + self.reduce.held()
    }

    /// Gives back what it holds, if that is more than `most` bytes; whether it was.
    pub fn trim(&mut self, most: usize) -> bool {
        let more = self.held() > most;
        if more {
            self.file = Vec::new();
            self.decoded = Vec::new();
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
