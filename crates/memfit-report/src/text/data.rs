//! Text output of `memfit data`: the contents of an image folder.

use std::fmt::Write as _;

use super::canvas::{ADVICE, BAD, BOLD, Canvas, DIM, DOUBT, paint};
use super::{count, size};
use crate::wire::{DataClass, DataReport, DataSpread};

/// Maximum classes shown; if there are more, the largest and the smallest.
const CLASSES: usize = 12;
/// Maximum broken files shown.
const FILES: usize = 8;
const LABEL: usize = 18;

/// The contents of an image folder, and the cost of loading it.
pub fn data(report: &DataReport, canvas: Canvas) -> String {
    let mut out = String::new();
    let dot = canvas.dot();
    let _ = writeln!(
        out,
        "{}",
        paint(
            BOLD,
            &format!(
                "{} {} in {}",
                count(report.images),
                if report.images == 1 { "image" } else { "images" },
                report.path
            )
        )
    );
    let mut field = |label: &str, text: &str| {
        out.push_str(&canvas.wrapped(&format!("  {label:<LABEL$}"), DIM, text));
    };
    let formats: Vec<String> = report
        .formats
        .iter()
        .map(|format| format!("{} {} ({})", count(format.count), format.name, size(format.bytes)))
        .collect();
    field("formats", &formats.join(dot));
    field("file size", &spread(&report.bytes, size));
    let pixels = spread(&report.pixels, megapixels);
    field("image size", &format!("{pixels}, the largest {}x{}", report.largest[0], report.largest[1]));
    if report.types.len() > 1 || report.types.iter().any(|kind| kind.name != "uint8") {
        let types: Vec<String> =
            report.types.iter().map(|kind| format!("{} {}", count(kind.count), kind.name)).collect();
        field("values", &types.join(dot));
    }
    if report.progressive > 0 {
        field("progressive", &share(report.progressive, report.images));
    }
    if report.turned > 0 {
        field("to be turned", &format!("{} (EXIF)", share(report.turned, report.images)));
    }
    field("classes", &classes(&report.classes, dot));
    if report.broken.count > 0 {
        let style = BAD;
        let label = format!("  {:<LABEL$}", "broken");
        let text = share(report.broken.count, report.images);
        out.push_str(&canvas.wrapped(&label, style, &text));
        for file in report.broken.files.iter().take(FILES) {
            let text = format!("{}: {}", file.name, file.reason);
            out.push_str(&canvas.wrapped(&" ".repeat(LABEL + 4), DIM, &text));
        }
        let more = report.broken.count.saturating_sub(FILES.min(report.broken.files.len()) as u64);
        if more > 0 {
            let _ = writeln!(out, "{}and {} more", " ".repeat(LABEL + 4), count(more));
        }
    }
    let how = if report.broken.decoded {
        "every image was decoded"
    } else {
        "headers were read; --verify decodes every image"
    };
    let _ = writeln!(out, "{}", paint(DIM, &format!("  {:<LABEL$}{how}", "checked")));

    loader(report, canvas, &mut out);
    dataloader(report, canvas, &mut out);
    if !report.advice.is_empty() {
        let _ = writeln!(out, "\n{}", paint(BOLD, "What to change"));
        for (number, advice) in report.advice.iter().enumerate() {
            out.push_str(&canvas.wrapped(&format!("  {}. ", number + 1), ADVICE, advice));
        }
    }
    out
}

fn loader(report: &DataReport, canvas: Canvas, out: &mut String) {
    let here = &report.loader;
    let title =
        format!("memfit.data.ImageLoader, {}x{}, {} threads", here.size[0], here.size[1], here.threads);
    let _ = writeln!(out, "\n{}", paint(BOLD, &title));
    let mut field = |label: &str, text: &str| {
        out.push_str(&canvas.wrapped(&format!("  {label:<LABEL$}"), DIM, text));
    };
    match here.images_per_second {
        Some(rate) => field(
            "speed",
            &format!(
                "{} images a second, measured over {} decodes",
                count(rate.round() as u64),
                count(here.measured)
            ),
        ),
        None => field("speed", "no image could be decoded"),
    }
    field("memory per decode", &spread(&here.decoding, size));
    field("reduced decode", &share(here.scaled, report.images));
    field("JPEG decoder", here.jpeg);
}

fn dataloader(report: &DataReport, canvas: Canvas, out: &mut String) {
    let there = &report.dataloader;
    let pin = if there.pin_memory { ", pinned" } else { "" };
    let title = format!(
        "torch DataLoader, batch {}, {} workers, prefetch {}{pin}: modelled",
        there.batch_size, there.workers, there.prefetch_factor
    );
    let _ = writeln!(out, "\n{}", paint(BOLD, &title));
    let mut field = |label: &str, text: &str, doubt: bool| {
        let style = if doubt { DOUBT } else { DIM };
        out.push_str(&canvas.wrapped(&format!("  {label:<LABEL$}"), style, text));
    };
    field("a batch", &format!("{} of float32", size(there.batch)), false);
    let full = there.shared_memory_free.is_some_and(|free| there.shared_memory > free);
    let free =
        there.shared_memory_free.map_or_else(String::new, |free| format!(", {} free here", size(free)));
    field("/dev/shm", &format!("up to {}{free}", size(there.shared_memory)), full);
    if there.pin_memory {
        field("pinned", &format!("up to {}", size(there.pinned)), false);
    }
    let largest = size(there.largest_decode);
    field(
        "in the workers",
        &format!("up to {}; decoding the largest image takes {largest}", size(there.in_workers)),
        false,
    );
}

fn classes(classes: &[DataClass], dot: &str) -> String {
    let one = |class: &DataClass| format!("{}: {}", class.name, count(class.count));
    if classes.len() <= CLASSES {
        return classes.iter().map(one).collect::<Vec<_>>().join(dot);
    }
    let mut sorted: Vec<&DataClass> = classes.iter().collect();
    sorted.sort_by_key(|class| class.count);
    let ends =
        [sorted.last(), sorted.first()].into_iter().flatten().map(|class| one(class)).collect::<Vec<_>>();
    format!("{}, from {}", count(classes.len() as u64), ends.join(" down to "))
}

fn share(part: u64, whole: u64) -> String {
    let percent = 100.0 * part as f64 / whole.max(1) as f64;
    format!("{} of {} ({percent:.1} %)", count(part), count(whole))
}

fn spread(spread: &DataSpread, show: impl Fn(u64) -> String) -> String {
    if spread.least == spread.greatest {
        return show(spread.least);
    }
    format!("{} to {}, half of them up to {}", show(spread.least), show(spread.greatest), show(spread.median))
}

fn megapixels(pixels: u64) -> String {
    if pixels < 100_000 {
        format!("{} pixels", count(pixels))
    } else {
        format!("{:.1} MP", pixels as f64 / 1e6)
    }
}
