//! Decoded pixels: interleaved rows of one sample type.

/// The type of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sample {
    /// Eight bits, 0 to 255.
    U8,
    /// Sixteen bits, 0 to 65535.
    U16,
    /// Floating point, as it is in the file.
    F32,
}

impl Sample {
    /// Its size in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::F32 => 4,
        }
    }

    /// Its name, as torch has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::U16 => "uint16",
            Self::F32 => "float32",
        }
    }

    /// The type of this name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::U8, Self::U16, Self::F32].into_iter().find(|sample| sample.name() == name)
    }
}

/// What the values of a pixel are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bands {
    /// One value of brightness.
    Grey,
    /// Brightness and opacity.
    GreyAlpha,
    /// Red, green, blue.
    Rgb,
    /// Red, green, blue, opacity.
    Rgba,
    /// Inks: cyan, magenta, yellow, black; 255 is full ink.
    Cmyk,
    /// As many as the file has, with no meaning that is known here.
    Many(u32),
}

impl Bands {
    /// How many values a pixel has.
    pub fn count(self) -> u32 {
        match self {
            Self::Grey => 1,
            Self::GreyAlpha => 2,
            Self::Rgb => 3,
            Self::Rgba | Self::Cmyk => 4,
            Self::Many(count) => count,
        }
    }

    /// Whether the last value is opacity.
    pub fn alpha(self) -> bool {
        matches!(self, Self::GreyAlpha | Self::Rgba)
    }
}

/// What an image's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The values of a pixel.
    pub bands: Bands,
    /// The type of each.
    pub sample: Sample,
}

impl Layout {
    /// The size of a pixel in bytes.
    pub fn pixel(self) -> usize {
        self.bands.count() as usize * self.sample.bytes()
    }
}

/// Rows of pixels, from the top, without gaps.
#[derive(Clone, Debug, PartialEq)]
pub struct Pixels {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// What the values are.
    pub layout: Layout,
    /// The values, in the machine's byte order.
    pub data: Vec<u8>,
}

impl Pixels {
    /// The size of this many pixels in bytes, if it can be had at all.
    pub(crate) fn size(width: u32, height: u32, layout: Layout) -> Option<usize> {
        (width as usize).checked_mul(height as usize)?.checked_mul(layout.pixel())
    }

    /// An image of zeroes.
    pub fn zeroed(width: u32, height: u32, layout: Layout) -> Option<Self> {
        Some(Self { width, height, layout, data: vec![0; Self::size(width, height, layout)?] })
    }
}

/// A part of an image: left, top, width, height in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rect {
    /// The first column.
    pub left: u32,
    /// The first row.
    pub top: u32,
    /// How many columns.
    pub width: u32,
    /// How many rows.
    pub height: u32,
}

impl Rect {
    /// A whole image.
    pub fn whole(width: u32, height: u32) -> Self {
        Self { left: 0, top: 0, width, height }
    }

    /// The column after the last.
    pub fn right(&self) -> u32 {
        self.left.saturating_add(self.width)
    }

    /// The row after the last.
    pub fn bottom(&self) -> u32 {
        self.top.saturating_add(self.height)
    }

    /// Whether it has pixels, all of them inside an image of this size.
    pub fn inside(&self, width: u32, height: u32) -> bool {
        self.width > 0
            && self.height > 0
            && u64::from(self.left) + u64::from(self.width) <= u64::from(width)
            && u64::from(self.top) + u64::from(self.height) <= u64::from(height)
    }
}
