//! Words of shell commands.

/// Quotes a word for a POSIX shell where the shell requires it.
pub fn shell_word(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:,@+%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A command as a line that a POSIX shell reads as these words.
pub fn shell_line<Word: AsRef<str>>(words: impl IntoIterator<Item = Word>) -> String {
    let quoted: Vec<String> = words.into_iter().map(|word| shell_word(word.as_ref())).collect();
    quoted.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_where_a_shell_needs_it() {
        assert_eq!(shell_word("/home/me/a-b_1.2"), "/home/me/a-b_1.2");
        assert_eq!(shell_word("/home/me/it's mine"), r"'/home/me/it'\''s mine'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_line(["python", "my train.py", "--lr", "$LR"]), "python 'my train.py' --lr '$LR'");
    }
}
