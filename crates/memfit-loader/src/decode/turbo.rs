//! JPEG decoding by libjpeg-turbo at the plan's scale and region. All calls of the library are in this
//! module.

#![allow(unsafe_code, reason = "calls a C decoder, and fills memory that torch owns")]

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use turbojpeg_sys as sys;

use super::{Prepared, jpeg};
use crate::LoaderError;
use crate::header::Storage;
use crate::pixels::Bands;

const NAME: &str = "JPEG";
/// Maximum number of scans. A progressive file has about ten; one with thousands is crafted to waste time.
const MAX_SCANS: c_int = 500;

/// Decompressor of the library, reused between images.
pub(super) struct Turbo {
    handle: NonNull<std::ffi::c_void>,
}

// SAFETY: `&mut self` ensures that one thread at a time uses a handle, and the library ties it to no thread.
unsafe impl Send for Turbo {}

impl Drop for Turbo {
    fn drop(&mut self) {
        // SAFETY: the handle came from `tj3Init` and is not used again.
        unsafe { sys::tj3Destroy(self.handle.as_ptr()) }
    }
}

impl Turbo {
    /// Returns the existing decompressor or creates one.
    pub(super) fn get_or_init(slot: &mut Option<Self>) -> Result<&mut Self, LoaderError> {
        if slot.is_none() {
            // SAFETY: takes a constant, returns a handle or null.
            let handle = unsafe { sys::tj3Init(sys::TJINIT_TJINIT_DECOMPRESS as c_int) };
            let handle = NonNull::new(handle)
                .ok_or_else(|| LoaderError::Bug("libjpeg-turbo gives no decompressor".to_owned()))?;
            *slot = Some(Self { handle });
        }
        slot.as_mut().ok_or_else(|| LoaderError::Bug("a decompressor was lost".to_owned()))
    }

    /// Decodes the plan's region into `pixels`.
    pub(super) fn decode(
        &mut self,
        bytes: &[u8],
        image: &Prepared,
        pixels: &mut [u8],
    ) -> Result<(), LoaderError> {
        jpeg::check_readable(image)?;
        let plan = &image.plan;
        let progressive = matches!(image.header.storage, Storage::Jpeg { progressive: true, .. });
        self.set(sys::TJPARAM_TJPARAM_SCANLIMIT, if progressive { MAX_SCANS } else { 0 })?;
        // Memory limit in MiB: the plan's charge, rounded up.
        let most = (plan.cost.decoder >> 20).saturating_add(2).min(i32::MAX as u64) as c_int;
        self.set(sys::TJPARAM_TJPARAM_MAXMEMORY, most)?;
        self.set(sys::TJPARAM_TJPARAM_MAXPIXELS, image.header.pixels().min(i32::MAX as u64) as c_int)?;
        // SAFETY: the pointer and the length are one slice's.
        let read = unsafe {
            sys::tj3DecompressHeader(self.handle.as_ptr(), bytes.as_ptr(), bytes.len() as sys::size_t)
        };
        self.check(read)?;
        let found = (self.get(sys::TJPARAM_TJPARAM_JPEGWIDTH), self.get(sys::TJPARAM_TJPARAM_JPEGHEIGHT));
        if found != (image.header.width as c_int, image.header.height as c_int) {
            return Err(LoaderError::Damaged {
                format: NAME,
                reason: "its headers contradict each other".to_owned(),
            });
        }
        let scale = sys::tjscalingfactor { num: 1, denom: plan.denominator as c_int };
        // SAFETY: a plain structure by value.
        let scaled = unsafe { sys::tj3SetScalingFactor(self.handle.as_ptr(), scale) };
        self.check(scaled)?;

        let region = plan.region;
        let (width, height) =
            (image.header.width.div_ceil(plan.denominator), image.header.height.div_ceil(plan.denominator));
        let whole = region.left == 0 && region.top == 0 && region.width == width && region.height == height;
        let part = |left: u32, top: u32, width: u32, height: u32| sys::tjregion {
            x: left as c_int,
            y: top as c_int,
            w: width as c_int,
            h: height as c_int,
        };
        // All zeros mean the whole image.
        let wanted =
            if whole { part(0, 0, 0, 0) } else { part(region.left, region.top, region.width, region.height) };
        // SAFETY: a plain structure by value.
        let cut = unsafe { sys::tj3SetCroppingRegion(self.handle.as_ptr(), wanted) };
        self.check(cut)?;

        let format = match plan.from.bands {
            Bands::Grey => sys::TJPF_TJPF_GRAY,
            Bands::Cmyk => sys::TJPF_TJPF_CMYK,
            _ => sys::TJPF_TJPF_RGB,
        };
        let pitch = region.width as usize * plan.from.pixel();
        if pixels.len() != pitch * region.height as usize {
            return Err(LoaderError::Bug("a region and its buffer differ".to_owned()));
        }
        // SAFETY: the source is one slice. The library writes `region.height` rows of `pitch` bytes, whose
        // product was checked against the length of the target: the scale and the region were set above, and
        // the size in the header that the library reads is the one that they were computed for.
        let decoded = unsafe {
            sys::tj3Decompress8(
                self.handle.as_ptr(),
                bytes.as_ptr(),
                bytes.len() as sys::size_t,
                pixels.as_mut_ptr(),
                pitch as c_int,
                format,
            )
        };
        self.check(decoded)?;
        // The library reports an error after a warning as a warning, for example if it filled up a file that
        // was truncated before its first scan.
        if (read != 0 || decoded != 0) && !jpeg::has_end_marker(bytes) {
            let reason = "it is truncated".to_owned();
            return Err(LoaderError::Damaged { format: NAME, reason });
        }
        jpeg::uninvert_inks(image, pixels);
        Ok(())
    }

    fn set(&mut self, name: sys::TJPARAM, value: c_int) -> Result<(), LoaderError> {
        // SAFETY: a parameter and a number.
        let done = unsafe { sys::tj3Set(self.handle.as_ptr(), name as c_int, value) };
        self.check(done)
    }

    fn get(&mut self, name: sys::TJPARAM) -> c_int {
        // SAFETY: a parameter.
        unsafe { sys::tj3Get(self.handle.as_ptr(), name as c_int) }
    }

    /// Interprets the return value of a call. Warnings concern files that can be decoded nevertheless, except
    /// those without an end.
    fn check(&mut self, answer: c_int) -> Result<(), LoaderError> {
        if answer == 0 {
            return Ok(());
        }
        // SAFETY: the library returns a zero-terminated string that lives as long as the handle.
        let text = unsafe { CStr::from_ptr(sys::tj3GetErrorStr(self.handle.as_ptr())) };
        let text = text.to_string_lossy().into_owned();
        // SAFETY: takes a handle.
        let code = unsafe { sys::tj3GetErrorCode(self.handle.as_ptr()) };
        if code == sys::TJERR_TJERR_WARNING as c_int && !text.contains("Premature end of JPEG file") {
            return Ok(());
        }
        Err(LoaderError::Damaged { format: NAME, reason: text })
    }
}

/// Decodes a whole image at 1/`by` into `bands` bands. Returns `None` if its header cannot be read.
pub(super) fn whole(bytes: &[u8], by: usize, bands: usize) -> Option<Vec<u8>> {
    let mut slot = None;
    let turbo = Turbo::get_or_init(&mut slot).ok()?;
    let (handle, length) = (turbo.handle.as_ptr(), bytes.len() as sys::size_t);
    // SAFETY: the pointer and the length are one slice's.
    if unsafe { sys::tj3DecompressHeader(handle, bytes.as_ptr(), length) } != 0 {
        return None;
    }
    let width = (turbo.get(sys::TJPARAM_TJPARAM_JPEGWIDTH) as usize).div_ceil(by);
    let height = (turbo.get(sys::TJPARAM_TJPARAM_JPEGHEIGHT) as usize).div_ceil(by);
    let mut out = vec![0; width * height * bands];
    let scale = sys::tjscalingfactor { num: 1, denom: by as c_int };
    // SAFETY: a plain structure by value.
    if unsafe { sys::tj3SetScalingFactor(handle, scale) } != 0 {
        return None;
    }
    let format = if bands == 1 { sys::TJPF_TJPF_GRAY } else { sys::TJPF_TJPF_RGB };
    let pitch = (width * bands) as c_int;
    // SAFETY: the library writes `height` rows of `pitch` bytes, for which there is space. Its warnings about
    // damaged files are ignored, as elsewhere.
    unsafe { sys::tj3Decompress8(handle, bytes.as_ptr(), length, out.as_mut_ptr(), pitch, format) };
    Some(out)
}
