//! `memfit.data/1`: the contents of an image folder, and the cost of loading it.

use serde::Serialize;

/// Output of `memfit data PATH`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DataReport {
    /// [`super::schema::DATA`].
    pub schema: &'static str,
    /// The path that was read.
    pub path: String,
    /// Number of images.
    pub images: u64,
    /// Bytes of their files.
    pub bytes: DataSpread,
    /// Pixels of an image.
    pub pixels: DataSpread,
    /// Width and height of the largest.
    pub largest: [u32; 2],
    /// By format.
    pub formats: Vec<DataFormat>,
    /// By type of value.
    pub types: Vec<DataClass>,
    /// Progressive JPEGs and interlaced PNGs.
    pub progressive: u64,
    /// Images that EXIF marks as rotated.
    pub turned: u64,
    /// Images by class, in the order of labels.
    pub classes: Vec<DataClass>,
    /// Files that cannot be read.
    pub broken: DataBroken,
    /// Memory and throughput of memfit's loader on this machine.
    pub loader: DataLoaderHere,
    /// Modelled memory of PyTorch's `DataLoader` with these settings.
    pub dataloader: DataLoaderThere,
    /// Recommended changes, one sentence each.
    pub advice: Vec<String>,
}

/// Minimum, median, maximum and sum.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct DataSpread {
    /// The least.
    pub least: u64,
    /// Median.
    pub median: u64,
    /// The greatest.
    pub greatest: u64,
    /// All together.
    pub sum: u64,
}

/// One format.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DataFormat {
    /// Name.
    pub name: &'static str,
    /// Number of images.
    pub count: u64,
    /// Bytes of their files.
    pub bytes: u64,
}

/// A class and its number of images.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DataClass {
    /// Name.
    pub name: String,
    /// Number of images.
    pub count: u64,
}

/// Files that cannot be read.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DataBroken {
    /// Number of files.
    pub count: u64,
    /// `true` if every image was decoded; otherwise only headers were read.
    pub decoded: bool,
    /// Some of these files, with reasons.
    pub files: Vec<DataFile>,
}

/// A file that cannot be read.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DataFile {
    /// Name.
    pub name: String,
    /// Reason.
    pub reason: String,
}

/// Memory and throughput of memfit's loader on this machine.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DataLoaderHere {
    /// The JPEG decoder.
    pub jpeg: &'static str,
    /// Height and width of the delivered images.
    pub size: [u32; 2],
    /// Threads.
    pub threads: u64,
    /// Measured images per second; absent if none could be decoded.
    pub images_per_second: Option<f64>,
    /// Number of images decoded for that measurement.
    pub measured: u64,
    /// Images that are decoded at a smaller scale.
    pub scaled: u64,
    /// Bytes for decoding one image.
    pub decoding: DataSpread,
}

/// Memory of PyTorch's `DataLoader` with these settings.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DataLoaderThere {
    /// Samples in a batch.
    pub batch_size: u64,
    /// `num_workers`.
    pub workers: u64,
    /// `prefetch_factor`.
    pub prefetch_factor: u64,
    /// `pin_memory`.
    pub pin_memory: bool,
    /// Bytes of one batch of float32.
    pub batch: u64,
    /// In `/dev/shm`.
    pub shared_memory: u64,
    /// Free space in `/dev/shm` on this machine.
    pub shared_memory_free: Option<u64>,
    /// Pinned, rounded up as PyTorch does.
    pub pinned: u64,
    /// In the workers, in addition to Python itself.
    pub in_workers: u64,
    /// Bytes for decoding the largest image in full.
    pub largest_decode: u64,
}
