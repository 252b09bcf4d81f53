//! Parsing of kernel names: the function, its template arguments, the types of its parameters.

/// Name and text of a kernel, as its compiler left them.
pub(crate) struct Name<'a> {
    /// Name in the image.
    pub(crate) mangled: &'a str,
    /// Intermediate text that Triton keeps.
    pub(crate) text: Option<&'a str>,
    /// Demangled name; `None` if it is not a C++ name.
    pub(crate) signature: Option<Signature>,
}

impl<'a> Name<'a> {
    /// Demangles a name.
    pub(crate) fn new(mangled: &'a str, text: Option<&'a str>) -> Self {
        Self { mangled, text, signature: Signature::demangle(mangled) }
    }

    /// Name of the function; for a C++ name, without namespaces and types.
    pub(crate) fn function(&self) -> &str {
        self.signature.as_ref().map_or(self.mangled, Signature::name)
    }
}

/// A demangled function name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    text: String,
    /// Range of the last part of the qualified name.
    name: (usize, usize),
    templates: Vec<(usize, usize)>,
    params: Vec<(usize, usize)>,
}

/// Maximum bytes of a name that is parsed; kernels' names have up to some kilobytes.
const MAX_NAME_BYTES: usize = 1 << 16;

impl Signature {
    /// Demangles and parses a name; `None` if it is not a C++ name.
    pub(crate) fn demangle(mangled: &str) -> Option<Self> {
        if mangled.len() > MAX_NAME_BYTES {
            return None;
        }
        let text = cpp_demangle::Symbol::new(mangled).ok()?.demangle().ok()?;
        // The only form in a name in which brackets do not nest.
        Self::parse(text.replace("(anonymous namespace)::", ""))
    }

    fn parse(text: String) -> Option<Self> {
        let opening = text.find(['<', '('])?;
        let start = text[..opening].rfind([' ', ':']).map_or(0, |index| index + 1);
        let name = (start, opening);
        let mut at = opening;
        let mut templates = Vec::new();
        if text.as_bytes()[at] == b'<' {
            let end = closing(&text, at)?;
            templates = split_at_commas(&text, at + 1, end);
            at = end + 1;
        }
        let params = match text.as_bytes().get(at) {
            Some(b'(') => split_at_commas(&text, at + 1, closing(&text, at)?),
            _ => Vec::new(),
        };
        Some(Self { text, name, templates, params })
    }

    /// Returns `true` for PyTorch's own kernels.
    pub(crate) fn is_pytorch(&self) -> bool {
        self.text[..self.name.0].rsplit(' ').next().is_some_and(|path| path.starts_with("at::native::"))
    }

    /// Sizes of its parameters; `None` unless all of their types are plain.
    pub(crate) fn sizes(&self) -> Option<Vec<u32>> {
        self.params().map(plain_size).collect()
    }

    /// Types of all parameters.
    pub(crate) fn params(&self) -> impl Iterator<Item = &str> {
        self.params.iter().map(|(start, end)| &self.text[*start..*end])
    }

    /// Name without its namespaces.
    pub(crate) fn name(&self) -> &str {
        &self.text[self.name.0..self.name.1]
    }

    /// Returns a template argument.
    pub(crate) fn template(&self, index: usize) -> Option<&str> {
        self.templates.get(index).map(|(start, end)| &self.text[*start..*end])
    }

    /// Returns the type of a parameter.
    pub(crate) fn param(&self, index: usize) -> Option<&str> {
        self.params.get(index).map(|(start, end)| &self.text[*start..*end])
    }
}

/// Bytes of a pointer, a number or a truth value; `None` for other types.
pub(crate) fn plain_size(kind: &str) -> Option<u32> {
    Some(match kind.trim_end_matches("const").trim_end() {
        pointer if pointer.ends_with(['*', '&']) => 8,
        "bool" | "char" | "signed char" | "unsigned char" => 1,
        "short" | "unsigned short" | "c10::Half" | "c10::BFloat16" | "__half" | "__nv_bfloat16" => 2,
        "int" | "unsigned int" | "float" => 4,
        "long" | "unsigned long" | "long long" | "unsigned long long" | "double" => 8,
        _ => return None,
    })
}

/// Splits a type into the last part of its qualified name and its template arguments.
pub(crate) fn type_parts(text: &str) -> (&str, Vec<&str>) {
    let opening = text.find('<').unwrap_or(text.len());
    let start = text[..opening].rfind(':').map_or(0, |index| index + 1);
    let arguments = match closing(text, opening) {
        Some(end) => split_at_commas(text, opening + 1, end)
            .into_iter()
            .map(|(start, end)| &text[start..end])
            .collect(),
        None => Vec::new(),
    };
    (text[start..opening].trim(), arguments)
}

/// Position of the bracket that closes the one at `at`.
fn closing(text: &str, at: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (index, byte) in text.bytes().enumerate().skip(at) {
        match byte {
            b'<' | b'(' | b'{' | b'[' => depth += 1,
            b'>' | b')' | b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(index);
                }
            }
            _ => {}
        }
    }
    None
}

/// Ranges separated by the commas outside all brackets.
fn split_at_commas(text: &str, start: usize, end: usize) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let (mut depth, mut from) = (0usize, start);
    let mut add = |from: usize, to: usize| {
        let piece = &text[from..to];
        let trimmed = piece.trim_start();
        let from = from + (piece.len() - trimmed.len());
        if !trimmed.trim_end().is_empty() {
            found.push((from, from + trimmed.trim_end().len()));
        }
    };
    for (index, byte) in text.bytes().enumerate().take(end).skip(start) {
        match byte {
            b'<' | b'(' | b'{' | b'[' => depth += 1,
            b'>' | b')' | b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                add(from, index);
                from = index + 1;
            }
            _ => {}
        }
    }
    add(from, end);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_taken_apart() {
        let signature = Signature::demangle(
            "_ZN2at6native29vectorized_elementwise_kernelILi2ENS0_11FillFunctorIlEESt5arrayIPcLm1EEEEviT0_T1_",
        )
        .unwrap();
        assert_eq!(signature.name(), "vectorized_elementwise_kernel");
        assert_eq!(signature.template(0), Some("2"));
        assert_eq!(signature.template(1), Some("at::native::FillFunctor<long>"));
        assert_eq!(signature.param(0), Some("int"));
        assert_eq!(signature.param(3), None);
        assert_eq!(type_parts(signature.template(1).unwrap()), ("FillFunctor", vec!["long"]));
    }

    #[test]
    fn a_plain_function_is_taken_apart() {
        let signature = Signature::demangle("_Z3addPKfPfi").unwrap();
        let params: Vec<_> = (0..4).map_while(|index| signature.param(index)).collect();
        assert_eq!((signature.name(), params), ("add", vec!["float const*", "float*", "int"]));
    }

    #[test]
    fn sizes_are_told_by_plain_types_only() {
        let sizes = |mangled: &str| Signature::demangle(mangled).unwrap().sizes();
        assert_eq!(sizes("_Z3addPKfPfi"), Some(vec![8, 8, 4]));
        assert_eq!(sizes("_Z3add7ComplexPf"), None, "nobody knows how large a structure is");
    }

    #[test]
    fn pytorchs_own_kernels_are_told_by_their_namespace() {
        let own = "_ZN2at6native29vectorized_elementwise_kernelILi2ENS0_11FillFunctorIlEESt5arrayIPcLm1EEEEviT0_T1_";
        assert!(Signature::demangle(own).unwrap().is_pytorch());
        let other = "_ZN5other29vectorized_elementwise_kernelILi2EN2at6native11FillFunctorIlEEEEviT0_";
        assert!(!Signature::demangle(other).unwrap().is_pytorch());
        assert!(!Signature::demangle("_Z3addPKfPfi").unwrap().is_pytorch());
    }

    #[test]
    fn lambdas_and_anonymous_namespaces_do_not_confuse_it() {
        let text = "void a::f<(anonymous namespace)::g(T&)::{lambda()#1}::operator()() const::{lambda(long, bool)#2}, 3>(int)";
        let signature = Signature::parse(text.replace("(anonymous namespace)::", "")).unwrap();
        assert_eq!(signature.name(), "f");
        assert_eq!(
            signature.template(0),
            Some("g(T&)::{lambda()#1}::operator()() const::{lambda(long, bool)#2}")
        );
        assert_eq!(signature.template(1), Some("3"));
    }

    #[test]
    fn invalid_names_are_refused() {
        for text in ["", "triton_poi_fused_0", "_Z", "_ZN2at", &"_Z".repeat(1 << 16)] {
            assert_eq!(Signature::demangle(text), None);
        }
        assert_eq!(type_parts("float"), ("float", vec![]));
        assert_eq!(type_parts(">>("), (">>(", vec![]));
    }
}
