//! Recordings without the user's names: for whoever they are shared with.

use crate::{Recording, Snapshot, Texts};

impl Recording {
    /// Replaces paths and the names of functions, modules and ranges by numbers, and forgets the command.
    /// What happened, when and how large it was stays.
    pub fn make_confidential(&mut self) {
        self.origin.command.clear();
        for track in &mut self.tracks {
            track.texts = numbered(&track.texts);
        }
    }
}

impl Snapshot {
    /// The same for a snapshot.
    pub fn make_confidential(&mut self) {
        self.texts = numbered(&self.texts);
    }
}

/// As many texts, each of them the number of the old one: unlike hashes, they cannot be tried against
/// guesses. PyTorch's own files are no secret.
fn numbered(texts: &Texts) -> Texts {
    let mut named = Texts::default();
    for (number, text) in texts.iter().enumerate().skip(1) {
        let torch = text.rfind("/torch/").filter(|_| text.contains("-packages/torch/"));
        match torch {
            // Two installations may have the same file, and each text is kept once.
            Some(at) => named.intern(&format!("{}#{number}", &text[at + 1..])),
            None => named.intern(&format!("name {number}")),
        };
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TextId;

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
