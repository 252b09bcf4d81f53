//! Remedies for files that are not on this machine: trained weights, data sets, folders to write into.

use memfit_report::wire::Exception;

use crate::downloads::Given;
use crate::traceback;

/// Parts of the paths of libraries' modules that read weights from a file.
const WEIGHTS: &[&str] = &["/torch/serialization.py", "/torch/jit/_serialization.py", "/safetensors/"];
/// Part of the paths of torchvision's data sets.
const STANDARD_DATA: &str = "/torchvision/datasets/";
/// Part of the path of the loader's module that calls a data set.
const FETCH: &str = "/torch/utils/data/_utils/fetch.py";
/// torchvision's words about a data set without files.
const NO_DATA_SET: &str = "Dataset not found";
/// Words in a line of source that creates a folder or a file.
const CREATES: &[&str] = &["mkdir(", "'w'", "\"w\"", "'wb'", "\"wb\"", "'a'", "\"a\""];

/// Remedy for a file that is not there.
pub(crate) fn hint(given: Given, exception: &Exception) -> Option<String> {
    let Given { data, weights, .. } = given;
    let is_file = exception.r#type == "FileNotFoundError";
    let raised_in = traceback::raising_file(&exception.traceback).unwrap_or_default();
    if is_file && !weights && WEIGHTS.iter().any(|part| raised_in.contains(part)) {
        return Some(
            "put the file there; or, if it holds weights alone, `--synthetic-weights`, which takes it for whatever it is loaded into"
                .to_owned(),
        );
    }
    let standard = exception.traceback.contains(STANDARD_DATA);
    if !data && standard && (is_file || exception.message.contains(NO_DATA_SET)) {
        return Some(
            "put the data set there; or `--synthetic-data`, which makes up samples for torchvision's data sets"
                .to_owned(),
        );
    }
    if is_file && !data && exception.traceback.contains(FETCH) {
        return Some(
            "put the files there; or state what a sample has, and memfit makes samples up: `--synthetic-data=image:3x224x224:float32,label:int64<1000`"
                .to_owned(),
        );
    }
    let path =
        exception.message.strip_prefix("[Errno 2] No such file or directory: '")?.strip_suffix('\'')?;
    if let Some(folder) = traceback::user_folders(&exception.traceback).find(|each| each.join(path).exists())
        && !path.starts_with('/')
    {
        return Some(format!("the file is there for a script that runs in `{}`", folder.display()));
    }
    let (_, source) = traceback::raising_source(&exception.traceback)?;
    let (folder, _) = path.trim_end_matches('/').rsplit_once('/').filter(|(folder, _)| !folder.is_empty())?;
    let creates = is_file && CREATES.iter().any(|part| source.contains(part));
    (creates && !is_folder(folder)).then(|| {
        format!(
            "the script writes into a folder that is not there: `mkdir -p {folder}` in its working folder"
        )
    })
}

/// An absolute path that is a folder is not what is missing.
fn is_folder(path: &str) -> bool {
    path.starts_with('/') && std::path::Path::new(path).is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kind: &str, message: &str, frames: &[(&str, &str)]) -> Option<String> {
        let frames: Vec<_> = frames
            .iter()
            .map(|(file, source)| format!("  File \"{file}\", line 7, in load\n    {source}\n"))
            .collect();
        let exception = Exception {
            r#type: kind.to_owned(),
            message: message.to_owned(),
            traceback: format!("Traceback (most recent call last):\n{}{kind}: {message}\n", frames.concat()),
        };
        hint(Given::default(), &exception)
    }

    const MISSING: &str = "[Errno 2] No such file or directory: ";
    const SERIALIZATION: (&str, &str) =
        ("/v/site-packages/torch/serialization.py", "super().__init__(open(name, mode))");

    #[test]
    fn a_missing_file_of_weights_may_be_made_up() {
        let error = || format!("{MISSING}'models/vgg.pth'");
        let frames = [("/me/train.py", "net.load_state_dict(torch.load(path))"), SERIALIZATION];
        assert!(found("FileNotFoundError", &error(), &frames).unwrap().contains("`--synthetic-weights`"));
        assert_eq!(found("FileNotFoundError", &error(), &frames[..1]), None, "the script opens it itself");
        let exception = Exception {
            r#type: "FileNotFoundError".to_owned(),
            message: error(),
            traceback: format!("  File \"{}\", line 7, in load\n    {}\n", SERIALIZATION.0, SERIALIZATION.1),
        };
        assert_eq!(
            hint(Given { weights: true, ..Given::default() }, &exception),
            None,
            "the option was given"
        );
    }

    #[test]
    fn a_missing_data_set_may_be_made_up() {
        let frames = [("/me/train.py", "CIFAR10(folder)"), ("/v/torchvision/datasets/cifar.py", "raise")];
        let message = "Dataset not found or corrupted. You can use download=True to download it";
        assert!(found("RuntimeError", message, &frames).unwrap().contains("`--synthetic-data`"));
        assert_eq!(found("RuntimeError", "sizes differ", &frames), None);
        let frames = [(FETCH, "self.dataset[index]"), ("/me/train.py", "Image.open(path)")];
        let error = format!("{MISSING}'/data/1.jpg'");
        assert!(found("FileNotFoundError", &error, &frames).unwrap().contains("`--synthetic-data=image:"));
    }

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
