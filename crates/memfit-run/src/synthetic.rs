//! `--synthetic-data`: description of the samples, such as `image:3x224x224:uint8,label:int64<1000`. Fields
//! in `{}`, `[]` or `()` are a dictionary, a list or a tuple within a sample; words in `""` are a text.

use std::str::FromStr;

use memfit_channel::{SyntheticData, SyntheticField};
use serde::Deserialize;

/// Types of fields: PyTorch's types, text, and an image that transforms convert to a tensor later.
const TYPES: &[&str] = &[
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "str",
    "pil",
];
/// Maximum elements of a sample.
const MAX_ELEMENTS: u64 = 1 << 32;
/// Brackets of a group of fields, with Python's type of it.
const GROUPS: &[(char, char, &str)] = &[('{', '}', "dict"), ('[', ']', "list"), ('(', ')', "tuple")];
/// Mark at both ends of a text, within which no other character has a meaning.
const QUOTE: char = '"';
/// Maximum depth of groups in a sample.
const MAX_DEPTH: usize = 8;

/// Samples by description; without one, samples follow the class of each data set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Samples(pub SyntheticData);

impl TryFrom<String> for Samples {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl FromStr for Samples {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.is_empty() || text == "auto" {
            return Ok(Self::default());
        }
        let (text, length) = match text.rsplit_once('@') {
            Some((text, count)) if !count.contains(QUOTE) => {
                let count = count.trim().parse().ok().filter(|count| *count > 0);
                (text, Some(count.ok_or("`@` is followed by the number of samples, as in `@50000`")?))
            }
            _ => (text, None),
        };
        let parts = parts(text)?;
        let whole =
            if let [part] = parts[..] { group(part)?.filter(|(name, ..)| name.is_empty()) } else { None };
        let (inside, mapping) = match whole {
            Some((_, inside, "dict")) => (inside, true),
            _ => (text, false),
        };
        Ok(Self(SyntheticData { fields: fields(inside, mapping, 0)?, mapping, length }))
    }
}

/// Splits fields at the commas between them.
fn parts(text: &str) -> Result<Vec<&str>, String> {
    let (mut found, mut open, mut start, mut quoted) = (Vec::new(), Vec::new(), 0, false);
    for (place, character) in text.char_indices() {
        quoted ^= character == QUOTE;
        if quoted {
            continue;
        }
        if let Some((_, close, _)) = GROUPS.iter().find(|(begin, ..)| *begin == character) {
            open.push(*close);
        } else if GROUPS.iter().any(|(_, close, _)| *close == character) && open.pop() != Some(character) {
            return Err(format!("`{text}` has a `{character}` too many"));
        } else if character == ',' && open.is_empty() {
            found.push(&text[start..place]);
            start = place + 1;
        }
    }
    if quoted {
        return Err(format!("`{text}` lacks a `{QUOTE}`"));
    }
    if let Some(close) = open.pop() {
        return Err(format!("`{text}` lacks a `{close}`"));
    }
    found.push(&text[start..]);
    Ok(found)
}

/// Splits `name:{…}` into its name, which may be missing, what is in the brackets, and Python's type of it;
/// `None` for a field without brackets.
fn group(text: &str) -> Result<Option<(&str, &str, &'static str)>, String> {
    let Some(start) = text.find(|each| each == QUOTE || GROUPS.iter().any(|(open, ..)| *open == each)) else {
        return Ok(None);
    };
    let (name, rest) = (text[..start].trim(), text[start..].trim_end());
    if rest.starts_with(QUOTE) {
        return Ok(None);
    }
    let found = GROUPS
        .iter()
        .find_map(|(open, close, kind)| Some((rest.strip_prefix(*open)?.strip_suffix(*close)?, *kind)));
    let name = if name.is_empty() { Some(name) } else { name.strip_suffix(':').map(str::trim) };
    match (name, found) {
        (Some(name), Some((inside, kind))) => Ok(Some((name, inside, kind))),
        _ => Err(format!(
            "`{}` is not a group of fields, such as `target:{{boxes:5x4:float32,labels:5:int64<21}}`",
            text.trim()
        )),
    }
}

/// Parses fields, separated by commas. Those of a mapping need names.
fn fields(text: &str, mapping: bool, depth: usize) -> Result<Vec<SyntheticField>, String> {
    if depth > MAX_DEPTH {
        return Err(format!("a sample has no more than {MAX_DEPTH} levels of groups"));
    }
    let mut found: Vec<SyntheticField> = Vec::new();
    for (index, part) in parts(text)?.into_iter().enumerate() {
        let parsed = match group(part)? {
            Some(("", ..)) if mapping => return Err(format!("`{}` needs a name", part.trim())),
            Some((name, inside, kind)) => SyntheticField {
                name: if name.is_empty() { index.to_string() } else { name.to_owned() },
                shape: Vec::new(),
                dtype: kind.to_owned(),
                below: None,
                text: None,
                fields: fields(inside, kind == "dict", depth + 1)?,
            },
            None => field(part)?,
        };
        if found.iter().any(|other| other.name == parsed.name) {
            return Err(format!("two fields are called `{}`", parsed.name));
        }
        found.push(parsed);
    }
    Ok(found)
}

/// Parses `name:3x224x224:uint8`, `name:int64<1000`, `name:float32`, `name:"words"`.
fn field(text: &str) -> Result<SyntheticField, String> {
    let wrong = |why: &str| {
        format!(
            "`{}` is not a field such as `image:3x224x224:uint8` or `label:int64<1000`: {why}",
            text.trim()
        )
    };
    if let Some((name, rest)) = text.trim().split_once(QUOTE) {
        let name = name.trim().strip_suffix(':').map(str::trim).filter(|name| !name.is_empty());
        let (words, after) = rest.split_once(QUOTE).ok_or_else(|| wrong("a text ends with a `\"`"))?;
        return match name {
            Some(name) if after.is_empty() => Ok(SyntheticField {
                name: name.to_owned(),
                shape: Vec::new(),
                dtype: "str".to_owned(),
                below: None,
                text: Some(words.to_owned()),
                fields: Vec::new(),
            }),
            _ => Err(wrong("a text has a name, and nothing after it, as in `role:\"user\"`")),
        };
    }
    let mut parts: Vec<&str> = text.trim().split(':').map(str::trim).collect();
    let kind =
        parts.pop().filter(|_| !parts.is_empty()).ok_or_else(|| wrong("it needs a name and a type"))?;
    let name = parts[0];
    let (dtype, below) = match kind.split_once('<') {
        Some((dtype, below)) => {
            let below = below.trim().parse::<i64>().ok().filter(|below| *below > 0);
            (dtype.trim(), Some(below.ok_or_else(|| wrong("`<` is followed by a number above 0"))?))
        }
        None => (kind, None),
    };
    let shape = match parts.get(1..) {
        Some([shape]) => shape
            .split('x')
            .map(|extent| extent.trim().parse::<u64>().ok().filter(|extent| *extent > 0))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| wrong("a shape has numbers above 0, joined by `x`"))?,
        Some([]) | None => Vec::new(),
        Some(_) => return Err(wrong("it has more than a name, a shape and a type")),
    };
    if name.is_empty() {
        return Err(wrong("it needs a name"));
    }
    if !TYPES.contains(&dtype) {
        return Err(wrong(&format!("the type is one of {}", TYPES.join(", "))));
    }
    if dtype == "pil" && shape.len() < 2 {
        return Err(wrong("an image has a height and a width, as in `image:375x500:pil`"));
    }
    if shape
        .iter()
        .try_fold(1u64, |count, extent| count.checked_mul(*extent))
        .is_none_or(|count| count > MAX_ELEMENTS)
    {
        return Err(wrong("a sample has no more than 4 Gi elements"));
    }
    Ok(SyntheticField {
        name: name.to_owned(),
        shape,
        dtype: dtype.to_owned(),
        below,
        text: None,
        fields: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_as_they_are_written() {
        let field = |name: &str, shape: &[u64], dtype: &str, below| SyntheticField {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype: dtype.to_owned(),
            below,
            text: None,
            fields: Vec::new(),
        };
        let image = field("image", &[3, 224, 224], "uint8", None);
        let label = field("label", &[], "int64", Some(1000));
        for (text, fields, mapping, length) in [
            ("", vec![], false, None),
            ("auto", vec![], false, None),
            ("image:3x224x224:uint8,label:int64<1000", vec![image.clone(), label.clone()], false, None),
            (
                " { image : 3x224x224 : uint8 , label : int64 < 1000 } ",
                vec![image.clone(), label],
                true,
                None,
            ),
            ("image:3x224x224:uint8@50000", vec![image], false, Some(50_000)),
            ("ids:512:int64<32000", vec![field("ids", &[512], "int64", Some(32_000))], false, None),
        ] {
            let expected = SyntheticData { fields, mapping, length };
            assert_eq!(text.parse(), Ok(Samples(expected)), "{text:?}");
        }
    }

    #[test]
    fn a_text_is_taken_as_it_is() {
        for (text, words, length) in [
            ("a:\"x\"", vec![Some("x")], None),
            ("{q:64:str,a:\"1, 2: {#} @3\"}@9", vec![None, Some("1, 2: {#} @3")], Some(9)),
            ("a : \"it @5\"", vec![Some("it @5")], None),
            ("a:\"\",b:int64", vec![Some(""), None], None),
        ] {
            let Samples(read) = text.parse().unwrap();
            assert_eq!(read.length, length, "{text}");
            assert_eq!(
                read.fields.iter().map(|field| field.text.as_deref()).collect::<Vec<_>>(),
                words,
                "{text}"
            );
        }
        let Samples(turns) =
            "{turns:[{role:\"user\",text:9:str},{role:\"model\",text:9:str}]}".parse().unwrap();
        assert_eq!(shown(&turns.fields), "[{ss}{ss}]");
    }

    #[test]
    fn fields_are_grouped_as_a_sample_has_them() {
        for (text, mapping, kinds) in [
            ("image:3x8x8:float32,target:{boxes:5x4:float32,labels:5:int64<21},path:str", false, "f{fi}s"),
            ("[left:3x8x8:float32,right:3x8x8:float32], flow : ( 2x8x8 )", false, ""),
            ("[left:3x8x8:float32,right:3x8x8:float32],flow:2x8x8:float32", false, "[ff]f"),
            ("{video:[a:8:float32],meta:{ok:bool}}@7", true, "[f]{b}"),
            ("(a:2:float32,(b:3:float32,c:int64))", false, "(f(fi))"),
        ] {
            let read = text.parse::<Samples>();
            if kinds.is_empty() {
                assert!(read.is_err(), "{text:?}");
                continue;
            }
            let Samples(read) = read.unwrap();
            assert_eq!((read.mapping, shown(&read.fields)), (mapping, kinds.to_owned()), "{text:?}");
        }
    }

    fn shown(fields: &[SyntheticField]) -> String {
        fields
            .iter()
            .map(|field| match GROUPS.iter().find(|(.., kind)| *kind == field.dtype) {
                Some((open, close, _)) => format!("{open}{}{close}", shown(&field.fields)),
                None => field.dtype[..1].to_owned(),
            })
            .collect()
    }

    #[test]
    fn invalid_specifications_are_refused_with_a_reason() {
        for (text, why) in [
            ("image", "name and a type"),
            (":int64", "needs a name"),
            ("x:0x3:int64", "numbers above 0"),
            ("x:3:4:int64", "more than"),
            ("x:int7", "float32"),
            ("x:int64<0", "above 0"),
            ("x:pil", "height and a width"),
            ("x:99999999x99999999:uint8", "elements"),
            ("x:int64,x:int64", "two fields"),
            ("x:int64@0", "number of samples"),
            ("{x:int64", "lacks a `}`"),
            ("x:int64}", "too many"),
            ("[x:int64)", "too many"),
            ("{[x:int64]}", "needs a name"),
            ("y[x:int64]", "not a group"),
            ("[x:int64]y", "not a group"),
            ("x:\"y", "lacks a `\"`"),
            ("\"y\"", "has a name"),
            ("x:\"y\":str", "nothing after"),
            ("((((((((((x:int64))))))))))", "levels"),
        ] {
            let error = text.parse::<Samples>().unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
