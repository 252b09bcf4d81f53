//! Decoded pixels: interleaved rows of one sample type.

/// Type of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sample {
    /// Eight bits, 0 to 255.
    U8,
    /// Sixteen bits, 0 to 65535.
    U16,
    /// 32-bit floating point with the file's values.
    F32,
}

impl Sample {
    /// Size in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::F32 => 4,
        }
    }

    /// Name, as in torch.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::U16 => "uint16",
            Self::F32 => "float32",
        }
    }

    /// Type with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::U8, Self::U16, Self::F32].into_iter().find(|sample| sample.name() == name)
    }
}

/// Bands of a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bands {
    /// Brightness.
    Grey,
    /// Brightness and alpha.
    GreyAlpha,
    /// Red, green, blue.
    Rgb,
    /// Red, green, blue, alpha.
    Rgba,
    /// Inks: cyan, magenta, yellow, black; 255 is full ink.
    Cmyk,
    /// Any number of bands with unknown meaning.
    Many(u32),
}

impl Bands {
    /// Number of bands.
    pub fn count(self) -> u32 {
        match self {
            Self::Grey => 1,
            Self::GreyAlpha => 2,
            Self::Rgb => 3,
            Self::Rgba | Self::Cmyk => 4,
            Self::Many(count) => count,
        }
    }

    /// Returns `true` if the last band is alpha.
    pub fn alpha(self) -> bool {
        matches!(self, Self::GreyAlpha | Self::Rgba)
    }
}

/// Layout of an image's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Bands of a pixel.
    pub bands: Bands,
    /// Type of a sample.
    pub sample: Sample,
}

impl Layout {
    /// Size of a pixel in bytes.
    pub fn pixel(self) -> usize {
        self.bands.count() as usize * self.sample.bytes()
    }
}

/// Rows of pixels from the top, without gaps.
#[derive(Clone, Debug, PartialEq)]
pub struct Pixels {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Layout of the values.
    pub layout: Layout,
    /// Values in native byte order.
    pub data: Vec<u8>,
}

impl Pixels {
    /// Size in bytes of an image, or `None` if it overflows.
    pub(crate) fn size(width: u32, height: u32, layout: Layout) -> Option<usize> {
        (width as usize).checked_mul(height as usize)?.checked_mul(layout.pixel())
    }

    /// Creates an image of zeros.
    pub fn zeroed(width: u32, height: u32, layout: Layout) -> Option<Self> {
        Some(Self { width, height, layout, data: vec![0; Self::size(width, height, layout)?] })
    }
}

/// Rectangle in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rect {
    /// First column.
    pub left: u32,
    /// First row.
    pub top: u32,
    /// Number of columns.
    pub width: u32,
    /// Number of rows.
    pub height: u32,
}

impl Rect {
    /// Rectangle of a whole image.
    pub fn whole(width: u32, height: u32) -> Self {
        Self { left: 0, top: 0, width, height }
    }

    /// Column after the last.
    pub fn right(&self) -> u32 {
        self.left.saturating_add(self.width)
    }

    /// Row after the last.
    pub fn bottom(&self) -> u32 {
        self.top.saturating_add(self.height)
    }

    /// Returns `true` if it is not empty and lies inside an image of this size.
    pub fn inside(&self, width: u32, height: u32) -> bool {
        self.width > 0
            && self.height > 0
            && u64::from(self.left) + u64::from(self.width) <= u64::from(width)
            && u64::from(self.top) + u64::from(self.height) <= u64::from(height)
    }
}
