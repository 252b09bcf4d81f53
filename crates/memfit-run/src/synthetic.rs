//! `--synthetic-data`: description of the samples, such as `image:3x224x224:uint8,label:int64<1000`.

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
            Some((text, count)) => {
                let count = count.trim().parse().ok().filter(|count| *count > 0);
                (text, Some(count.ok_or("`@` is followed by the number of samples, as in `@50000`")?))
            }
            None => (text, None),
        };
        let inside = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
        let fields: Vec<SyntheticField> =
            inside.unwrap_or(text).split(',').map(field).collect::<Result<_, _>>()?;
        for (index, field) in fields.iter().enumerate() {
            if fields[..index].iter().any(|other| other.name == field.name) {
                return Err(format!("two fields are called `{}`", field.name));
            }
        }
        Ok(Self(SyntheticData { fields, mapping: inside.is_some(), length }))
    }
}

/// Parses `name:3x224x224:uint8`, `name:int64<1000`, `name:float32`.
fn field(text: &str) -> Result<SyntheticField, String> {
    let wrong = |why: &str| {
        format!(
            "`{}` is not a field such as `image:3x224x224:uint8` or `label:int64<1000`: {why}",
            text.trim()
        )
    };
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
    Ok(SyntheticField { name: name.to_owned(), shape, dtype: dtype.to_owned(), below })
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
        ] {
            let error = text.parse::<Samples>().unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
