//! Remedies for files that are not on this machine: trained weights, data sets, folders to write into.

use memfit_report::wire::Exception;

use crate::stand_ins::{self, Given, StandIn};
use crate::{own_modules, traceback};

/// Python's message about a file that is not there.
const NO_FILE: &str = "[Errno 2] No such file or directory: '";
/// torchvision's message about a data set without files.
const NO_DATA_SET: &str = "Dataset not found";
/// Messages of transformers and diffusers about a model whose folder has a configuration, but no weights.
const NO_WEIGHTS: &[&str] = &["not appear to have a file named", "Error no file named"];
/// PyTorch's message about a data set without samples.
const NO_SAMPLES: &str = "num_samples=0";
/// Types of errors that a data set's own code raises if its files are missing.
pub(crate) const TOLD_BY: &[&str] = &["RuntimeError", "ValueError", "AssertionError", "Exception"];
/// Calls in an `assert` that check if a file or a folder exists.
pub(crate) const LOOKS_FOR: &[&str] = &["exists(", "isdir(", "isfile(", "is_dir(", "is_file("];
/// OpenCV's message about an image that it did not read.
const NO_IMAGE: &str = "src.empty()";
/// Words in a line of source that creates a folder or a file.
const CREATES: &[&str] = &["mkdir(", "'w'", "\"w\"", "'wb'", "\"wb\"", "'a'", "\"a\""];

/// Remedy for a file that is not there, or for a data set that could not be loaded.
pub(crate) fn hint(given: Given<'_>, exception: &Exception) -> Option<String> {
    let is_file = exception.r#type == "FileNotFoundError";
    if let Some(path) = looked_for_weights(exception) {
        return Some(format!(
            "put the file there. Without it: create an empty one (`touch {path}`) and use `--synthetic-weights`; the model then keeps its initial weights. Remove the empty file before a real training"
        ));
    }
    match stand_ins::unused(given, exception) {
        Some(StandIn::Weights) if is_file => {
            return Some(
                "put the file there; or, if it contains only weights, use `--synthetic-weights`, which replaces them with zeros in the shapes of the model that loads them"
                    .to_owned(),
            );
        }
        Some(StandIn::Weights) if NO_WEIGHTS.iter().any(|words| exception.message.contains(words)) => {
            return Some(
                "put the model's weights beside its configuration; or use `--synthetic-weights`, which takes their shapes from the configuration"
                    .to_owned(),
            );
        }
        Some(StandIn::DataSet)
            if is_file
                || exception.message.contains(NO_DATA_SET)
                || exception.r#type == "AssertionError"
                || raised_in_torchvision(exception) =>
        {
            return Some(
                "put the data set there; or use `--synthetic-data`, which generates samples for the data sets of torchvision and timm"
                    .to_owned(),
            );
        }
        Some(StandIn::Samples) if is_file => {
            return Some(format!("put the files there; or {}", stand_ins::remedy(given, StandIn::Samples)));
        }
        Some(StandIn::Samples)
            if exception.message.contains(NO_SAMPLES)
                || (given.data_set.is_some() && TOLD_BY.contains(&exception.r#type.as_str())) =>
        {
            return Some(format!(
                "the data set found no files: put them where it looks; or {}",
                stand_ins::remedy(given, StandIn::Samples)
            ));
        }
        Some(StandIn::Metric) => {
            return Some(format!(
                "{}; or, on a machine with a network, load the metric once, and copy `~/.cache/huggingface` to this one",
                stand_ins::remedy(given, StandIn::Metric)
            ));
        }
        // Whatever the reason is, rows can be made up.
        Some(StandIn::Rows) => {
            return Some(format!(
                "put the data set where the script looks for it; or {}",
                stand_ins::remedy(given, StandIn::Rows)
            ));
        }
        _ => {}
    }
    if let Some(folder) = no_folder(&exception.message) {
        return Some(format!(
            "there is no folder `{folder}` here, so the library took it for a name on the hub: put the model there, or let the script name the folder that has it"
        ));
    }
    let path = exception.message.strip_prefix(NO_FILE)?.strip_suffix('\'')?;
    if let Some(folder) = traceback::user_folders(&exception.traceback).find(|each| each.join(path).exists())
        && !path.starts_with('/')
    {
        return Some(format!(
            "run the command in `{}`: the path is relative, and the file is there",
            folder.display()
        ));
    }
    let (_, source) = traceback::raising_source(&exception.traceback)?;
    let (folder, _) = path.trim_end_matches('/').rsplit_once('/').filter(|(folder, _)| !folder.is_empty())?;
    let creates = is_file && CREATES.iter().any(|part| source.contains(part));
    (creates && !is_folder(folder)).then(|| {
        format!("create the folder that the script writes into: `mkdir -p {folder}` in its working folder")
    })
}

/// Remedy for a file that the script itself reads, where nothing else is known about it.
pub(crate) fn hint_at_file(exception: &Exception) -> Option<String> {
    let path = exception.message.strip_prefix(NO_FILE).and_then(|rest| rest.split_once('\''));
    if exception.r#type.ends_with("cv2.error") && exception.message.contains(NO_IMAGE) {
        return Some(
            "`cv2.imread` gives nothing where a file is not there or is no image: put the images where the script looks for them; a few of the usual size are enough for memfit"
                .to_owned(),
        );
    }
    // A bare word is a program.
    let is_file =
        exception.r#type == "FileNotFoundError" && path.is_none_or(|(path, _)| path.contains(['/', '.']));
    let looked = exception.r#type == "AssertionError"
        && traceback::raising_source(&exception.traceback)
            .is_some_and(|(_, source)| LOOKS_FOR.iter().any(|call| source.contains(call)));
    if looked {
        return Some(
            "put the file or folder that the script looks for into its place; of a data set, a few samples are enough for memfit"
                .to_owned(),
        );
    }
    if let Some((path, _)) = path.filter(|_| is_file)
        && let Some(own) = own_modules::file_named_as(path, &exception.traceback)
    {
        return Some(format!(
            "the script's project has a file of that name, `{}`: copy it there, or let the script's options or its source name the folder that it is in",
            own.display()
        ));
    }
    is_file.then(|| {
        "put the file there; of a data set, a few samples of the usual size are enough for memfit, as the memory of a step depends on its batch"
            .to_owned()
    })
}

/// Parts of messages of a script that does not find a file.
const TOLD_ABSENT: &[&str] =
    &["not found", "not exist", "n't exist", "no such", "no checkpoint", "missing", "cannot find"];

/// A file of weights that the script's own code looked for, and did not open.
fn looked_for_weights(exception: &Exception) -> Option<&str> {
    let told = exception.message.to_lowercase();
    let by_script = traceback::is_raised_by_script(&exception.traceback);
    let absent = exception.r#type == "FileNotFoundError"
        || (TOLD_BY.contains(&exception.r#type.as_str())
            && TOLD_ABSENT.iter().any(|words| told.contains(words)));
    if !by_script || !absent || told.starts_with("[errno") {
        return None;
    }
    exception
        .message
        .split(|each: char| each.is_whitespace() || "'\"`()[]:,=".contains(each))
        .map(|word| word.trim_end_matches(['.', '!', '?', ';']))
        .find(|word| stand_ins::WEIGHT_FILES.iter().any(|end| word.ends_with(end) && word.len() > end.len()))
}

/// Returns `true` if torchvision's own data sets raised the error: something is wrong with their files.
fn raised_in_torchvision(exception: &Exception) -> bool {
    exception.r#type == "RuntimeError"
        && traceback::raising_file(&exception.traceback)
            .is_some_and(|file| file.contains(stand_ins::STANDARD))
}

/// The hub's message about a name that no repository can have.
const NO_REPOSITORY: &str = "Repo id must be in the form";

/// Path of a folder that a library took for a repository's name, as there is no such folder.
fn no_folder(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once(NO_REPOSITORY)?;
    // `… 'repo_name' or 'namespace/repo_name': '/data/model'. Use …`
    let (path, _) = rest.split_once(": '")?.1.split_once('\'')?;
    path.starts_with(['/', '.', '~']).then_some(path)
}

/// Returns `true` for an absolute path of a folder that exists, which is then not what is missing.
fn is_folder(path: &str) -> bool {
    path.starts_with('/') && std::path::Path::new(path).is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kind: &str, message: &str, frames: &[(&str, &str)]) -> Option<String> {
        let frames = frames.iter().map(|(file, source)| ((*file).into(), "load", *source));
        hint(Given::default(), &traceback::raised(kind, message, frames))
    }

    const MISSING: &str = "[Errno 2] No such file or directory: ";
    #[test]
    fn a_file_beside_the_script_is_found() {
        let folder = std::env::temp_dir().join(format!("memfit-absent-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("data")).unwrap();
        std::fs::write(folder.join("data/a.txt"), "").unwrap();
        let frames =
            [("/elsewhere/main.py", "main()"), (&*format!("{}/t.py", folder.display()), "open(path)")];
        let hint = found("FileNotFoundError", &format!("{MISSING}'data/a.txt'"), &frames).unwrap();
        assert!(hint.contains(&format!("`{}`", folder.display())), "{hint}");
        assert_eq!(found("FileNotFoundError", &format!("{MISSING}'data/b.txt'"), &frames), None);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_that_was_taken_for_a_name_on_the_hub_is_told() {
        let told = |name: &str| {
            let said = format!(
                "Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{name}'. Use `repo_type` argument if needed."
            );
            found("OSError", &said, &[("/me/train.py", "from_pretrained(path)")])
        };
        assert!(told("/data2/Qwen/7B").unwrap().starts_with("there is no folder `/data2/Qwen/7B` here"));
        assert_eq!(told("a/b/c"), None);
    }

    #[test]
    fn a_data_set_that_found_no_files_is_told() {
        let exception = Exception {
            r#type: "ValueError".to_owned(),
            message: "num_samples should be a positive integer value, but got num_samples=0".to_owned(),
            traceback: String::new(),
        };
        let told = |data_set| hint(Given { data_set, ..Given::default() }, &exception);
        let own = told(Some("Pairs")).unwrap();
        assert!(own.starts_with("the data set found no files") && own.contains("`Pairs`"), "{own}");
        assert_eq!(told(None), None);
    }

    #[test]
    fn weights_that_the_script_looks_for_itself_can_be_an_empty_file() {
        let told = |kind: &str, said: &str, file: &str| found(kind, said, &[(file, "raise error")]);
        for (kind, said) in [
            ("FileNotFoundError", "Classifier not found: checkpoints/a.pt"),
            ("FileNotFoundError", "Checkpoint 'checkpoints/a.pt' is needed."),
            ("AssertionError", "(checkpoints/a.pt) does not exist"),
            ("RuntimeError", "no checkpoint found at 'checkpoints/a.pt'!"),
        ] {
            let hint = told(kind, said, "/me/train.py").unwrap();
            assert!(
                hint.contains("`touch checkpoints/a.pt`") && hint.contains("--synthetic-weights"),
                "{hint}"
            );
        }
        assert_eq!(told("RuntimeError", "a.pt has another shape", "/me/train.py"), None);
        assert_eq!(told("FileNotFoundError", "not found: data/a.csv", "/me/train.py"), None);
        let library = "/v/lib/python3.11/site-packages/tools/load.py";
        assert_eq!(told("FileNotFoundError", "not found: a.pt", library), None);
    }

    #[test]
    fn a_part_of_a_data_set_is_enough() {
        let told = |kind: &str, path: &str| {
            hint_at_file(&Exception {
                r#type: kind.to_owned(),
                message: format!("{MISSING}'{path}' (in DataLoader worker process 0)"),
                traceback: String::new(),
            })
        };
        assert!(told("FileNotFoundError", "VOC2007/train.txt").unwrap().starts_with("put the file there"));
        assert_eq!(told("FileNotFoundError", "nvcc"), None, "a program");
        assert_eq!(told("OSError", "VOC2007/train.txt"), None);
    }

    #[test]
    fn a_file_of_the_project_with_the_name_of_a_missing_one_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(scratch.path().join("data")).unwrap();
        std::fs::write(scratch.path().join("README.md"), "").unwrap();
        std::fs::write(scratch.path().join("data/labels.txt"), "").unwrap();
        let told = |path: &str| {
            hint_at_file(&Exception {
                r#type: "FileNotFoundError".to_owned(),
                message: format!("{MISSING}'{path}'"),
                traceback: format!(
                    "  File \"{}/data/coco.py\", line 7, in load\n    open(path)\n",
                    scratch.path().display()
                ),
            })
            .unwrap()
        };
        let own = scratch.path().join("data/labels.txt");
        assert!(told("/root/data/labels.txt").contains(&format!("`{}`", own.display())));
        assert!(told("/root/data/names.txt").starts_with("put the file there"));
    }

    #[test]
    fn an_image_that_opencv_did_not_read_is_told() {
        let told = |message: &str| {
            hint_at_file(&Exception {
                r#type: "cv2.error".to_owned(),
                message: message.to_owned(),
                traceback: String::new(),
            })
        };
        let said = "OpenCV(5.0.0) color.cpp:199: error: (-215:Assertion failed) !_src.empty() in function 'cvtColor'";
        assert!(told(said).unwrap().contains("`cv2.imread`"));
        assert_eq!(told("OpenCV(5.0.0) resize.cpp:4: error: (-215:Assertion failed) inv_scale_x > 0"), None);
    }

    #[test]
    fn a_path_that_an_assertion_looks_for_is_told() {
        let told = |source: &str| {
            hint_at_file(&Exception {
                r#type: "AssertionError".to_owned(),
                message: String::new(),
                traceback: format!("  File \"/me/data.py\", line 7, in load\n    {source}\nAssertionError\n"),
            })
        };
        assert!(told("assert os.path.exists(path)").unwrap().starts_with("put the file or folder"));
        assert_eq!(told("assert len(found) == 3"), None);
    }

    #[test]
    fn a_missing_folder_to_write_into_is_named() {
        let error = format!("{MISSING}'./logs/run1'");
        let told = |source| found("FileNotFoundError", &error, &[("/me/train.py", source)]);
        assert!(told("os.mkdir(path)").unwrap().contains("`mkdir -p ./logs`"));
        assert!(told("log = open(path, 'w')").unwrap().contains("`mkdir -p ./logs`"));
        assert_eq!(told("open(path)"), None);
        let bare = format!("{MISSING}'log.txt'");
        assert_eq!(found("FileNotFoundError", &bare, &[("/me/train.py", "open(path, 'w')")]), None);
    }
}
