//! Generates the entry points as Rust source.

use std::fmt::Write;

use crate::list::{Class, Entry, Flow, Kind, Library, Parameter};

/// Source that precedes the generated entry points.
const PRELUDE: &str = include_str!("prelude.rs.in");

/// Generates the file: one module per library, and the table of refused calls.
pub(crate) fn stubs(libraries: &[Library]) -> String {
    let mut table = String::new();
    let mut text = String::new();
    let mut index = 0;
    for library in libraries {
        let _ = writeln!(text, "mod {} {{\n    use super::*;\n", library.name);
        for entry in &library.entries {
            match entry.class {
                Class::Modelled => {}
                Class::Alias => alias(&mut text, entry),
                Class::Harmless => harmless(&mut text, library, entry),
                Class::Refused => {
                    refused_call(&mut text, entry, index);
                    let _ = writeln!(table, "    Refusal::new({:?}, {}),", entry.name, library.refusal);
                    index += 1;
                }
            }
        }
        text.push_str("}\n\n");
    }
    entry_points(&mut text, libraries);
    format!("{PRELUDE}static REFUSALS: [Refusal; {index}] = [\n{table}];\n\n{text}")
}

/// Generates an alias as a jump, which leaves all arguments in place.
fn alias(text: &mut String, entry: &Entry) {
    let target = entry.target.as_deref().unwrap_or_default();
    let _ = writeln!(
        text,
        "    unsafe extern \"C\" {{ #[link_name = {target:?}] fn target_of_{name}(); }}\n    \
         #[unsafe(naked)] #[unsafe(no_mangle)] unsafe extern \"C\" fn {name}() {{ jump_to!(target_of_{name}) }}",
        name = entry.name
    );
}

/// Generates the table behind `cuGetProcAddress`: every name of the driver without its version, with each
/// version's address.
fn entry_points(text: &mut String, libraries: &[Library]) {
    let Some(driver) = libraries.iter().find(|library| library.name == "driver") else {
        return;
    };
    let mut table: Vec<(String, u32, &str)> = Vec::new();
    for entry in &driver.entries {
        if let Some(since) = entry.since {
            table.push((unversioned(&entry.name), since, &entry.name));
        }
    }
    table.sort();
    text.push_str("mod addresses {\n    unsafe extern \"C\" {\n");
    for (_, _, symbol) in &table {
        let _ = writeln!(text, "        pub(super) fn {symbol}();");
    }
    let _ = writeln!(text, "    }}\n}}\n\npub(crate) static ENTRY_POINTS: [EntryPoint; {}] = [", table.len());
    for (name, since, symbol) in &table {
        let _ = writeln!(
            text,
            "    EntryPoint {{ name: {name:?}, since: {since}, address: addresses::{symbol} }},"
        );
    }
    text.push_str("];\n");
}

/// Removes the version from a symbol: `cuMemAlloc_v2` is looked up as `cuMemAlloc`, `cuMemcpy_v2_ptds` as
/// `cuMemcpy_ptds`.
fn unversioned(symbol: &str) -> String {
    let (rest, stream) = match symbol.rfind("_ptds").or_else(|| symbol.rfind("_ptsz")) {
        Some(at) => symbol.split_at(at),
        None => (symbol, ""),
    };
    let base = match rest.rsplit_once("_v") {
        Some((base, digits)) if digits.chars().all(|c| c.is_ascii_digit()) => base,
        _ => rest,
    };
    format!("{base}{stream}")
}

/// Generates a refused call, which needs no parameters: in C, the caller cleans up the arguments.
fn refused_call(text: &mut String, entry: &Entry, index: usize) {
    let call = format!("refuse({index})");
    let (result, body) = match &entry.result {
        Kind::Status => (" -> u64".to_owned(), call),
        Kind::Void => (String::new(), format!("{call};")),
        other => (format!(" -> {}", abi_type(other)), format!("{call}; {}", default_result(entry))),
    };
    let _ = writeln!(text, "    #[unsafe(no_mangle)] extern \"C\" fn {}(){result} {{ {body} }}", entry.name);
}

fn harmless(text: &mut String, library: &Library, entry: &Entry) {
    let parameters = entry.parameters.as_deref().unwrap_or_default();
    let mut list = String::new();
    let mut checks = String::new();
    let mut writes = String::new();
    let mut computes = String::new();
    for (index, parameter) in parameters.iter().enumerate() {
        if parameter.kind == Kind::Variadic {
            continue; // Nothing of them is read.
        }
        let kind =
            if parameter.flow == Flow::In { abi_type(&parameter.kind) } else { "*mut c_void".to_owned() };
        let used = parameter.flow == Flow::Out;
        // The list does not state which operands a call writes, so the contents of all become unknown.
        let computed = if library.computes && parameter.flow == Flow::In {
            forget_function(entry, &parameter.kind)
        } else {
            None
        };
        let _ = write!(list, "{}p{index}: {kind}, ", if used || computed.is_some() { "" } else { "_" });
        if let Some(call) = computed {
            let _ = write!(computes, "crate::{call}(p{index} as u64); ");
        }
        if !used {
            continue;
        }
        if !parameter.optional && entry.result == Kind::Status {
            let _ = write!(checks, "if p{index}.is_null() {{ return {}; }}\n        ", library.invalid);
        }
        let _ = write!(writes, "{} ", write_out(index, parameter));
    }
    let (result, value) = match &entry.result {
        Kind::Status => (" -> u64".to_owned(), "0".to_owned()),
        Kind::Void => (String::new(), String::new()),
        other => (format!(" -> {}", abi_type(other)), default_result(entry)),
    };
    let body = if writes.is_empty() {
        format!("{computes}{value}")
    } else {
        format!(
            "{computes}{checks}\n        // SAFETY: the caller hands in out-parameters of these types, and none that is null is written.\n        unsafe {{ {writes}}} {value}"
        )
    };
    let _ = writeln!(
        text,
        "    #[unsafe(no_mangle)] unsafe extern \"C\" fn {}({}){result} {{ {body} }}",
        entry.name,
        list.trim_end_matches(", ")
    );
}

/// Function to call with an operand of device work, so that its contents become unknown.
fn forget_function(entry: &Entry, kind: &Kind) -> Option<&'static str> {
    match kind {
        Kind::Ptr if entry.name.contains("Batched") && !entry.name.contains("Strided") => {
            Some("overwritten::list")
        }
        Kind::Ptr => Some("overwritten::address"),
        Kind::Handle(name) => match name.as_str() {
            "cusparseDnMatDescr" => Some("overwritten::forget_dense_matrix"),
            "cusparseDnVecDescr" => Some("overwritten::forget_dense_vector"),
            _ => None,
        },
        _ => None,
    }
}

fn write_out(index: usize, parameter: &Parameter) -> String {
    let target = format!("p{index}");
    let (kind, value) = match (&parameter.kind, &parameter.default) {
        (Kind::Bytes(size), _) => return format!("clear({target}, {size});"),
        (Kind::Text, _) => return format!("clear({target}, 1);"),
        (Kind::CStr, _) => ("*const c_char".to_owned(), "EMPTY.as_ptr()".to_owned()),
        (Kind::Handle(_) | Kind::Event | Kind::Stream, None) => ("usize".to_owned(), "token()".to_owned()),
        (Kind::Handle(_) | Kind::Event | Kind::Stream | Kind::Ptr | Kind::Fn, Some(value)) => {
            ("usize".to_owned(), value.clone())
        }
        (kind, Some(value)) => (abi_type(kind), value.clone()),
        (kind, None) => (abi_type(kind), zero(kind)),
    };
    format!("write_out::<{kind}>({target}, {value});")
}

/// Value returned by a call that has no status to return.
fn default_result(entry: &Entry) -> String {
    entry.answer.clone().unwrap_or_else(|| zero(&entry.result))
}

/// Rust type that the C ABI passes like a value of this kind.
pub(crate) fn abi_type(kind: &Kind) -> String {
    match kind {
        Kind::Int => "i32",
        Kind::U32 => "u32",
        Kind::U8 => "u8",
        Kind::U16 => "u16",
        Kind::I64 => "i64",
        Kind::Status | Kind::U64 | Kind::DevPtr => "u64",
        Kind::Size => "usize",
        Kind::F32 => "f32",
        Kind::F64 => "f64",
        Kind::Complex32 => "Complex<f32>",
        Kind::Complex64 => "Complex<f64>",
        Kind::CStr => "*const c_char",
        Kind::Void => "()",
        Kind::Bytes(size) => return format!("Structure<{}>", array(*size)),
        Kind::Ptr | Kind::Fn | Kind::Stream | Kind::Event | Kind::Text | Kind::Handle(_) | Kind::Variadic => {
            "*mut c_void"
        }
    }
    .to_owned()
}

/// A structure's bytes in words as large as its size allows, so that it is aligned like the real one.
fn array(size: usize) -> String {
    match size {
        _ if size.is_multiple_of(8) => format!("[u64; {}]", size / 8),
        _ if size.is_multiple_of(4) => format!("[u32; {}]", size / 4),
        _ if size.is_multiple_of(2) => format!("[u16; {}]", size / 2),
        _ => format!("[u8; {size}]"),
    }
}

fn zero(kind: &Kind) -> String {
    match kind {
        Kind::F32 | Kind::F64 => "0.0".to_owned(),
        Kind::Complex32 | Kind::Complex64 => "Complex::default()".to_owned(),
        Kind::CStr => "EMPTY.as_ptr()".to_owned(),
        Kind::Bytes(size) => {
            let array = array(*size);
            let length = array.split(' ').nth(1).unwrap_or_default();
            format!("Structure([0; {length})")
        }
        Kind::Void => "()".to_owned(),
        Kind::Ptr | Kind::Fn | Kind::Stream | Kind::Event | Kind::Text | Kind::Handle(_) | Kind::Variadic => {
            "std::ptr::null_mut()".to_owned()
        }
        _ => "0".to_owned(),
    }
}
