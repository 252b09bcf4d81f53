//! Resizing of decoded rows to a small image, with conversion of values.
//!
//! An image in strips is resized horizontally strip by strip, and vertically at the end. The result is that
//! of resizing the whole image at once, except for one rounding step.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{PixelType, ResizeAlg, ResizeOptions, Resizer};

use crate::LoaderError;
use crate::buffer::Buffer;
use crate::convert::convert;
use crate::pixels::{Layout, Sample};
use crate::plan::{Filter, Plan};

/// Buffers kept for the next image.
#[derive(Default)]
pub(crate) struct Buffers {
    copied: Buffer,
    across: Buffer,
    /// Result, not yet turned.
    pub(crate) small: Vec<u8>,
    plane: [Buffer; 2],
    resizer: Resizer,
}

impl Buffers {
    /// Capacity in bytes.
    pub(crate) fn held(&self) -> usize {
        [&self.copied, &self.across, &self.plane[0], &self.plane[1]]
            .iter()
            .map(|buffer| buffer.capacity())
            .sum::<usize>()
            + self.small.capacity()
            + self.resizer.size_of_internal_buffers()
    }

    /// Mapped capacity in bytes.
    pub(crate) fn mapped(&self) -> usize {
        [&self.copied, &self.across, &self.plane[0], &self.plane[1]].map(Buffer::mapped).iter().sum()
    }

    /// Frees all buffers.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Accepts the rows of a plan's region from the top, and produces the result.
pub(crate) struct Reducer<'a> {
    plan: &'a Plan,
    buffers: &'a mut Buffers,
    /// Number of rows received.
    seen: u32,
    done: bool,
}

impl<'a> Reducer<'a> {
    pub(crate) fn new(plan: &'a Plan, buffers: &'a mut Buffers) -> Self {
        Self { plan, buffers, seen: 0, done: false }
    }

    /// Returns `true` if no more rows are needed.
    pub(crate) fn done(&self) -> bool {
        self.done || self.seen >= self.plan.window.bottom()
    }

    /// Accepts the next rows of the region, in the file's layout.
    pub(crate) fn rows(&mut self, rows: u32, data: &[u8]) -> Result<(), LoaderError> {
        let plan = self.plan;
        let (region, window) = (plan.region, plan.window);
        let first = self.seen;
        self.seen += rows;
        // Intersection of these rows with the window.
        let top = window.top.max(first);
        let bottom = window.bottom().min(self.seen);
        if top >= bottom {
            return Ok(());
        }
        let count = bottom - top;
        let line = region.width as usize * plan.from.pixel();
        let data = &data[(top - first) as usize * line..(bottom - first) as usize * line];
        let Buffers { copied, across, small, plane, resizer } = &mut *self.buffers;
        let data = if plan.copies() {
            let narrow = window.width as usize * plan.to.pixel();
            let out = copied.room(narrow * count as usize);
            let skip = window.left as usize * plan.from.pixel();
            let take = window.width as usize * plan.from.pixel();
            for (row, target) in data.chunks_exact(line).zip(out.chunks_exact_mut(narrow)) {
                convert(&row[skip..skip + take], plan.from, plan.to, target);
            }
            &*out
        } else {
            data
        };
        small.resize(plan.bytes().max(small.len()), 0);
        let small = &mut small[..plan.bytes()];
        let mut work = Work { layout: plan.to, filter: plan.filter, plane, resizer };
        let [left, _, width, _] = plan.frame;
        if count == window.height {
            work.resize((data, (window.width, count)), plan.frame, (small, plan.size))?;
            self.done = true;
            return Ok(());
        }
        let narrow = plan.size.0 as usize * plan.to.pixel();
        let across = across.room(narrow * window.height as usize);
        let begin = (top - window.top) as usize * narrow;
        let strip = &mut across[begin..begin + count as usize * narrow];
        work.resize(
            (data, (window.width, count)),
            [left, 0.0, width, f64::from(count)],
            (strip, (plan.size.0, count)),
        )?;
        if bottom == window.bottom() {
            let [_, top, _, height] = plan.frame;
            work.resize(
                (across, (plan.size.0, window.height)),
                [0.0, top, f64::from(plan.size.0), height],
                (small, plan.size),
            )?;
            self.done = true;
        }
        Ok(())
    }

    /// Completes the result. Fails if rows are missing.
    pub(crate) fn finish(self, format: &'static str) -> Result<(), LoaderError> {
        if self.done {
            return Ok(());
        }
        Err(LoaderError::Damaged {
            format,
            reason: format!(
                "it ends after {} of its {} rows",
                self.plan.region.top + self.seen,
                self.plan.region.bottom()
            ),
        })
    }
}

struct Work<'a> {
    layout: Layout,
    filter: Filter,
    plane: &'a mut [Buffer; 2],
    resizer: &'a mut Resizer,
}

impl Work<'_> {
    fn resize(
        &mut self,
        from: (&[u8], (u32, u32)),
        frame: [f64; 4],
        to: (&mut [u8], (u32, u32)),
    ) -> Result<(), LoaderError> {
        if let Some(kind) = pixel_type(self.layout) {
            return self.one(from, frame, to, kind, self.layout.bands.alpha());
        }
        // More bands than a pixel of the resizer has: each band is resized separately.
        let bands = self.layout.bands.count() as usize;
        let sample = self.layout.sample.bytes();
        let kind = match self.layout.sample {
            Sample::U8 => PixelType::U8,
            Sample::U16 => PixelType::U16,
            Sample::F32 => PixelType::F32,
        };
        let [mut one, mut two] = std::mem::take(self.plane);
        for band in 0..bands {
            let source = one.room(from.0.len() / bands);
            for (value, pixel) in source.chunks_exact_mut(sample).zip(from.0.chunks_exact(bands * sample)) {
                value.copy_from_slice(&pixel[band * sample..][..sample]);
            }
            let target = two.room(to.0.len() / bands);
            self.one((source, from.1), frame, (target, to.1), kind, false)?;
            for (value, pixel) in target.chunks_exact(sample).zip(to.0.chunks_exact_mut(bands * sample)) {
                pixel[band * sample..][..sample].copy_from_slice(value);
            }
        }
        *self.plane = [one, two];
        Ok(())
    }

    fn one(
        &mut self,
        from: (&[u8], (u32, u32)),
        frame: [f64; 4],
        to: (&mut [u8], (u32, u32)),
        kind: PixelType,
        alpha: bool,
    ) -> Result<(), LoaderError> {
        let bug = |error: &dyn std::fmt::Display| LoaderError::Bug(error.to_string());
        let (data, (width, height)) = from;
        let (result, size) = to;
        let [left, top, wide, tall] = frame;
        let near = |one: f64, other: f64| (one - other).abs() < 1e-9;
        let whole =
            near(left, 0.0) && near(top, 0.0) && near(wide, width.into()) && near(tall, height.into());
        if whole && size == (width, height) {
            result.copy_from_slice(&data[..result.len()]);
            return Ok(());
        }
        let source = ImageRef::new(width, height, data, kind).map_err(|error| bug(&error))?;
        let mut target = Image::from_slice_u8(size.0, size.1, result, kind).map_err(|error| bug(&error))?;
        let way = self.filter.curve().map_or(ResizeAlg::Nearest, ResizeAlg::Convolution);
        let [left, top, width, height] = frame;
        let options = ResizeOptions::new().resize_alg(way).crop(left, top, width, height).use_alpha(alpha);
        self.resizer.resize(&source, &mut target, &options).map_err(|error| bug(&error))
    }
}

fn pixel_type(layout: Layout) -> Option<PixelType> {
    Some(match (layout.sample, layout.bands.count()) {
        (Sample::U8, 1) => PixelType::U8,
        (Sample::U8, 2) => PixelType::U8x2,
        (Sample::U8, 3) => PixelType::U8x3,
        (Sample::U8, 4) => PixelType::U8x4,
        (Sample::U16, 1) => PixelType::U16,
        (Sample::U16, 2) => PixelType::U16x2,
        (Sample::U16, 3) => PixelType::U16x3,
        (Sample::U16, 4) => PixelType::U16x4,
        (Sample::F32, 1) => PixelType::F32,
        (Sample::F32, 2) => PixelType::F32x2,
        (Sample::F32, 3) => PixelType::F32x3,
        (Sample::F32, 4) => PixelType::F32x4,
        _ => return None,
    })
}
