//! Removal of the user's names from recordings and snapshots, so that they can be shared.

use crate::{Recording, Snapshot, Texts};

impl Recording {
    /// Replaces paths and the names of functions, modules and ranges with numbers, and removes the command
    /// and the hashes of source lines. Events, times and sizes stay.
    pub fn make_confidential(&mut self) {
        self.origin.command.clear();
        self.origin.sources.clear();
        // Instructions of remedies may name modules.
        self.origin.trials.clear();
        for track in &mut self.tracks {
            track.texts = numbered(&track.texts);
        }
    }
}

impl Snapshot {
    /// Replaces the user's names in a snapshot with numbers, as [`Recording::make_confidential`] does.
    pub fn make_confidential(&mut self) {
        self.texts = numbered(&self.texts);
    }
}

/// Replaces each text with its number. Unlike hashes, numbers cannot be checked against guesses. The paths of
/// PyTorch's own files are kept, since they are not secret.
fn numbered(texts: &Texts) -> Texts {
    let mut named = Texts::default();
    for (number, text) in texts.iter().enumerate().skip(1) {
        let torch = text.rfind("/torch/").filter(|_| text.contains("-packages/torch/"));
        match torch {
            // Two installations may contain the same file, and interned texts must differ.
            Some(at) => named.intern(&format!("{}#{number}", &text[at + 1..])),
            None => named.intern(&format!("name {number}")),
        };
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SourceFile, TextId};

    /// Hashes of lines can be checked against guesses.
    #[test]
    fn no_source_line_is_left() {
        let mut recording = Recording::default();
        recording.origin.sources =
            vec![SourceFile::new("train.py".into(), "/train.py".into(), "secret = 1\n")];
        recording.make_confidential();
        assert_eq!(recording, Recording::default());
    }

    #[test]
    fn no_name_is_left_and_each_stays_distinct() {
        let mut texts = Texts::default();
        let secret = ["/home/ada/secret/train.py", "SecretNet.forward", "name 1"];
        let ids: Vec<TextId> = secret.iter().map(|text| texts.intern(text)).collect();
        let torch = texts.intern("/home/ada/v/lib/python3.11/site-packages/torch/nn/modules/linear.py");
        let shared = numbered(&texts);
        assert_eq!(shared.len(), texts.len());
        let names: Vec<&str> = ids.iter().map(|id| shared.get(*id)).collect();
        assert_eq!(names, ["name 1", "name 2", "name 3"]);
        assert_eq!(shared.get(torch), "torch/nn/modules/linear.py#4");
        assert_eq!(shared.get(TextId::NONE), "");
    }
}
