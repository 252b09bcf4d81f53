//! `torch.compile`, which fuses kernels.

use crate::{
    Declaration, Docs, Framework, Keyword, Label, ModelChange, Moved, Script, Search, Sense, Sentence,
    Situation, Stage, Turn, Value, in_short,
};

const COMPILE_EACH: &str = r#"def compile_each(model, names):
    """Compile each of these modules separately; equal ones share the compiled code."""
    for name in names:
        model.get_submodule(name).compile()
"#;

pub(super) const LEVER: Declaration = Declaration {
    brief: "kernels fused by `torch.compile`",
    sentence: Sentence::With(sentence),
    search: Some(Search::new(Turn::Always, 90, sense)),
    script: Script::Model(&[
        ModelChange::Each { statement: "{model}.compile()", imports: &[] },
        ModelChange::Modules {
            function: "compile_each",
            definition: COMPILE_EACH,
            imports: &[],
            remark: "",
            not_beside: None,
        },
    ]),
    keywords: &[Keyword::new(Framework::Transformers, "torch_compile", "True")],
    docs: Docs::new("mode, `\"blocks\"`, module names", "`module.compile()`"),
    ..Declaration::new("compile", Stage::Model, Label::Rounding)
};

/// Identical blocks are compiled once if the model has blocks. The search also tries the whole model for the
/// best plan.
fn sense(situation: &Situation<'_>) -> Sense {
    let training = situation.training;
    // A model that the script compiles stays as it is.
    if !training.optimizes || training.compiled {
        return Sense::Nothing;
    }
    if !situation.compiles {
        return Sense::against(
            "not tried, since each trial takes as long as compiling the model: `--compile` tries it",
        );
    }
    let blocks: Vec<String> = training.blocks.iter().map(|block| block.name.clone()).collect();
    Sense::Try(if blocks.len() > 1 { Value::Names(blocks) } else { Value::default() })
}

fn sentence(moved: Moved<'_>) -> String {
    let how = match moved.value {
        Value::Switch(true) => ", the model compiled as a whole".to_owned(),
        Value::Names(names) => format!(", each block compiled separately: {}", in_short(names)),
        _ => String::new(),
    };
    format!("kernels fused by `torch.compile`{how}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Training;

    #[test]
    fn models_that_the_script_compiles_are_not_compiled_again() {
        let of = |compiled: bool, compiles: bool| {
            let training = Training { optimizes: true, compiled, ..Training::default() };
            sense(&Situation { compiles, ..Situation::new(&training) })
        };
        assert_eq!(of(false, true), Sense::Try(Value::default()));
        assert!(matches!(of(false, false), Sense::Against(why) if why.contains("--compile")));
        assert_eq!(of(true, true), Sense::Nothing);
        assert_eq!(of(true, false), Sense::Nothing);
    }
}
