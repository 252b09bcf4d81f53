//! Generates, for the tests, a caller for each shape of prototype, so that calls use the real C ABI.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::emit::abi_type;
use crate::list::{Entry, Flow, Kind, Library, Parameter};

/// Generates a function for each distinct shape, and the table of the calls with their shapes.
pub(crate) fn shapes(libraries: &[Library]) -> String {
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let mut callers = String::new();
    let mut table = String::new();
    for entry in libraries.iter().flat_map(|library| &library.entries) {
        let Some(parameters) = &entry.parameters else {
            continue;
        };
        let (signature, arguments) = shape(entry, parameters);
        let fresh = numbers.len();
        let number = *numbers.entry(signature.clone()).or_insert_with(|| {
            let _ = writeln!(
                callers,
                "unsafe fn shape_{fresh}(f: *const c_void, a: &[Argument]) -> Answer {{\n    \
                 // SAFETY: the caller vouches for the function and its arguments.\n    \
                 unsafe {{ let f: unsafe extern \"C\" fn{signature} = std::mem::transmute(f); f({arguments}).into() }}\n}}"
            );
            fresh
        });
        let _ = writeln!(table, "    ({:?}, shape_{number}),", entry.name);
    }
    format!("{callers}\nstatic SHAPES: &[(&str, Caller)] = &[\n{table}];\n")
}

fn shape(entry: &Entry, parameters: &[Parameter]) -> (String, String) {
    let mut types = Vec::new();
    let mut arguments = Vec::new();
    for (index, parameter) in parameters.iter().enumerate() {
        if parameter.kind == Kind::Variadic {
            continue;
        }
        if parameter.flow != Flow::In {
            types.push("*mut c_void".to_owned());
            arguments.push(format!("a[{index}].value()"));
            continue;
        }
        types.push(abi_type(&parameter.kind));
        arguments.push(format!("a[{index}].value()"));
    }
    let result = match entry.result {
        Kind::Status => "u64".to_owned(),
        ref other => abi_type(other),
    };
    (format!("({}) -> {result}", types.join(", ")), arguments.join(", "))
}
