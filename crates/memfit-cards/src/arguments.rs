//! The arguments of a command that set the batch size and the number of processes of a launcher.

use std::ffi::{OsStr, OsString};

use memfit_vocabulary::launcher_words;

/// The placeholder for the batch size in a command.
const PLACEHOLDER: &str = "{batch}";
/// Options and configuration keys that hold a batch size, without dashes and with underscores.
const BATCH_NAMES: &[&str] = &[
    "batch_size",
    "batch",
    "bs",
    "train_batch_size",
    "per_device_train_batch_size",
    "micro_batch_size",
    "batchsize",
    "b",
];
/// The option of `torchrun` that sets the number of processes.
const PROCESSES_NAME: &str = "nproc_per_node";

/// A command whose arguments can be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments(Vec<OsString>);

/// The argument to be changed was not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentsError {
    /// No argument of the command sets the batch size.
    #[error("memfit does not know which argument of the command sets the batch size")]
    NoBatch,
    /// A placeholder for which no value was given.
    #[error("the command contains `{{batch}}`, but no batch size is given")]
    BatchMissing,
}

impl Arguments {
    /// The words of a command.
    pub fn new(words: &[OsString]) -> Self {
        Self(words.to_vec())
    }

    /// The command.
    pub fn words(&self) -> &[OsString] {
        &self.0
    }

    /// The batch size in the command, if an argument sets it.
    pub fn batch(&self) -> Option<u64> {
        self.value_of(BATCH_NAMES)
    }

    /// The number of processes that the command's launcher starts; `None` if it is not a launcher.
    pub fn processes(&self) -> Option<u32> {
        launcher_words(&self.0).is_some().then(|| self.value_of(&[PROCESSES_NAME])).flatten()
    }

    /// The same command with another batch size; `None` keeps its own.
    pub fn with_batch(&self, batch: Option<u64>) -> Result<Self, ArgumentsError> {
        let has_placeholder = |word: &OsString| word.to_string_lossy().contains(PLACEHOLDER);
        let placed = self.0.iter().any(has_placeholder);
        match batch {
            None if placed => Err(ArgumentsError::BatchMissing),
            None => Ok(self.clone()),
            Some(batch) if placed => {
                let put = |word: &OsString| match word.to_str() {
                    Some(text) => OsString::from(text.replace(PLACEHOLDER, &batch.to_string())),
                    None => word.clone(),
                };
                Ok(Self(self.0.iter().map(put).collect()))
            }
            Some(batch) => self.with_value(BATCH_NAMES, &batch.to_string()).ok_or(ArgumentsError::NoBatch),
        }
    }

    /// The same command with a launcher that starts `count` processes; `None` if it is not a launcher.
    pub fn with_processes(&self, count: u32) -> Option<Self> {
        launcher_words(&self.0).and_then(|_| self.with_value(&[PROCESSES_NAME], &count.to_string()))
    }

    fn value_of<T: std::str::FromStr>(&self, names: &[&str]) -> Option<T> {
        let (index, place) = self.place_of(names)?;
        let text = self.0[index].to_str()?;
        match place {
            Value::From(at) => text[at..].parse().ok(),
            Value::Next => self.0.get(index + 1)?.to_str()?.parse().ok(),
        }
    }

    fn with_value(&self, names: &[&str], value: &str) -> Option<Self> {
        let (index, place) = self.place_of(names)?;
        let mut words = self.0.clone();
        match place {
            Value::From(at) => {
                let name = words[index].to_str()?[..at].to_owned();
                words[index] = OsString::from(name + value);
            }
            Value::Next => *words.get_mut(index + 1)? = OsString::from(value),
        }
        Some(Self(words))
    }

    /// The last word that is one of these options, and the location of its value.
    fn place_of(&self, names: &[&str]) -> Option<(usize, Value)> {
        (0..self.0.len()).rev().find_map(|index| {
            let value = option_named(&self.0[index], names)?;
            (value != Value::Next || index + 1 < self.0.len()).then_some((index, value))
        })
    }
}

/// Location of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// The next word.
    Next,
    /// In the same word as the option, from this byte on.
    From(usize),
}

/// Location of an option's value, if the word is one of these options.
fn option_named(word: &OsStr, names: &[&str]) -> Option<Value> {
    let text = word.to_str()?;
    let bare = text.trim_start_matches('-');
    let dashes = text.len() - bare.len();
    let (name, value) = match bare.split_once('=') {
        Some((name, _)) => (name, Value::From(dashes + name.len() + 1)),
        None => (bare, Value::Next),
    };
    // A configuration key (`train.batch_size=8`) needs its equals sign, an option its dash.
    let key = name.rsplit('.').next().unwrap_or(name).replace('-', "_").to_lowercase();
    let is_option = dashes > 0 || value != Value::Next;
    (is_option && names.contains(&key.as_str())).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Arguments {
        Arguments::new(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    fn with_batch(line: &str, batch: u64) -> Result<String, ArgumentsError> {
        let words = command(line).with_batch(Some(batch))?.words().join(OsStr::new(" "));
        Ok(words.to_string_lossy().into_owned())
    }

    #[test]
    fn a_batch_is_set_where_the_command_says_it() {
        for (line, expected) in [
            ("python t.py --batch-size 8 --lr 1", "python t.py --batch-size 32 --lr 1"),
            ("python t.py --batch_size=8", "python t.py --batch_size=32"),
            ("python t.py -b 8", "python t.py -b 32"),
            ("python t.py train.batch_size=8", "python t.py train.batch_size=32"),
            ("python t.py --per_device_train_batch_size 1", "python t.py --per_device_train_batch_size 32"),
            ("python t.py --size {batch}x{batch}", "python t.py --size 32x32"),
        ] {
            assert_eq!(with_batch(line, 32).as_deref(), Ok(expected));
        }
        for line in ["python t.py", "python t.py --eval-batch 8", "python batch", "python t.py --batch-size"]
        {
            assert_eq!(with_batch(line, 32), Err(ArgumentsError::NoBatch), "{line}");
        }
        assert_eq!(command("python t.py {batch}").with_batch(None), Err(ArgumentsError::BatchMissing));
        assert_eq!(command("python t.py --batch-size 8").batch(), Some(8));
        assert_eq!(command("python t.py -b=8").batch(), Some(8));
        assert_eq!(command("python t.py --batch-size many").batch(), None);
    }

    #[test]
    fn only_a_launcher_starts_another_number_of_processes() {
        let launcher = command("/v/bin/torchrun --standalone --nproc-per-node 2 t.py --batch-size 4");
        assert_eq!(launcher.processes(), Some(2));
        assert_eq!(
            launcher.with_processes(8),
            Some(command("/v/bin/torchrun --standalone --nproc-per-node 8 t.py --batch-size 4"))
        );
        let module = command("python -m torch.distributed.run --nproc_per_node=4 t.py");
        assert_eq!(module.with_processes(2).and_then(|command| command.processes()), Some(2));
        assert_eq!(command("python t.py --nproc-per-node 2").with_processes(4), None);
    }
}
