//! Errors of the loader, with advice.

use std::path::PathBuf;

use memfit_vocabulary::format_size;

/// Error of an image or of a loader.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoaderError {
    /// The format of the file is not supported.
    #[error(
        "it is not an image in a supported format (JPEG, PNG, WebP, TIFF, GIF, BMP, PNM, JPEG 2000): it begins with {begins}"
    )]
    UnknownFormat {
        /// First bytes of the file.
        begins: String,
    },
    /// The file is truncated or damaged.
    #[error("the {format} is damaged: {reason}")]
    Damaged {
        /// Format.
        format: &'static str,
        /// Message of the decoder.
        reason: String,
    },
    /// A variant of its format that is not supported.
    #[error("this kind of {format} is not supported: {reason}")]
    Unsupported {
        /// Format.
        format: &'static str,
        /// Description of the variant.
        reason: String,
    },
    /// A single image exceeds the budget.
    #[error(
        "decoding {width}x{height} {format} takes {}, more than the {} that are there for it",
        format_size(*needs),
        format_size(*has)
    )]
    Oversize {
        /// Format.
        format: &'static str,
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// Bytes needed for decoding.
        needs: u64,
        /// Bytes available in the budget.
        has: u64,
    },
    /// The sample type differs from the batch's.
    #[error("its values are {found}, but the batch has {wanted}")]
    OtherType {
        /// Sample type of the image.
        found: &'static str,
        /// Sample type of the batch.
        wanted: &'static str,
    },
    /// The number of bands differs from the batch's.
    #[error("it has {found} bands, but the batch has {wanted}")]
    OtherBands {
        /// Number of bands of the image.
        found: u32,
        /// Number of bands of the batch.
        wanted: u32,
    },
    /// The crop is outside of the image.
    #[error("the crop {crop} is not inside the image of {width}x{height}")]
    CropOutside {
        /// Crop as left, top, width, height.
        crop: String,
        /// Width of the image.
        width: u32,
        /// Height of the image.
        height: u32,
    },
    /// The image is smaller than a tile.
    #[error("its {width}x{height} pixels are smaller than a tile of {}x{}", tile.0, tile.1)]
    SmallerThanTile {
        /// Width of the image.
        width: u32,
        /// Height of the image.
        height: u32,
        /// Width and height of a tile.
        tile: (u32, u32),
    },
    /// Reading failed.
    #[error("it cannot be read: {0}")]
    Read(#[from] std::io::Error),
    /// Error of a user-defined source.
    #[error("{0}")]
    Source(String),
    /// A sample failed, and the policy is to stop.
    #[error("{name}: {error}")]
    Sample {
        /// Name given by its source.
        name: String,
        /// Reason.
        error: Box<LoaderError>,
    },
    /// A folder or shard that is not usable as a source.
    #[error("{}: {reason}", path.display())]
    BadSource {
        /// Path of the folder or file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// Settings that contradict each other or the data.
    #[error("{0}")]
    Settings(String),
    /// A bug of the loader: a decoder panicked.
    #[error("the decoder panicked, which is a bug in memfit: {0}")]
    Bug(String),
}

impl LoaderError {
    /// Converts a decoder's error about damaged input; for `map_err`.
    pub(crate) fn damaged<E: std::fmt::Display>(format: &'static str) -> impl Fn(E) -> Self {
        move |reason| Self::Damaged { format, reason: reason.to_string() }
    }

    /// Advice for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::UnknownFormat { .. } => {
                Some("remove it from the folder, or pass on_error=\"skip\" to leave such files out")
            }
            Self::Damaged { .. } => {
                Some("repair or remove the file, or pass on_error=\"skip\" or on_error=\"replace\"")
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
