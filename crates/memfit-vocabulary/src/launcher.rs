//! Commands that start PyTorch's launcher.

use std::ffi::OsStr;
use std::path::Path;

/// Options of Python that have no value.
const PYTHON_FLAGS: [&str; 10] = ["-u", "-B", "-E", "-I", "-O", "-OO", "-P", "-s", "-S", "-v"];

/// Number of words before the launcher's own arguments: of `torchrun …` one, of
/// `python -m torch.distributed.run …` three. `None` if a command does not start it.
pub fn launcher_words<Word: AsRef<OsStr>>(command: &[Word]) -> Option<usize> {
    let (program, rest) = command.split_first()?;
    if Path::new(program.as_ref()).file_name().is_some_and(|name| name == "torchrun") {
        return Some(1);
    }
    let is_flag = |word: &&Word| PYTHON_FLAGS.iter().any(|flag| word.as_ref() == *flag);
    let flags = rest.iter().take_while(is_flag).count();
    let [option, module, ..] = rest.get(flags..)? else { return None };
    (option.as_ref() == "-m" && module.as_ref() == "torch.distributed.run").then_some(flags + 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launcher_is_recognised_in_all_its_forms() {
        for (command, words) in [
            ("torchrun --nproc-per-node 2 train.py", Some(1)),
            ("/v/bin/torchrun train.py", Some(1)),
            ("python -m torch.distributed.run train.py", Some(3)),
            ("python3.12 -u -B -m torch.distributed.run --nnodes 1 train.py", Some(5)),
            ("python train.py -m torch.distributed.run", None),
            ("python -m train", None),
            ("python -X dev -m torch.distributed.run", None),
            ("accelerate launch train.py", None),
            ("", None),
        ] {
            let split: Vec<&str> = command.split_whitespace().collect();
            assert_eq!(launcher_words(&split), words, "{command}");
        }
    }
}
