//! Where samples come from: a folder, a list, shards, or whatever else names and opens them.

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

/// What belongs to an image.
#[derive(Debug)]
pub enum Target {
    /// A class, or another number.
    Label(i64),
    /// Something that only the source knows.
    Other(Box<dyn Any + Send>),
}

/// Samples, each with an image and what belongs to it. Asked by several threads at once.
pub trait Source: Send + Sync {
    /// How many there are.
    fn count(&self) -> u64;

    /// What a sample is called, for messages.
    fn name(&self, index: u64) -> String;

    /// A sample's image, not yet read, and what belongs to it.
    fn open(&self, index: u64) -> Result<(Input, Target), LoaderError>;

    /// The classes, in the order of their labels; empty where labels are no classes.
    fn classes(&self) -> &[String] {
        &[]
    }

    /// The part of the image that a sample is, as it is looked at; `None` where it is what the crop says.
    fn part(&self, _index: u64) -> Result<Option<Rect>, LoaderError> {
        Ok(None)
    }

    /// A sample's label, where it is known without opening it.
    fn label(&self, _index: u64) -> Option<i64> {
        None
    }
}

/// The endings that torchvision's `ImageFolder` takes for images.
const ENDINGS: [&str; 9] = ["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp"];

/// More that are read here; in a folder they are left out, as it leaves them out.
const MORE_ENDINGS: [&str; 5] = ["gif", "jp2", "j2k", "jpx", "pbm"];

/// Whether a file's name ends as an image's that torchvision's `ImageFolder` takes.
pub(crate) fn is_image(name: &str) -> bool {
    ends_in(name, &ENDINGS)
}

/// Whether a file's name ends as an image's that is read here.
pub(crate) fn is_readable(name: &str) -> bool {
    ends_in(name, &ENDINGS) || ends_in(name, &MORE_ENDINGS)
}

fn ends_in(name: &str, endings: &[&str]) -> bool {
    name.rsplit_once('.')
        .is_some_and(|(_, ending)| endings.iter().any(|known| ending.eq_ignore_ascii_case(known)))
}
