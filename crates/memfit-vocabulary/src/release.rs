//! Versions of PyTorch and of what it brings.

/// The major and minor version: `(2, 15)` of `2.15.0+cu132`.
pub fn release(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
