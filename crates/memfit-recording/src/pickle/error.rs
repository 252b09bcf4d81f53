//! Errors of the pickle reader.

use std::io;

/// Error that stopped the reading of a pickle.
#[derive(Debug, thiserror::Error)]
#[error("at byte {offset}: {kind}")]
pub struct PickleError {
    /// Offset of the operation that failed.
    pub offset: u64,
    /// Kind of the error.
    pub kind: PickleErrorKind,
}

/// Kinds of errors in a pickle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PickleErrorKind {
    /// Reading the file failed.
    #[error("the file cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file ends within an operation, or without the operation that ends a pickle.
    #[error("the file is truncated")]
    CutOff,
    /// The file does not begin as a pickle of protocol 2 or later.
    #[error("this is not a pickle of protocol 2 or later")]
    NotAPickle,
    /// Unknown, newer protocol.
    #[error("this is a pickle of protocol {0}, but memfit reads protocols up to 5")]
    Protocol(u8),
    /// Operation that would import, create or call an object when unpickled by Python.
    #[error("`{operation}` would run code{name}, so it was refused")]
    Refused {
        /// Name of the operation.
        operation: &'static str,
        /// Name of the object in a phrase, or empty.
        name: String,
    },
    /// Operation that plain data does not need, or an invalid one.
    #[error("operation {0:#04x} is not allowed: plain data does not need it")]
    UnknownOperation(u8),
    /// The operation needs more values than the stack holds.
    #[error("`{0}` needs more values than the stack has")]
    StackEmpty(&'static str),
    /// The operation needs a value of another type.
    #[error("`{operation}` needs {needs}")]
    WrongType {
        /// Name of the operation.
        operation: &'static str,
        /// Type that it needs.
        needs: &'static str,
    },
    /// Reference to an unset entry of the memo.
    #[error("memo entry {0} does not exist")]
    NotInMemo(u32),
    /// Memo index far beyond the others.
    #[error("memo entry {0} is out of order")]
    MemoSkips(u32),
    /// Text that is not UTF-8.
    #[error("a string is not UTF-8")]
    NotUtf8,
    /// Text or number longer than the limit.
    #[error("a string or number has {found} bytes, but the limit is {limit}")]
    TextTooLong {
        /// Length found.
        found: u64,
        /// Maximum length.
        limit: u64,
    },
    /// Containers nested deeper than the limit.
    #[error("containers are nested more than {0} levels deep")]
    TooDeep(usize),
    /// More memory needed than the limit.
    #[error("it needs more than {0} bytes of memory")]
    TooLarge(u64),
}

impl PickleError {
    /// Advice for the user.
    pub const fn hint(&self) -> Option<&'static str> {
        match self.kind {
            PickleErrorKind::CutOff => {
                Some("what comes before is used; the program may have died while it wrote the file")
            }
            PickleErrorKind::Refused { .. } => {
                Some("a memory snapshot holds plain data only: do not load this file with pickle")
            }
            PickleErrorKind::NotAPickle => Some(
                "`torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")` writes a snapshot that can be replayed read",
            ),
            PickleErrorKind::Protocol(_) => {
                Some("upgrade memfit, or write the file with `pickle.dump(…, protocol=5)`")
            }
            _ => None,
        }
    }
}
