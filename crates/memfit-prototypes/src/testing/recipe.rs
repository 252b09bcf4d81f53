//! Recipes: valid calls of entry points for which the prototype alone is not enough.
//!
//! A recipe is one line of `tests/recipes.txt`: calls separated by `;`, the last of which is the tested call.
//!
//! ```text
//! cudaMalloc(out p, 4096); cudaFree(p)
//! cudaEventQuery(event) -> 0
//! ```
//!
//! Arguments are numbers, `null`, `"text"`, `out` (an out-parameter, checked if it is the last call's), `out
//! name` (the same, with its value bound to a name), a bound name, `host` (4 KiB of zeroed host memory),
//! `callback` (a function that does nothing), `list(a, b)` (an array of 8-byte values on the host) and
//! `ints(a, b)` (of 4-byte values); in a list, a text or a list is its address. `name = call()` binds the
//! result of a call. The value of any other word is created by the line `given word = call(out)` of that
//! file, or, if it is the type of a handle, by the call that creates one without other arguments.
//!
//! A call without a recipe follows its prototype: numbers are zero, pointers lead to `host`, handles are
//! created.

#![allow(unsafe_code, reason = "the test bench calls C functions")]

use std::collections::BTreeMap;
use std::ffi::CString;

use super::Loaded;
use super::call::{Answer, Argument, Callers};
use super::canary::{Canary, size_of_kind};
use crate::{Class, Entry, Flow, Kind, Library};

/// The parsed recipe file.
pub struct Recipes {
    /// Recipes by the name of the tested call.
    recipes: BTreeMap<String, Recipe>,
    /// Calls that create the value of a word.
    givens: BTreeMap<String, Vec<Call>>,
}

/// Test of one entry point.
#[derive(Clone)]
pub struct Recipe {
    calls: Vec<Call>,
    expected: Option<i64>,
}

#[derive(Clone, Debug)]
struct Call {
    /// Name that the call's result is bound to.
    binds: Option<String>,
    name: String,
    /// Alias through which the call is made, if the alias is tested.
    through: Option<String>,
    arguments: Vec<Word>,
}

#[derive(Clone, Debug)]
enum Word {
    Number(f64),
    Null,
    Text(String),
    Out(Option<String>),
    Named(String),
    List(Vec<Word>, usize),
}

impl Recipes {
    /// Parses the file; panics on a line that cannot be parsed.
    pub fn read(text: &str) -> Self {
        let mut recipes = BTreeMap::new();
        let mut givens = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split(" #").next().unwrap_or_default().trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let fail = |what: &str| -> ! { panic!("recipes.txt:{}: {what}: {line}", number + 1) };
            if let Some(given) = line.strip_prefix("given ") {
                let Some((word, made)) = given.split_once('=') else { fail("no `=`") };
                givens.insert(word.trim().to_owned(), parse_calls(made).unwrap_or_else(|what| fail(&what)));
                continue;
            }
            let (body, expected) = match line.rsplit_once(" -> ") {
                Some((body, code)) => (body, Some(code.trim().parse().unwrap_or_else(|_| fail("no status")))),
                None => (line, None),
            };
            let calls = parse_calls(body).unwrap_or_else(|what| fail(&what));
            let name = calls.last().map(|call| call.name.clone()).unwrap_or_default();
            if recipes.insert(name, Recipe { calls, expected }).is_some() {
                fail("a second recipe for the same call");
            }
        }
        Self { recipes, givens }
    }

    /// Calls that have recipes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.recipes.keys().map(String::as_str)
    }

    /// Recipe for a call, or one derived from its prototype.
    pub fn recipe_for(&self, entry: &Entry) -> Result<Recipe, String> {
        if let Some(recipe) = self.recipes.get(&entry.name) {
            return Ok(recipe.clone());
        }
        let parameters =
            entry.parameters.as_ref().ok_or("its parameters are unknown: it needs a prototype")?;
        let mut arguments = Vec::new();
        for parameter in parameters {
            arguments.push(match (parameter.flow, &parameter.kind) {
                (Flow::Out, _) => Word::Out(None),
                (Flow::InOut, _) | (Flow::In, Kind::Ptr | Kind::Text) => Word::Named("host".to_owned()),
                (_, Kind::Stream) => Word::Named("stream".to_owned()),
                (_, Kind::Event) => Word::Named("event".to_owned()),
                (_, Kind::Handle(name)) => Word::Named(name.clone()),
                (_, Kind::DevPtr) => Word::Named("device".to_owned()),
                (_, Kind::CStr) => Word::Text("name".to_owned()),
                (_, Kind::Fn) => Word::Named("callback".to_owned()),
                (_, Kind::Variadic) => continue,
                _ => Word::Number(0.0),
            });
        }
        Ok(Recipe {
            calls: vec![Call { binds: None, name: entry.name.clone(), through: None, arguments }],
            expected: None,
        })
    }
}

/// State for running recipes.
pub struct RecipeRunner<'a> {
    library: &'a Loaded,
    callers: &'a Callers,
    lists: &'a [Library],
    recipes: &'a Recipes,
    names: BTreeMap<String, Vec<u8>>,
    /// Memory that arguments point to, kept to the end.
    memory: Vec<Box<[u64]>>,
    texts: Vec<CString>,
}

impl<'a> RecipeRunner<'a> {
    /// Creates the state for a set of libraries and recipes.
    pub fn new(
        library: &'a Loaded,
        callers: &'a Callers,
        lists: &'a [Library],
        recipes: &'a Recipes,
    ) -> Self {
        Self {
            library,
            callers,
            lists,
            recipes,
            names: BTreeMap::new(),
            memory: Vec::new(),
            texts: Vec::new(),
        }
    }

    /// Runs a recipe and checks its last call. An alias is called like the call that it refers to.
    pub fn run(&mut self, entry: &Entry) -> Result<(), String> {
        let (entry, through) = match &entry.target {
            Some(target) => (self.entry(target)?, Some(entry.name.clone())),
            None => (entry, None),
        };
        let mut recipe = self.recipes.recipe_for(entry)?;
        if let Some(last) = recipe.calls.last_mut() {
            last.through = through;
        }
        let (last, before) = recipe.calls.split_last().ok_or("an empty recipe")?;
        let writes = last.arguments.iter().any(|word| matches!(word, Word::Out(_)));
        let mut canaries = Vec::new();
        for round in 0..if writes { 2 } else { 1 } {
            self.names.clear();
            for call in before {
                self.carry_out(call, None)?;
            }
            let answer = self.carry_out(last, Some((round, &mut canaries)))?;
            Self::judge_answer(entry, answer, recipe.expected)?;
        }
        if recipe.expected.is_some_and(|status| status != 0) {
            return Ok(()); // A call that fails need not write.
        }
        for (index, canary) in canaries {
            canary.judge().map_err(|what| format!("parameter {index}: {what}"))?;
        }
        Ok(())
    }

    fn judge_answer(entry: &Entry, answer: Answer, expected: Option<i64>) -> Result<(), String> {
        match (&entry.result, answer, expected) {
            (Kind::Status, Answer::Number(code), _) => {
                let (code, expected) = (i64::from(code as i32), expected.unwrap_or(0));
                if code == expected { Ok(()) } else { Err(format!("answered {code}, not {expected}")) }
            }
            (_, Answer::Number(number), Some(expected)) if number != expected => {
                Err(format!("answered {number}, not {expected}"))
            }
            (Kind::CStr, Answer::Number(0), _) => Err("answered no string".to_owned()),
            _ => Ok(()),
        }
    }

    fn entry(&self, name: &str) -> Result<&'a Entry, String> {
        let all = self.lists.iter().flat_map(|library| &library.entries);
        all.into_iter().find(|entry| entry.name == name).ok_or(format!("{name} is in no list"))
    }

    /// Makes one call. `tested` is set for the call under test, whose out-parameters are canaries.
    fn carry_out(
        &mut self,
        call: &Call,
        tested: Option<(usize, &mut Vec<(usize, Canary)>)>,
    ) -> Result<Answer, String> {
        let entry = self.entry(&call.name)?;
        let parameters =
            entry.parameters.as_ref().ok_or(format!("the parameters of {} are unknown", call.name))?;
        let wanted = parameters.iter().filter(|parameter| parameter.kind != Kind::Variadic).count();
        if call.arguments.len() != wanted {
            return Err(format!(
                "{} takes {wanted} arguments, the recipe has {}",
                call.name,
                call.arguments.len()
            ));
        }
        let mut own = Vec::new();
        let is_tested = tested.is_some();
        let (round, canaries) = tested.unwrap_or((0, &mut own));
        let mut arguments = Vec::new();
        for (index, (parameter, word)) in parameters.iter().zip(&call.arguments).enumerate() {
            if let Word::Out(_) = word {
                if round == 0 {
                    canaries.push((index, Canary::new(parameter)));
                }
                let canary = canaries.iter_mut().find(|(each, _)| *each == index).map(|(_, canary)| canary);
                arguments.push(Argument::new(canary.ok_or("lost a canary")?.address(round)));
                continue;
            }
            let kind = if parameter.flow == Flow::In { &parameter.kind } else { &Kind::Ptr };
            arguments.push(self.argument(word, kind)?);
        }
        let caller = self.callers.get(&call.name).ok_or("no caller was generated")?;
        // SAFETY: the function has the prototype that its caller was generated from, and the recipe passes
        // arguments of it.
        let answer =
            unsafe { caller(self.library.symbol(call.through.as_ref().unwrap_or(&call.name)), &arguments) };
        for (index, word) in call.arguments.iter().enumerate() {
            if let Word::Out(Some(name)) = word
                && let Some((_, canary)) = canaries.iter().find(|(each, _)| *each == index)
            {
                self.names.insert(name.clone(), canary.bytes(round).to_vec());
            }
        }
        if let (Some(name), Answer::Number(number)) = (&call.binds, answer) {
            self.names.insert(name.clone(), number.to_le_bytes().to_vec());
        }
        if !is_tested && entry.result == Kind::Status && answer != Answer::Number(0) {
            return Err(format!("its preparation {} answered {answer:?}", call.name));
        }
        Ok(answer)
    }

    fn argument(&mut self, word: &Word, kind: &Kind) -> Result<Argument, String> {
        Ok(match word {
            Word::Null => Argument::new(0_u64),
            Word::Number(number) => number_argument(*number, kind),
            Word::Text(text) => {
                let text = CString::new(text.as_str()).map_err(|_| "a text with NUL")?;
                let argument = Argument::new(text.as_ptr());
                self.texts.push(text);
                argument
            }
            Word::List(words, width) => {
                let mut bytes = Vec::new();
                for word in words {
                    let value = self.value(word)?;
                    bytes.extend_from_slice(&value[..*width]);
                }
                if matches!(kind, Kind::Bytes(_)) {
                    let mut own = [0_u8; 512];
                    own[..bytes.len()].copy_from_slice(&bytes);
                    return Ok(Argument::new(own)); // A structure by value.
                }
                Argument::new(self.store(&bytes))
            }
            Word::Named(_) => {
                let value = self.value(word)?;
                let mut bytes = [0_u8; 512];
                let length = value.len().min(512);
                bytes[..length].copy_from_slice(&value[..length]);
                if matches!(kind, Kind::Ptr | Kind::CStr) && length > 8 {
                    Argument::new(self.store(&value)) // A structure is handed over by its address.
                } else {
                    Argument::new(bytes)
                }
            }
            Word::Out(_) => return Err("`out` inside an argument".to_owned()),
        })
    }

    /// Bytes of a word's value.
    fn value(&mut self, word: &Word) -> Result<Vec<u8>, String> {
        match word {
            Word::Number(number) => Ok((*number as i64).to_le_bytes().to_vec()),
            Word::Null => Ok(vec![0; 8]),
            Word::Text(_) | Word::List(..) => {
                let address: u64 = self.argument(word, &Kind::Ptr)?.value();
                Ok(address.to_le_bytes().to_vec())
            }
            Word::Out(_) => Err("`out` inside an argument".to_owned()),
            Word::Named(name) => {
                if let Some(value) = self.names.get(name) {
                    return Ok(value.clone());
                }
                let value = self.make(name)?;
                self.names.insert(name.clone(), value.clone());
                Ok(value)
            }
        }
    }

    /// Creates the value that a word refers to.
    fn make(&mut self, word: &str) -> Result<Vec<u8>, String> {
        extern "C" fn callback() {}
        match word {
            "host" => return Ok((self.store(&[0; 4096]) as u64).to_le_bytes().to_vec()),
            "callback" => return Ok((callback as extern "C" fn() as usize).to_le_bytes().to_vec()),
            _ => {}
        }
        let calls = match self.recipes.givens.get(word) {
            Some(calls) => calls.clone(),
            None => vec![self.creator(word)?],
        };
        for call in &calls {
            let mut call = call.clone();
            for argument in &mut call.arguments {
                if matches!(argument, Word::Out(None)) {
                    *argument = Word::Out(Some(word.to_owned()));
                }
            }
            self.carry_out(&call, None).map_err(|what| format!("cannot make `{word}`: {what}"))?;
        }
        self.names.get(word).cloned().ok_or(format!("nothing wrote `{word}`"))
    }

    /// Call that creates a handle without other arguments: `cudnnCreateTensorDescriptor(out)`.
    fn creator(&self, handle: &str) -> Result<Call, String> {
        let wanted = Kind::Handle(handle.to_owned());
        self.lists
            .iter()
            .flat_map(|library| &library.entries)
            .filter(|entry| {
                matches!(entry.class, Class::Modelled | Class::Harmless) && entry.name.contains("reate")
            })
            .find(|entry| {
                let parameters = entry.parameters.as_deref().unwrap_or_default();
                parameters.len() == 1 && parameters[0].flow == Flow::Out && parameters[0].kind == wanted
            })
            .map(|entry| Call {
                binds: None,
                name: entry.name.clone(),
                through: None,
                arguments: vec![Word::Out(None)],
            })
            .ok_or(format!("nothing makes a `{handle}` by itself: it needs a `given` line"))
    }

    fn store(&mut self, bytes: &[u8]) -> *mut u8 {
        let mut words = vec![0_u64; bytes.len().div_ceil(8) + 1].into_boxed_slice();
        let address = words.as_mut_ptr().cast::<u8>();
        // SAFETY: the box has space for the bytes.
        unsafe { address.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.memory.push(words);
        address
    }
}

fn number_argument(number: f64, kind: &Kind) -> Argument {
    match kind {
        Kind::F32 => Argument::new(number as f32),
        Kind::F64 => Argument::new(number),
        Kind::Complex32 => Argument::new([number as f32, 0.0]),
        Kind::Complex64 => Argument::new([number, 0.0]),
        // A structure written as a number has it in its first four bytes: grids (1, 1, 1) are written `dim3`.
        _ if size_of_kind(kind) <= 8 => Argument::new(number as i64),
        _ => Argument::new([number as u32; 3]),
    }
}

fn parse_calls(text: &str) -> Result<Vec<Call>, String> {
    text.split(';').map(|call| parse_call(call.trim())).collect()
}

fn parse_call(text: &str) -> Result<Call, String> {
    let (name, rest) = text.split_once('(').ok_or("no `(`")?;
    let inside = rest.strip_suffix(')').ok_or("no `)` at the end")?;
    let (binds, name) = match name.split_once('=') {
        Some((word, name)) => (Some(word.trim().to_owned()), name),
        None => (None, name),
    };
    Ok(Call { binds, name: name.trim().to_owned(), through: None, arguments: parse_words(inside)? })
}

fn parse_words(text: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (index, character) in text.char_indices().chain([(text.len(), ',')]) {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                let word = text[start..index].trim();
                if !word.is_empty() {
                    words.push(parse_word(word)?);
                }
                start = index + 1;
            }
            _ => {}
        }
    }
    Ok(words)
}

fn parse_word(text: &str) -> Result<Word, String> {
    if let Some(inside) = text.strip_prefix("list(").and_then(|rest| rest.strip_suffix(')')) {
        return Ok(Word::List(parse_words(inside)?, 8));
    }
    if let Some(inside) = text.strip_prefix("ints(").and_then(|rest| rest.strip_suffix(')')) {
        return Ok(Word::List(parse_words(inside)?, 4));
    }
    if let Some(text) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        return Ok(Word::Text(text.to_owned()));
    }
    if let Ok(number) = text.parse() {
        return Ok(Word::Number(number));
    }
    if let Some(number) = text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
        return Ok(Word::Number(number as f64));
    }
    match text {
        "null" => Ok(Word::Null),
        "out" => Ok(Word::Out(None)),
        _ if text.starts_with("out ") => Ok(Word::Out(Some(text[4..].trim().to_owned()))),
        _ if text.chars().all(|c| c.is_alphanumeric() || c == '_') => Ok(Word::Named(text.to_owned())),
        _ => Err(format!("`{text}` is not an argument")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_is_calls_and_a_status() {
        let recipes = Recipes::read(
            "# a remark\ngiven p = make(out)\nmake(out a, 4); use(a, list(1, ints(2)), \"x\") -> 3 # why\n",
        );
        assert_eq!(recipes.names().collect::<Vec<_>>(), ["use"]);
        let recipe = &recipes.recipes["use"];
        assert_eq!((recipe.calls.len(), recipe.expected), (2, Some(3)));
        assert_eq!(recipe.calls[1].arguments.len(), 3);
        assert!(recipes.givens.contains_key("p"));
    }

    #[test]
    fn a_result_is_bound_to_a_name() {
        let call = parse_call("fat = register(list(0x1466243b1, 0))").unwrap();
        assert_eq!((call.binds.as_deref(), call.name.as_str()), (Some("fat"), "register"));
    }

    #[test]
    fn unreadable_recipes_are_errors() {
        for text in ["call", "call(", "call(a b)", "call(+)"] {
            assert!(parse_call(text).is_err(), "{text} was read");
        }
    }

    #[test]
    #[should_panic(expected = "a second recipe")]
    fn a_call_has_one_recipe() {
        Recipes::read("call(1)\ncall(2)\n");
    }
}
