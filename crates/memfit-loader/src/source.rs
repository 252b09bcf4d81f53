//! Sources of samples: a folder, a list, shards, or a user-defined one.

mod folder;
mod list;
mod shards;
mod tiles;
mod unpacked;

use std::any::Any;

use crate::LoaderError;
use crate::input::Input;
use crate::pixels::Rect;

pub use folder::Folder;
pub use list::List;
pub use shards::Shards;
pub use tiles::Tiles;
pub use unpacked::is_shard;

/// Target of an image.
#[derive(Debug)]
pub enum Target {
    /// A class index, or another number.
    Label(i64),
    /// A value that only the source can interpret.
    Other(Box<dyn Any + Send>),
}

/// Collection of samples, each an image with its target. Called by several threads at once.
pub trait Source: Send + Sync {
    /// Number of samples.
    fn count(&self) -> u64;

    /// Name of a sample, for messages.
    fn name(&self, index: u64) -> String;

    /// Opens a sample's image without reading it, and returns its target.
    fn open(&self, index: u64) -> Result<(Input, Target), LoaderError>;

    /// Class names in the order of their labels; empty if labels are not classes.
    fn classes(&self) -> &[String] {
        &[]
    }

    /// Rectangle of the upright image that forms the sample; `None` if the crop decides.
    fn part(&self, _index: u64) -> Result<Option<Rect>, LoaderError> {
        Ok(None)
    }

    /// Label of a sample, if it is known without opening the sample.
    fn label(&self, _index: u64) -> Option<i64> {
        None
    }
}

/// File extensions of images for torchvision's `ImageFolder`.
const EXTENSIONS: [&str; 9] = ["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp"];

/// Further extensions that are supported here. A folder ignores them, as torchvision does.
const EXTRA_EXTENSIONS: [&str; 5] = ["gif", "jp2", "j2k", "jpx", "pbm"];

/// Returns `true` for file names that torchvision's `ImageFolder` takes for images.
pub(crate) fn is_image(name: &str) -> bool {
    ends_in(name, &EXTENSIONS)
}

/// Returns `true` for file names of supported images.
pub(crate) fn is_readable(name: &str) -> bool {
    ends_in(name, &EXTENSIONS) || ends_in(name, &EXTRA_EXTENSIONS)
}

fn ends_in(name: &str, endings: &[&str]) -> bool {
    name.rsplit_once('.')
        .is_some_and(|(_, ending)| endings.iter().any(|known| ending.eq_ignore_ascii_case(known)))
}
