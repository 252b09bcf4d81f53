//! What can go wrong with an image, and what can be done about it.

use std::path::PathBuf;

/// Why an image, or a loader, could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoaderError {
    /// The file is none of the formats that are read.
    #[error(
        "it is no image in a format that is read (JPEG, PNG, WebP, TIFF, GIF, BMP, PNM, JPEG 2000): it begins with {begins}"
    )]
    UnknownFormat {
        /// Its first bytes.
        begins: String,
    },
    /// The file is cut off or damaged.
    #[error("the {format} is damaged: {reason}")]
    Damaged {
        /// Its format.
        format: &'static str,
        /// What the decoder said.
        reason: String,
    },
    /// A kind of image that its format allows and that is not read.
    #[error("this kind of {format} is not read: {reason}")]
    Unsupported {
        /// Its format.
        format: &'static str,
        /// What is not.
        reason: String,
    },
    /// An image that alone is larger than the budget.
    #[error(
        "decoding {width}x{height} {format} takes {}, more than the {} that are there for it",
        size(*needs),
        size(*has)
    )]
    Oversize {
        /// Its format.
        format: &'static str,
        /// Its width in pixels.
        width: u32,
        /// Its height in pixels.
        height: u32,
        /// What decoding it takes, in bytes.
        needs: u64,
        /// What the budget leaves, in bytes.
        has: u64,
    },
    /// The image's values are of another type than the batch's.
    #[error("its values are {found}, and the batch is of {wanted}")]
    OtherType {
        /// The image's type.
        found: &'static str,
        /// The batch's.
        wanted: &'static str,
    },
    /// The image has another number of bands than the batch.
    #[error("it has {found} bands, and the batch has {wanted}")]
    OtherBands {
        /// The image's.
        found: u32,
        /// The batch's.
        wanted: u32,
    },
    /// A crop that is not inside the image.
    #[error("the crop {crop} is not inside the image of {width}x{height}")]
    CropOutside {
        /// The crop as left, top, width, height.
        crop: String,
        /// The image's width.
        width: u32,
        /// The image's height.
        height: u32,
    },
    /// An image of which no tile can be cut.
    #[error("its {width}x{height} pixels are less than a tile of {}x{}", tile.0, tile.1)]
    SmallerThanTile {
        /// The image's width.
        width: u32,
        /// The image's height.
        height: u32,
        /// Width and height of a tile.
        tile: (u32, u32),
    },
    /// The operating system would not give the bytes.
    #[error("it cannot be read: {0}")]
    Read(#[from] std::io::Error),
    /// What the source said, when it is not ours.
    #[error("{0}")]
    Source(String),
    /// One sample failed, and the policy is to stop.
    #[error("{name}: {error}")]
    Sample {
        /// The sample, as its source calls it.
        name: String,
        /// Why.
        error: Box<LoaderError>,
    },
    /// A folder or a shard that cannot be used as a source.
    #[error("{}: {reason}", path.display())]
    BadSource {
        /// The folder or the file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Settings that contradict each other or the data.
    #[error("{0}")]
    Settings(String),
    /// A bug of the loader's own: a decoder fell over.
    #[error("the decoder fell over, which is a bug: {0}")]
    Bug(String),
}

impl LoaderError {
    /// Makes an error of what a decoder said about damaged input; for `map_err`.
    pub(crate) fn damaged<E: std::fmt::Display>(format: &'static str) -> impl Fn(E) -> Self {
        move |reason| Self::Damaged { format, reason: reason.to_string() }
    }

    /// What the user can do.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::UnknownFormat { .. } => {
                Some("remove it from the folder, or pass on_error=\"skip\" to leave such files out")
            }
            Self::Damaged { .. } => {
                Some("mend or remove the file, or pass on_error=\"skip\" or on_error=\"replace\"")
            }
            Self::Oversize { .. } => Some(
                "raise memory=, lower batch_size=, or pass oversize=\"skip\"; a progressive JPEG rewritten as a baseline one takes a small part of it",
            ),
            Self::SmallerThanTile { .. } => {
                Some("make tiles smaller, or pass on_error=\"skip\" to leave such images out")
            }
            Self::OtherType { .. } => {
                Some("say which type the batch is to have with dtype=; values are then scaled to its range")
            }
            Self::OtherBands { .. } => {
                Some("pass mode=\"rgb\" or mode=\"l\", which every image can be turned into")
            }
            Self::Sample { error, .. } => error.hint(),
            _ => None,
        }
    }
}

/// A size with its binary unit.
fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.2} GiB")
}
