//! Tests that the cost charged for decoding covers the memory needed, measured by a counting allocator.
//!
//! It does not see allocations of C decoders; `benches/data_memory.py` measures them by the process's peak.

#![allow(unsafe_code, reason = "the test counts allocations")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Cursor;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use memfit_loader::{Crop, Decoder, Framing, Input, Mode, Prepared, Rendering};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Serialises measurements.
static TURN: Mutex<()> = Mutex::new(());

// SAFETY: forwards to the system's allocator and only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        PEAK_BYTES.fetch_max(now, Ordering::SeqCst);
        // SAFETY: the caller's promise is forwarded.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's promise is forwarded.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Pixels with edges and gradients, for realistic compression.
fn pixels(width: u32, height: u32, bands: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for y in 0..height {
        for x in 0..width {
            for band in 0..bands {
                let value = x * 255 / width + y * 127 / height + ((x / 37 + y / (29 + band)) % 2) * 40;
                out.push(if band == 3 { 255 - value as u8 / 2 } else { value as u8 });
            }
        }
    }
    out
}

const WIDTH: u32 = 1200;
const HEIGHT: u32 = 900;

fn jpeg(progressive: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut out, 90);
    encoder.set_progressive(progressive);
    let data = pixels(WIDTH, HEIGHT, 3);
    encoder.encode(&data, WIDTH as u16, HEIGHT as u16, jpeg_encoder::ColorType::Rgb).expect("a JPEG");
    out
}

fn png() -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, WIDTH, HEIGHT);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().expect("a header");
    writer.write_image_data(&pixels(WIDTH, HEIGHT, 3)).expect("pixels");
    writer.finish().expect("an end");
    out
}

fn webp(alpha: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let (bands, colour) =
        if alpha { (4, image_webp::ColorType::Rgba8) } else { (3, image_webp::ColorType::Rgb8) };
    image_webp::WebPEncoder::new(&mut out)
        .encode(&pixels(WIDTH, HEIGHT, bands), WIDTH, HEIGHT, colour)
        .expect("a WebP");
    out
}

fn tiff() -> Vec<u8> {
    let mut out = Cursor::new(Vec::new());
    tiff::encoder::TiffEncoder::new(&mut out)
        .and_then(|mut encoder| {
            encoder.write_image::<tiff::encoder::colortype::RGB8>(WIDTH, HEIGHT, &pixels(WIDTH, HEIGHT, 3))
        })
        .expect("a TIFF");
    out.into_inner()
}

fn gif() -> Vec<u8> {
    let mut out = Vec::new();
    let palette: Vec<u8> = (0..=255).flat_map(|value| [value, value / 2, 255 - value]).collect();
    let mut encoder = gif::Encoder::new(&mut out, WIDTH as u16, HEIGHT as u16, &palette).expect("a GIF");
    let frame = gif::Frame {
        width: WIDTH as u16,
        height: HEIGHT as u16,
        buffer: pixels(WIDTH, HEIGHT, 1).into(),
        ..gif::Frame::default()
    };
    encoder.write_frame(&frame).expect("a picture");
    drop(encoder);
    out
}

fn ppm() -> Vec<u8> {
    let mut out = format!("P6\n{WIDTH} {HEIGHT}\n255\n").into_bytes();
    out.extend(pixels(WIDTH, HEIGHT, 3));
    out
}

/// Peak allocation while a new decoder decodes the image, and the cost that was charged.
fn measure(path: &Path, bytes: &[u8], framing: &Framing) -> (u64, u64) {
    std::fs::write(path, bytes).expect("a file");
    let rendering = Rendering { mode: Mode::Rgb, ..Rendering::default() };
    let image =
        Prepared::new(Input::open(path).expect("it opens"), framing, &rendering, &[]).expect("a header");
    let mut out = vec![0; image.bytes()];
    let _turn = TURN.lock().expect("no one fell over");
    let before = NOW.load(Ordering::SeqCst);
    PEAK_BYTES.store(before, Ordering::SeqCst);
    let mut decoder = Decoder::new();
    decoder.decode(&image, true, &mut out).expect("it is decoded");
    let allocated = PEAK_BYTES.load(Ordering::SeqCst) - before;
    ((allocated + decoder.mapped()) as u64, image.cost().total())
}

#[test]
fn decoding_takes_what_it_is_charged() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = [
        ("jpeg", jpeg(false)),
        ("progressive", jpeg(true)),
        ("png", png()),
        ("webp", webp(false)),
        ("webp-alpha", webp(true)),
        ("tiff", tiff()),
        ("gif", gif()),
        ("ppm", ppm()),
    ];
    let framings = [
        ("small", Framing { crop: Crop::Center { resize: None }, size: Some((224, 224)), flip: 0.0 }),
        ("whole", Framing { crop: Crop::All, size: None, flip: 0.0 }),
    ];
    let mut wrong = Vec::new();
    for (name, bytes) in &files {
        for (how, framing) in &framings {
            let (took, charged) = measure(&folder.path().join(name), bytes, framing);
            // Decoders have tables whose size does not depend on the image.
            let little = 512 << 10;
            if took > charged + little || charged > 4 * took + little {
                wrong.push(format!("{name}, {how}: took {took}, charged {charged}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
