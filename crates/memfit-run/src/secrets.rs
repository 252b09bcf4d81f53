//! Redaction of secrets in command lines, which reports and recordings share.

/// Text that replaces a secret.
const HIDDEN: &str = "<hidden>";

/// Names of options with secret values, by the last words of the name.
const SECRET: &[&str] = &[
    "token",
    "api_key",
    "apikey",
    "access_key",
    "secret",
    "secret_key",
    "password",
    "passwd",
    "credentials",
];

/// Words before `token` in option names that refer to a tokenizer.
const TOKENIZER_WORDS: &[&str] = &[
    "pad",
    "eos",
    "bos",
    "mask",
    "unk",
    "sep",
    "cls",
    "image",
    "special",
    "start",
    "end",
    "stop",
    "placeholder",
    "trigger",
    "instance",
    "class",
];

/// Prefixes of API keys that services issue.
const KEYS: &[&str] =
    &["hf_", "sk-", "ghp_", "gho_", "github_pat_", "glpat-", "xoxb-", "AKIA", "ASIA", "AIza", "wandb_v1_"];
/// Minimum length of a key.
const MIN_KEY: usize = 16;

/// Replaces secret values in a command: `--token VALUE`, `--api-key=VALUE`, `wandb.api_key=VALUE`, keys by
/// their prefixes, and passwords in URLs.
pub fn without_secrets(words: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut follows = false;
    let mut hide = |word: String| {
        if std::mem::take(&mut follows) && !word.starts_with('-') {
            return HIDDEN.to_owned();
        }
        if let Some((name, value)) = word.split_once('=') {
            let secret = is_secret(name) || is_key(value);
            let value = if secret { HIDDEN.to_owned() } else { without_password(value) };
            return format!("{name}={value}");
        }
        follows = word.starts_with('-') && is_secret(&word);
        if is_key(&word) { HIDDEN.to_owned() } else { without_password(&word) }
    };
    words.into_iter().map(&mut hide).collect()
}

/// Returns `true` if the value of an option of this name is a secret.
fn is_secret(name: &str) -> bool {
    let name = name.trim_start_matches(['-', '+']).to_ascii_lowercase().replace('-', "_");
    let last = name.rsplit('.').next().unwrap_or_default();
    let secret = |secret: &&&str| {
        last.strip_suffix(**secret).is_some_and(|before| before.is_empty() || before.ends_with('_'))
    };
    let Some(found) = SECRET.iter().find(secret) else { return false };
    let before = last.strip_suffix(*found).unwrap_or_default().trim_end_matches('_');
    let before = before.rsplit('_').next().unwrap_or_default();
    *found != "token" || !TOKENIZER_WORDS.contains(&before)
}

/// Returns `true` if a word has a key's prefix.
fn is_key(word: &str) -> bool {
    word.len() >= MIN_KEY
        && KEYS.iter().any(|key| word.starts_with(key))
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

/// Removes the user and password from `https://user:password@host`.
fn without_password(word: &str) -> String {
    let parts = word.split_once("://").and_then(|(scheme, rest)| {
        let (user, place) = rest.split_once('@')?;
        (!user.contains('/')).then(|| format!("{scheme}://{HIDDEN}@{place}"))
    });
    parts.unwrap_or_else(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_and_nothing_else_is() {
        let check = |line: &str, expected: &str| {
            let words = line.split_whitespace().map(str::to_owned);
            assert_eq!(without_secrets(words).join(" "), expected);
        };
        check("train.py --token abc --lr 1", "train.py --token <hidden> --lr 1");
        check("train.py --hf-token=abc --HF_API_KEY=x", "train.py --hf-token=<hidden> --HF_API_KEY=<hidden>");
        check("train.py logger.wandb.api_key=abc", "train.py logger.wandb.api_key=<hidden>");
        check("train.py hf_abcdefghijklmnop sk-abcdefghijklmnop", "train.py <hidden> <hidden>");
        check(
            "--data s3://me:pw@bucket/x --url=https://u:p@h",
            "--data s3://<hidden>@bucket/x --url=https://<hidden>@h",
        );
        for plain in [
            "train.py --pad_token <pad> --max-tokens 512 --tokenizer gpt2 --token-dim=64",
            "train.py --push-to-hub --token --lr 1",
            "train.py model=hf_gpt2 https://host/a@b",
        ] {
            check(plain, plain);
        }
    }
}
