//! Words of shell commands.

/// Quotes a word for a POSIX shell where the shell requires it.
pub fn shell_word(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:,@+%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_where_a_shell_needs_it() {
        assert_eq!(shell_word("/home/me/a-b_1.2"), "/home/me/a-b_1.2");
        assert_eq!(shell_word("/home/me/it's mine"), r"'/home/me/it'\''s mine'");
        assert_eq!(shell_word(""), "''");
    }
}
