//! Opcodes of pickles and the names that Python gives them.

macro_rules! operations {
    ($($(#[$meta:meta])* $name:ident = $byte:literal;)+) => {
        $($(#[$meta])* pub(super) const $name: u8 = $byte;)+

        /// Name of an operation.
        pub(super) const fn name(byte: u8) -> Option<&'static str> {
            match byte {
                $($name => Some(stringify!($name)),)+
                _ => None,
            }
        }
    };
}

operations! {
    MARK = b'(';
    STOP = b'.';
    POP = b'0';
    POP_MARK = b'1';
    DUP = b'2';
    BINFLOAT = b'G';
    BININT = b'J';
    BININT1 = b'K';
    BININT2 = b'M';
    NONE = b'N';
    BINUNICODE = b'X';
    APPEND = b'a';
    APPENDS = b'e';
    BINGET = b'h';
    LONG_BINGET = b'j';
    BINPUT = b'q';
    LONG_BINPUT = b'r';
    SETITEM = b's';
    TUPLE = b't';
    SETITEMS = b'u';
    EMPTY_DICT = b'}';
    EMPTY_LIST = b']';
    EMPTY_TUPLE = b')';
    PROTO = 0x80;
    TUPLE1 = 0x85;
    TUPLE2 = 0x86;
    TUPLE3 = 0x87;
    NEWTRUE = 0x88;
    NEWFALSE = 0x89;
    LONG1 = 0x8a;
    LONG4 = 0x8b;
    SHORT_BINUNICODE = 0x8c;
    BINUNICODE8 = 0x8d;
    MEMOIZE = 0x94;
    FRAME = 0x95;

    // The following operations are known only so that they can be refused by name.
    PERSID = b'P';
    BINPERSID = b'Q';
    REDUCE = b'R';
    BUILD = b'b';
    GLOBAL = b'c';
    INST = b'i';
    OBJ = b'o';
    NEWOBJ = 0x81;
    EXT1 = 0x82;
    EXT2 = 0x83;
    EXT4 = 0x84;
    NEWOBJ_EX = 0x92;
    STACK_GLOBAL = 0x93;
}

/// Returns `true` if an operation imports, creates or calls an object.
pub(super) const fn runs_code(byte: u8) -> bool {
    matches!(
        byte,
        PERSID
            | BINPERSID
            | REDUCE
            | BUILD
            | GLOBAL
            | INST
            | OBJ
            | NEWOBJ
            | EXT1
            | EXT2
            | EXT4
            | NEWOBJ_EX
            | STACK_GLOBAL
    )
}
