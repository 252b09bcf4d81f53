//! Upper limit of a loader's speed: decoding and resizing alone, from files in memory, with a given number of
//! threads.
//!
//! Makes the measurement that `benches/data.py` compares with whole loaders; prints images per second on
//! stdout.
//!
//!     cargo run --release -p memfit-loader --features turbo --example ceiling -- FOLDER IMAGES THREADS SIZE
//! MARGIN

#![expect(clippy::print_stdout, reason = "it is a command, and answers on its standard output")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use memfit_loader::{Backend, Crop, Decoder, Framing, Input, Prepared, Rendering};

type Failure = Box<dyn std::error::Error + Send + Sync>;

struct Settings {
    folder: PathBuf,
    images: usize,
    threads: usize,
    size: u32,
    margin: Option<f64>,
}

fn main() -> Result<(), Failure> {
    let settings =
        settings().ok_or("say FOLDER IMAGES THREADS SIZE MARGIN; a margin of 0 decodes in full")?;
    let mut files = Vec::new();
    gather(&settings.folder, &mut files)?;
    files.sort();
    let mut inputs = Vec::new();
    for file in &files {
        inputs.push(Input::Memory(std::fs::read(file)?.into()));
    }
    if inputs.is_empty() {
        return Err("there are no files in the folder".into());
    }
    // One run to fill the buffers and to touch all pages.
    run(&inputs, settings.threads, &settings)?;
    let begin = Instant::now();
    run(&inputs, settings.images, &settings)?;
    let rate = settings.images as f64 / begin.elapsed().as_secs_f64();
    println!("{{\"rate\": {rate}, \"decoder\": \"{}\"}}", Backend::BEST.name());
    Ok(())
}

fn settings() -> Option<Settings> {
    let mut given = std::env::args().skip(1);
    Some(Settings {
        folder: given.next()?.into(),
        images: given.next()?.parse().ok()?,
        threads: given.next()?.parse().ok()?,
        size: given.next()?.parse().ok()?,
        margin: given.next()?.parse().ok().map(|margin: f64| (margin >= 1.0).then_some(margin))?,
    })
}

fn gather(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            gather(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

fn run(inputs: &[Input], images: usize, settings: &Settings) -> Result<(), Failure> {
    let framing = Framing {
        crop: Crop::Center { resize: None },
        size: Some((settings.size, settings.size)),
        flip: 0.0,
    };
    let rendering = Rendering { margin: settings.margin, ..Rendering::default() };
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..settings.threads)
            .map(|_| {
                scope.spawn(|| -> Result<(), Failure> {
                    let mut decoder = Decoder::new();
                    let mut out = Vec::new();
                    loop {
                        let turn = next.fetch_add(1, Ordering::Relaxed);
                        if turn >= images {
                            return Ok(());
                        }
                        let input = inputs[turn % inputs.len()].clone();
                        let image = Prepared::new(input, &framing, &rendering, &[])?;
                        out.resize(image.bytes(), 0);
                        decoder.decode(&image, true, &mut out)?;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().map_err(|_| "a thread fell over")??;
        }
        Ok(())
    })
}
