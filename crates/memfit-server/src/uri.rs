//! Conversion of a document's URI to a path.

use std::path::PathBuf;

/// Path of a `file:` URI; for other documents, the last component of the URI.
pub(crate) fn to_path(uri: &str) -> PathBuf {
    let rest = uri.strip_prefix("file://").unwrap_or_else(|| uri.rsplit('/').next().unwrap_or(uri));
    let mut bytes = Vec::with_capacity(rest.len());
    let mut rest = rest.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let hex = more.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        if let Some(byte) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| *first == b'%') {
            bytes.push(byte);
            rest = &more[2..];
        } else {
            bytes.push(*first);
            rest = more;
        }
    }
    PathBuf::from(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone() {
        assert_eq!(to_path("file:///a%20b/c%C3%A9.py"), PathBuf::from("/a b/cé.py"));
        assert_eq!(to_path("untitled:Untitled-1"), PathBuf::from("untitled:Untitled-1"));
        assert_eq!(to_path("file:///100%"), PathBuf::from("/100%"));
    }
}
