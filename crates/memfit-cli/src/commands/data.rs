//! `memfit data PATH`: the contents of an image folder, and the cost of loading it.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;

use memfit_loader::{
    Backend, Crop, DataLoader, Folder, Framing, Rendering, Shards, Source, Spread, Survey, is_shard, measure,
};
use memfit_report::text;
use memfit_report::wire::{
    DataBroken, DataClass, DataFile, DataFormat, DataLoaderHere, DataLoaderThere, DataReport, DataSpread,
    schema,
};
use memfit_run::free_shared_memory;

use super::answer;
use crate::args::DataArgs;
use crate::settings::Settings;
use crate::{CliError, Exit, Printer};

/// Ratio between the largest and the smallest class above which the report mentions it.
const MAX_CLASS_RATIO: u64 = 10;

/// Runs `memfit data`: surveys the images, measures decoding and prints the report.
pub(crate) fn data(args: &DataArgs, settings: &Settings, printer: &Printer) -> Result<Exit, CliError> {
    let source = open(&args.path)?;
    let size = (args.size, args.size);
    let framing = Framing { crop: Crop::Center { resize: None }, size: Some(size), flip: 0.0 };
    let rendering = Rendering::default();
    let threads =
        args.threads.unwrap_or_else(|| available_parallelism().map_or(1, |number| number.get() as u64));
    let survey = Survey::read(&*source, &framing, &rendering, threads as usize, args.verify);
    let speed =
        args.measure.0.and_then(|limit| measure(&*source, &framing, &rendering, threads as usize, limit));
    let side = u64::from(args.size);
    let loader = DataLoader {
        workers: args.workers,
        prefetch: args.prefetch_factor,
        batch: args.batch_size * 3 * side * side * 4,
        pinned: !args.no_pin_memory,
        decoding: survey.full.greatest,
    };
    let taken = loader.host_memory();
    let mut report = DataReport {
        schema: schema::DATA,
        path: args.path.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
        images: survey.count,
        bytes: spread(survey.bytes),
        pixels: spread(survey.pixels),
        largest: [survey.largest.0, survey.largest.1],
        formats: survey
            .formats
            .iter()
            .map(|(format, &(count, bytes))| DataFormat { name: format.name(), count, bytes })
            .collect(),
        types: survey
            .samples
            .iter()
            .map(|(name, &count)| DataClass { name: (*name).to_owned(), count })
            .collect(),
        progressive: survey.progressive,
        turned: survey.turned,
        classes: survey
            .classes
            .iter()
            .map(|(name, count)| DataClass { name: name.clone(), count: *count })
            .collect(),
        broken: DataBroken {
            count: survey.broken.0,
            decoded: args.verify,
            files: survey
                .broken
                .1
                .iter()
                .map(|(name, reason)| DataFile { name: name.clone(), reason: reason.clone() })
                .collect(),
        },
        loader: DataLoaderHere {
            jpeg: Backend::BEST.name(),
            size: [args.size, args.size],
            threads,
            images_per_second: speed.map(|speed| speed.images as f64 / speed.wall.as_secs_f64()),
            measured: speed.map_or(0, |speed| speed.images),
            scaled: survey.scaled,
            decoding: spread(survey.cost),
        },
        dataloader: DataLoaderThere {
            batch_size: args.batch_size,
            workers: args.workers,
            prefetch_factor: args.prefetch_factor,
            pin_memory: loader.pinned,
            batch: loader.batch,
            shared_memory: taken.shared,
            shared_memory_free: free_shared_memory(),
            pinned: taken.pinned,
            in_workers: taken.workers,
            largest_decode: survey.full.greatest,
        },
        advice: Vec::new(),
    };
    report.advice = advice(&report, &survey, args);
    let canvas = printer.canvas();
    answer(&report, || text::data(&report, canvas), &args.out, settings, printer)?;
    Ok(if report.broken.count > 0 { Exit::BadNews } else { Exit::Good })
}

fn open(paths: &[PathBuf]) -> Result<Arc<dyn Source>, CliError> {
    if paths.iter().all(|path| is_shard(&path.to_string_lossy())) {
        return Ok(Arc::new(Shards::read(paths)?));
    }
    match paths {
        [folder] => Ok(Arc::new(Folder::read(folder)?)),
        _ => Err(CliError::SeveralFolders),
    }
}

fn spread(from: Spread) -> DataSpread {
    DataSpread { least: from.least, median: from.median, greatest: from.greatest, sum: from.sum }
}

/// Recommended changes, most important first.
fn advice(report: &DataReport, survey: &Survey, args: &DataArgs) -> Vec<String> {
    let mut advice = Vec::new();
    let share = |part: u64| format!("{:.0} %", 100.0 * part as f64 / report.images.max(1) as f64);
    let there = &report.dataloader;
    if report.broken.count > 0 {
        advice.push(
            "Repair or remove the broken files: a DataLoader stops at the first one. `ImageLoader(on_error=\"skip\")` skips and counts them."
                .to_owned(),
        );
    }
    if let Some(free) = there.shared_memory_free.filter(|&free| there.shared_memory > free) {
        advice.push(format!(
            "/dev/shm has {} free and these settings fill up to {}, which ends in a bus error: take fewer workers or a smaller prefetch_factor, or enlarge /dev/shm (`docker run --shm-size`). ImageLoader uses no shared memory.",
            text::size(free),
            text::size(there.shared_memory)
        ));
    }
    let wanted = u64::from(args.size) * u64::from(args.size);
    if report.pixels.median > 16 * wanted {
        let (who, them) =
            if report.images == 1 { ("The image has", "it") } else { ("Half of the images have", "them") };
        advice.push(format!(
            "{who} at least {} times as many pixels as training uses. Decode {them} at a reduced size (`ImageLoader`, or `memfit.data.decode` in your own data set), or store {them} once with a short side of {}.",
            report.pixels.median / wanted,
            2 * args.size
        ));
    }
    if survey.progressive * 20 > report.images {
        advice.push(format!(
            "{} are progressive: each takes three to four times as long to decode and is decoded in full. `jpegtran -copy all` without `-progressive` rewrites a file as baseline, pixel for pixel.",
            share(survey.progressive)
        ));
    }
    if survey.cost.greatest > args.memory.get() {
        advice.push(format!(
            "The largest image needs {} of memory to decode, more than memory={}: raise `memory`, or pass oversize=\"skip\".",
            text::size(survey.cost.greatest),
            text::size(args.memory.get())
        ));
    }
    if report.types.len() > 1 {
        advice.push(
            "The images have several data types. Choose one with `dtype=`, and ImageLoader scales the others to it."
                .to_owned(),
        );
    }
    let counts = || report.classes.iter().map(|class| class.count);
    if let (Some(least), Some(most)) = (counts().min(), counts().max())
        && report.classes.len() > 1
        && most > MAX_CLASS_RATIO * least.max(1)
    {
        advice.push(format!(
            "The largest class has {} times the images of the smallest: weight the classes in the loss, or sample them evenly.",
            most / least.max(1)
        ));
    }
    if Backend::BEST == Backend::Rust && report.formats.iter().any(|format| format.name == "JPEG") {
        advice.push(
            "This build decodes JPEG in Rust. One with libjpeg-turbo (`pip install .`) is faster.".to_owned(),
        );
    }
    advice
}
