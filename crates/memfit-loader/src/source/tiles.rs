//! Overlapping tiles of large images. Each tile is a sample, for which only its own pixels are decoded.

use std::io::BufReader;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Source, Target};
use crate::LoaderError;
use crate::header::Header;
use crate::input::Input;
use crate::pixels::Rect;

/// Tiles of all images of a source, row by row, image after image.
///
/// The last tile of a row or column ends with the image and overlaps the one before by more. An image smaller
/// than a tile, or with an unreadable header, has one tile, whose loading reports the error.
pub struct Tiles {
    source: Arc<dyn Source>,
    size: (u32, u32),
    overlap: (u32, u32),
    /// Width and height of each image; zeros if unknown.
    images: Vec<(u32, u32)>,
    /// Number of tiles of all images up to and including this one.
    ends: Vec<u64>,
}

impl Tiles {
    /// Creates tiles of a size, each overlapping its neighbours by `overlap` columns and rows.
    pub fn new(
        source: Arc<dyn Source>,
        size: (u32, u32),
        overlap: (u32, u32),
        page: u32,
        upright: bool,
    ) -> Result<Self, LoaderError> {
        if size.0 == 0 || size.1 == 0 || overlap.0 >= size.0 || overlap.1 >= size.1 {
            return Err(LoaderError::Settings(format!(
                "tiles of {}x{} cannot overlap by {}x{}: less than a tile",
                size.0, size.1, overlap.0, overlap.1
            )));
        }
        let images = sizes(&*source, page, upright)?;
        let mut tiles = Self { source, size, overlap, images, ends: Vec::new() };
        let mut end = 0_u64;
        for &(width, height) in &tiles.images {
            let (across, down) = tiles.counts(width, height);
            end = end.saturating_add(across * down);
            tiles.ends.push(end);
        }
        Ok(tiles)
    }

    /// Image of a tile, and the tile's rectangle in it.
    pub fn place(&self, tile: u64) -> (u64, Rect) {
        let image = self.ends.partition_point(|&end| end <= tile).min(self.ends.len().saturating_sub(1));
        let first = if image == 0 { 0 } else { self.ends[image - 1] };
        let (width, height) = self.images[image];
        let (across, _) = self.counts(width, height);
        let number = tile - first;
        let at = |number: u64, size: u32, overlap: u32, length: u32| {
            let start = number * u64::from(size - overlap);
            start.min(u64::from(length.saturating_sub(size))) as u32
        };
        let left = at(number % across, self.size.0, self.overlap.0, width);
        let top = at(number / across, self.size.1, self.overlap.1, height);
        (image as u64, Rect { left, top, width: self.size.0, height: self.size.1 })
    }

    /// Number of tiles of an image in each direction.
    fn counts(&self, width: u32, height: u32) -> (u64, u64) {
        if width < self.size.0 || height < self.size.1 {
            return (1, 1);
        }
        let along = |length: u32, size: u32, overlap: u32| {
            1 + u64::from(length.saturating_sub(size)).div_ceil(u64::from(size - overlap))
        };
        (along(width, self.size.0, self.overlap.0), along(height, self.size.1, self.overlap.1))
    }
}

impl Source for Tiles {
    fn count(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn name(&self, index: u64) -> String {
        let (image, part) = self.place(index);
        format!("{} at ({}, {})", self.source.name(image), part.left, part.top)
    }

    fn open(&self, index: u64) -> Result<(Input, Target), LoaderError> {
        self.source.open(self.place(index).0)
    }

    fn classes(&self) -> &[String] {
        self.source.classes()
    }

    fn label(&self, index: u64) -> Option<i64> {
        self.source.label(self.place(index).0)
    }

    fn part(&self, index: u64) -> Result<Option<Rect>, LoaderError> {
        let (image, part) = self.place(index);
        let (width, height) = self.images[image as usize];
        if (width, height) != (0, 0) && !part.inside(width, height) {
            return Err(LoaderError::SmallerThanTile { width, height, tile: self.size });
        }
        Ok(Some(part))
    }
}

/// Width and height of each upright image, read by as many threads as there are CPUs.
fn sizes(source: &dyn Source, page: u32, upright: bool) -> Result<Vec<(u32, u32)>, LoaderError> {
    let count =
        usize::try_from(source.count()).map_err(|_| LoaderError::Settings("too many images".to_owned()))?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count.max(1));
    let next = AtomicUsize::new(0);
    let size = |index: usize| -> Result<(u32, u32), LoaderError> {
        let (input, _) = source.open(index as u64)?;
        let header = Header::read(&mut BufReader::with_capacity(4096, input.reader()), page)?;
        Ok(if upright { header.upright() } else { (header.width, header.height) })
    };
    let mut found = vec![(0, 0); count];
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut own = Vec::new();
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        if index >= count {
                            return own;
                        }
                        own.push((index, size(index).unwrap_or((0, 0))));
                    }
                })
            })
            .collect();
        for worker in workers {
            let own = worker
                .join()
                .map_err(|_| LoaderError::Bug("a thread panicked while reading a header".to_owned()))?;
            for (index, size) in own {
                found[index] = size;
            }
        }
        Ok(found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Nothing;

    impl Source for Nothing {
        fn count(&self) -> u64 {
            0
        }

        fn name(&self, index: u64) -> String {
            index.to_string()
        }

        fn open(&self, _index: u64) -> Result<(Input, Target), LoaderError> {
            Err(LoaderError::Bug("there is none".to_owned()))
        }
    }

    fn tiles(images: Vec<(u32, u32)>, size: (u32, u32), overlap: (u32, u32)) -> Tiles {
        let mut tiles = Tiles::new(Arc::new(Nothing), size, overlap, 0, true).expect("tiles");
        let mut end = 0;
        for &(width, height) in &images {
            let (across, down) = tiles.counts(width, height);
            end += across * down;
            tiles.ends.push(end);
        }
        tiles.images = images;
        tiles
    }

    proptest! {
        #[test]
        fn every_pixel_is_in_a_tile_and_every_tile_inside(
            images in prop::collection::vec((1_u32..90, 1_u32..90), 1..5),
            size in (1_u32..40, 1_u32..40), overlap in (0_u32..40, 0_u32..40),
        ) {
            let overlap = (overlap.0 % size.0, overlap.1 % size.1);
            let tiles = tiles(images.clone(), size, overlap);
            let mut seen: Vec<Vec<bool>> =
                images.iter().map(|(width, height)| vec![false; (width * height) as usize]).collect();
            let mut last = 0;
            for number in 0..tiles.count() {
                let (image, part) = tiles.place(number);
                prop_assert!(image >= last);
                last = image;
                let (width, height) = images[image as usize];
                if width < size.0 || height < size.1 {
                    let refused = matches!(tiles.part(number), Err(LoaderError::SmallerThanTile { .. }));
                    prop_assert!(refused);
                    seen[image as usize].fill(true);
                    continue;
                }
                prop_assert!(part.inside(width, height));
                for y in part.top..part.bottom() {
                    for x in part.left..part.right() {
                        seen[image as usize][(y * width + x) as usize] = true;
                    }
                }
            }
            prop_assert!(seen.concat().into_iter().all(|seen| seen));
        }
    }

    #[test]
    fn tiles_stand_in_rows_and_the_last_ends_with_the_image() {
        let tiles = tiles(vec![(10, 7), (4, 4)], (4, 4), (1, 1));
        let places: Vec<(u64, u32, u32)> = (0..tiles.count())
            .map(|tile| tiles.place(tile))
            .map(|(image, part)| (image, part.left, part.top))
            .collect();
        assert_eq!(places, [(0, 0, 0), (0, 3, 0), (0, 6, 0), (0, 0, 3), (0, 3, 3), (0, 6, 3), (1, 0, 0)]);
        assert_eq!(tiles.name(4), "0 at (3, 3)");
    }
}
