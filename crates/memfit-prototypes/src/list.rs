//! Parser for prototype lists.

use std::fmt;
use std::fs;
use std::path::Path;

/// One list: a shadowed library and all its names.
pub struct Library {
    /// Name of the list.
    pub name: String,
    /// Sonames of the libraries that export these names.
    pub sonames: Vec<String>,
    /// Prefixes of the names in their public interface.
    pub prefixes: Vec<String>,
    /// Status of a call with a null out-parameter that is required.
    pub invalid: u32,
    /// Status of a refused call.
    pub refusal: u32,
    /// `true` if harmless calls represent work on the device, which may write their operands.
    pub computes: bool,
    /// Names in the list.
    pub entries: Vec<Entry>,
}

/// Treatment of a call by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Written by hand in `src/`.
    Modelled,
    /// Returns success and writes every out-parameter; no other effect.
    Harmless,
    /// Counted by name, and answered with the library's own "not supported".
    Refused,
    /// Another name of a listed call.
    Alias,
}

/// One line of a list.
pub struct Entry {
    /// Exported name.
    pub name: String,
    /// Class of the call.
    pub class: Class,
    /// Parameters; `None` if no header declares them.
    pub parameters: Option<Vec<Parameter>>,
    /// Kind of the result.
    pub result: Kind,
    /// Result in place of zero, if it is not a status.
    pub answer: Option<String>,
    /// Call that an alias refers to.
    pub target: Option<String>,
    /// CUDA release that introduced it, in the encoding of `cuGetProcAddress`.
    pub since: Option<u32>,
    /// `true` if another CUDA release gives it other parameters; the remark states which.
    pub varies: bool,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Direction: in, out, or both.
    pub flow: Flow,
    /// Kind of the value, or of the value that an out-parameter points to.
    pub kind: Kind,
    /// `true` if an out-parameter may be null.
    pub optional: bool,
    /// Value that a harmless call writes in place of zero (or of a fresh token, for a handle).
    pub default: Option<String>,
}

/// Direction of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Passed by value.
    In,
    /// A pointer through which the call writes.
    Out,
    /// A pointer to a value that the call reads, and may change.
    InOut,
}

/// Kind of a value, which decides how the ABI passes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The library's status type; only as a result.
    Status,
    /// No value; only as a result.
    Void,
    /// `int`, or an enumeration.
    Int,
    /// `unsigned int`.
    U32,
    /// `char`, `bool`.
    U8,
    /// `short`, `__half`.
    U16,
    /// `long`, `long long`.
    I64,
    /// `unsigned long`, `unsigned long long`.
    U64,
    /// `size_t`.
    Size,
    /// `float`.
    F32,
    /// `double`.
    F64,
    /// `cuComplex`: two floats in one vector register.
    Complex32,
    /// `cuDoubleComplex`.
    Complex64,
    /// A device address in the driver's type.
    DevPtr,
    /// A pointer to host or device memory that the call may read, or fill by work on the device.
    Ptr,
    /// A NUL-terminated string.
    CStr,
    /// A function pointer.
    Fn,
    /// A stream.
    Stream,
    /// An event.
    Event,
    /// A structure by value; as an out-parameter `bytes(N)`.
    Bytes(usize),
    /// A buffer for text; a harmless call writes the empty string.
    Text,
    /// Any other opaque pointer, by the name of its type.
    Handle(String),
    /// The arguments of a variadic function.
    Variadic,
}

/// Error on a line that cannot be parsed.
#[derive(Debug)]
pub struct Problem {
    place: String,
    what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// Reads all lists of a folder, in the order of their names.
pub fn read_folder(folder: &Path) -> Result<Vec<Library>, Problem> {
    let trouble =
        |what: std::io::Error| Problem { place: folder.display().to_string(), what: what.to_string() };
    let mut paths = Vec::new();
    for file in fs::read_dir(folder).map_err(trouble)? {
        let path = file.map_err(trouble)?.path();
        if path.extension().is_some_and(|extension| extension == "api") {
            paths.push(path);
        }
    }
    paths.sort();
    paths
        .iter()
        .map(|path| read(&path.display().to_string(), &fs::read_to_string(path).map_err(trouble)?))
        .collect()
}

/// Parses one list.
pub fn read(place: &str, text: &str) -> Result<Library, Problem> {
    let mut library = Library {
        name: String::new(),
        sonames: Vec::new(),
        prefixes: Vec::new(),
        invalid: 0,
        refusal: 0,
        computes: false,
        entries: Vec::new(),
    };
    for (number, line) in text.lines().enumerate() {
        let problem = |what: String| Problem { place: format!("{place}:{}", number + 1), what };
        let (line, remark) = line.split_once('#').map_or((line, None), |(line, remark)| (line, Some(remark)));
        let line = line.trim();
        let Some((word, rest)) = line.split_once(char::is_whitespace) else {
            if line == "computes" {
                library.computes = true;
                continue;
            }
            if line.is_empty() {
                continue;
            }
            return Err(problem(format!("`{line}` alone on a line")));
        };
        let rest = rest.trim();
        let words = || rest.split_whitespace().map(str::to_owned).collect();
        let code = || rest.parse().map_err(|_| problem(format!("`{rest}` is not a status code")));
        let class = match word {
            "library" => {
                rest.clone_into(&mut library.name);
                continue;
            }
            "status" => continue,
            "soname" => {
                library.sonames = words();
                continue;
            }
            "prefix" => {
                library.prefixes = words();
                continue;
            }
            "invalid" => {
                library.invalid = code()?;
                continue;
            }
            "refusal" => {
                library.refusal = code()?;
                continue;
            }
            "modelled" => Class::Modelled,
            "harmless" => Class::Harmless,
            "refused" => Class::Refused,
            "alias" => Class::Alias,
            other => return Err(problem(format!("`{other}` is neither a class nor a setting"))),
        };
        let varies = remark.is_some_and(|remark| remark.trim_start().starts_with("12: ("));
        library.entries.push(Entry { varies, ..entry(class, rest).map_err(problem)? });
    }
    Ok(library)
}

fn entry(class: Class, text: &str) -> Result<Entry, String> {
    let mut since = None;
    let mut kept = text;
    for word in text.rsplit(' ') {
        if let Some(release) = word.strip_prefix(">=") {
            since = Some(release.parse().map_err(|_| format!("`{word}` is not a release"))?);
        } else if !word.starts_with('@') {
            break; // `@13`, which only the extractor reads, and `>=12040` end a line; what is left is the prototype.
        }
        kept = kept.strip_suffix(word).unwrap_or(kept).trim_end();
    }
    if class == Class::Alias {
        let (name, target) = kept.split_once('=').ok_or("an alias has the form `name = call`")?;
        let (name, target) = (name.trim().to_owned(), Some(target.trim().to_owned()));
        return Ok(Entry {
            name,
            class,
            parameters: None,
            result: Kind::Status,
            answer: None,
            target,
            since,
            varies: false,
        });
    }
    let (name, rest) = kept.split_once('(').ok_or("no parameters")?;
    let (inside, result, answer) = match rest.rsplit_once(") -> ") {
        Some((inside, result)) => match result.split_once('=') {
            Some((result, answer)) => (inside, kind(result.trim())?, Some(answer.trim().to_owned())),
            None => (inside, kind(result.trim())?, None),
        },
        None => (rest.strip_suffix(')').ok_or("no closing parenthesis")?, Kind::Status, None),
    };
    let parameters = match inside.trim() {
        "?" => None,
        "" => Some(Vec::new()),
        list => Some(list.split(',').map(|each| parameter(each.trim())).collect::<Result<_, _>>()?),
    };
    if class == Class::Harmless && parameters.is_none() {
        return Err(format!("{name} cannot be harmless while its parameters are unknown"));
    }
    Ok(Entry {
        name: name.trim().to_owned(),
        class,
        parameters,
        result,
        answer,
        target: None,
        since,
        varies: false,
    })
}

fn parameter(text: &str) -> Result<Parameter, String> {
    let (text, default) = match text.split_once('=') {
        Some((before, value)) => (before.trim(), Some(value.trim().to_owned())),
        None => (text, None),
    };
    let (flow, text) = if let Some(rest) = text.strip_prefix("out ") {
        (Flow::Out, rest)
    } else if let Some(rest) = text.strip_prefix("inout ") {
        (Flow::InOut, rest)
    } else {
        (Flow::In, text)
    };
    let (optional, text) = match text.strip_prefix("opt ") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if flow == Flow::In && (optional || default.is_some()) {
        return Err(format!("`{text}`: only an out-parameter is optional or has a default"));
    }
    Ok(Parameter { flow, kind: kind(text)?, optional, default })
}

fn kind(text: &str) -> Result<Kind, String> {
    if let Some(size) = text.strip_prefix("bytes(").or_else(|| text.strip_prefix("struct(")) {
        let size = size.strip_suffix(')').and_then(|size| size.parse().ok());
        return size.map(Kind::Bytes).ok_or(format!("`{text}` has no size"));
    }
    Ok(match text {
        "status" => Kind::Status,
        "void" => Kind::Void,
        "int" => Kind::Int,
        "u32" => Kind::U32,
        "u8" => Kind::U8,
        "u16" => Kind::U16,
        "i64" => Kind::I64,
        "u64" => Kind::U64,
        "size" => Kind::Size,
        "f32" => Kind::F32,
        "f64" => Kind::F64,
        "cf32" => Kind::Complex32,
        "cf64" => Kind::Complex64,
        "devptr" => Kind::DevPtr,
        "ptr" => Kind::Ptr,
        "cstr" => Kind::CStr,
        "fn" => Kind::Fn,
        "stream" => Kind::Stream,
        "event" => Kind::Event,
        "text" => Kind::Text,
        "..." => Kind::Variadic,
        "out" | "inout" | "opt" => return Err(format!("`{text}` of what?")),
        name if name.chars().next().is_some_and(char::is_alphabetic)
            && name.chars().all(|c| c.is_alphanumeric() || c == '_') =>
        {
            Kind::Handle(name.to_owned())
        }
        other => return Err(format!("`{other}` is not a kind")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Result<Entry, String> {
        let list = read("test.api", &format!("library test\ninvalid 1\nrefusal 801\n\n{line}\n"));
        list.map(|mut list| list.entries.remove(0)).map_err(|problem| problem.to_string())
    }

    #[test]
    fn settings_stand_above_the_calls() {
        let text = "# what this is\nlibrary cudart\nsoname  libcudart.so.12 libcudart.so.13\nprefix  cuda __cuda\n\
                    status  cudaError_t  # success 0\ninvalid 1\nrefusal 801\n\nrefused  cudaX()\n";
        let Ok(list) = read("cudart.api", text) else { panic!("it is a list") };
        assert_eq!(list.name, "cudart");
        assert_eq!(list.sonames, ["libcudart.so.12", "libcudart.so.13"]);
        assert_eq!(list.prefixes, ["cuda", "__cuda"]);
        assert_eq!((list.invalid, list.refusal), (1, 801));
        assert_eq!(list.entries.len(), 1);
    }

    #[test]
    fn parameters_tell_flow_kind_and_default() {
        let entry = one(
            "harmless cudaX(stream, out opt size=7, inout bytes(24), cudaGraph, out text) @13 >=12040  # why",
        )
        .unwrap();
        let parameter = |flow, kind, optional, default: Option<&str>| Parameter {
            flow,
            kind,
            optional,
            default: default.map(str::to_owned),
        };
        assert_eq!(
            entry.parameters.unwrap(),
            [
                parameter(Flow::In, Kind::Stream, false, None),
                parameter(Flow::Out, Kind::Size, true, Some("7")),
                parameter(Flow::InOut, Kind::Bytes(24), false, None),
                parameter(Flow::In, Kind::Handle("cudaGraph".to_owned()), false, None),
                parameter(Flow::Out, Kind::Text, false, None),
            ]
        );
        assert_eq!((entry.class, entry.since, entry.result), (Class::Harmless, Some(12040), Kind::Status));
    }

    #[test]
    fn the_return_type_decides_what_a_refusal_returns() {
        let entry = one("refused cuFileRead(ptr, size) -> i64=-1").unwrap();
        assert_eq!((entry.result, entry.answer.as_deref()), (Kind::I64, Some("-1")));
        let entry = one("refused cudaGetErrorString(int) -> cstr").unwrap();
        assert_eq!((entry.result, entry.answer), (Kind::CStr, None));
    }

    #[test]
    fn an_unknown_prototype_is_only_refused() {
        assert!(one("refused cuFileCopyGpu(?)").unwrap().parameters.is_none());
        assert!(one("harmless cuFileCopyGpu(?)").is_err_and(|what| what.contains("cannot be harmless")));
    }

    #[test]
    fn a_remark_tells_that_releases_differ() {
        assert!(one("refused cudaX(ptr)  # 12: (int); 13: (ptr)").unwrap().varies);
        assert!(!one("refused cudaX(ptr)  # since 12: it was there").unwrap().varies);
    }

    #[test]
    fn an_alias_names_its_call() {
        let entry = one("alias    pncclAllReduce = ncclAllReduce").unwrap();
        assert_eq!((entry.name.as_str(), entry.target.as_deref()), ("pncclAllReduce", Some("ncclAllReduce")));
    }

    #[test]
    fn unreadable_lines_are_reported_with_their_place() {
        for (line, what) in [
            ("modeled cudaX()", "`modeled` is neither a class nor a setting"),
            ("refused cudaX", "no parameters"),
            ("refused cudaX(int", "no closing parenthesis"),
            ("refused cudaX(out)", "`out` of what?"),
            ("refused cudaX(int *)", "`int *` is not a kind"),
            ("refused cudaX(bytes(x))", "has no size"),
            ("refused cudaX(opt int)", "only an out-parameter"),
            ("refused cudaX(int=3)", "only an out-parameter"),
            ("refused cudaX() >=soon", "is not a release"),
            ("alias pncclX", "an alias has the form"),
        ] {
            let error = one(line).err().unwrap_or_else(|| panic!("{line} was read"));
            assert!(error.starts_with("test.api:5: ") && error.contains(what), "{line}: {error}");
        }
    }
}
