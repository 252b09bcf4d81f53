//! Why a pickle could not be read, and where.

use std::io;

/// Why a pickle could not be read to its end.
#[derive(Debug, thiserror::Error)]
#[error("at byte {offset}: {kind}")]
pub struct PickleError {
    /// The byte at which the operation begins that could not be carried out.
    pub offset: u64,
    /// What is wrong there.
    pub kind: PickleErrorKind,
}

/// What can be wrong with a pickle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PickleErrorKind {
    /// The file could not be read.
    #[error("the file cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file ends within an operation, or without the one that ends a pickle.
    #[error("the file is cut off")]
    CutOff,
    /// The file does not begin as a pickle of protocol 2 or later does.
    #[error("this is no pickle of protocol 2 or later")]
    NotAPickle,
    /// A protocol that did not exist when this was written.
    #[error("this is a pickle of protocol {0}, and the latest that is known is 5")]
    Protocol(u8),
    /// An operation that would name, make or call something when unpickled in the ordinary way.
    #[error("`{operation}` would run code{name}; it was not carried out")]
    Refused {
        /// The operation's name.
        operation: &'static str,
        /// What it names, with words around it, or nothing.
        name: String,
    },
    /// An operation that plain data does not need, or none at all.
    #[error("{0:#04x} is no operation that plain data needs")]
    UnknownOperation(u8),
    /// An operation that finds too little on the stack.
    #[error("`{0}` finds too little on the stack")]
    StackEmpty(&'static str),
    /// An operation that finds something else than it needs.
    #[error("`{operation}` needs {needs}")]
    WrongType {
        /// The operation's name.
        operation: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// A reference to what was not remembered.
    #[error("entry {0} of the memo is not there")]
    NotInMemo(u32),
    /// An entry of the memo far from the others.
    #[error("entry {0} of the memo skips others")]
    MemoSkips(u32),
    /// A text that is not UTF-8.
    #[error("a text is not UTF-8")]
    NotUtf8,
    /// A text or a number longer than the limit.
    #[error("a text or number has {found} bytes, the limit is {limit}")]
    TextTooLong {
        /// What it has.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// More containers within each other than the limit.
    #[error("more than {0} containers lie within each other")]
    TooDeep(usize),
    /// More memory than the limit.
    #[error("it needs more than {0} bytes of memory")]
    TooLarge(u64),
}

impl PickleError {
    /// What the user can do about it.
    pub const fn hint(&self) -> Option<&'static str> {
        match self.kind {
            PickleErrorKind::CutOff => {
                Some("what comes before is used; the program may have died while it wrote the file")
            }
            PickleErrorKind::Refused { .. } => {
                Some("a memory snapshot holds plain data only: do not load this file with pickle")
            }
            PickleErrorKind::NotAPickle => {
                Some("`torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")` writes one that can be read")
            }
            PickleErrorKind::Protocol(_) => {
                Some("upgrade memfit, or write the file with `pickle.dump(…, protocol=5)`")
            }
            _ => None,
        }
    }
}
