//! The PyTorch releases that a project's requirements allow.
//!
//! A replacement that came with a later release is no advice for a project that is pinned to an earlier one.

use std::cell::LazyCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Maximum bytes of a requirement file that are read.
const MAX_FILE_BYTES: u64 = 256 << 10;
/// Maximum entries of a folder that are looked at.
const MAX_ENTRIES: usize = 4096;

/// Maximum bytes of an item in a guide's list of requirements.
const MAX_ITEM_BYTES: usize = 120;

/// A release: its first two numbers.
type Release = (u32, u32);

/// The PyTorch releases that a project supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllowedTorch {
    /// The oldest environment that the project states has a release below this one; `None` if there is no
    /// such limit.
    below: Option<Release>,
}

/// The same, read on demand.
pub(crate) type LazyTorch<'a> = LazyCell<AllowedTorch, &'a dyn Fn() -> AllowedTorch>;

impl AllowedTorch {
    /// Returns `true` if all environments of the project may have this release or a later one.
    pub(crate) fn reaches(self, release: Release) -> bool {
        self.below.is_none_or(|below| release < below)
    }

    /// The limit that the requirement files of a folder state; `None` if none of them names PyTorch.
    fn of_folder(folder: &Path) -> Option<Self> {
        let entries = std::fs::read_dir(folder).ok()?;
        let files: Vec<PathBuf> = entries.take(MAX_ENTRIES).flatten().map(|entry| entry.path()).collect();
        let named = |is_it: fn(&str) -> bool| {
            files
                .iter()
                .filter(move |path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_it))
        };
        let images = named(builds_an_image).filter_map(|path| Self::of_image(&read(path)?));
        let stated = named(states_requirements).filter_map(|path| Self::of_text(&read(path)?));
        let stated = stated.chain(images);
        let stated = stated.reduce(Self::oldest);
        if stated.is_some_and(|stated| stated.below.is_some()) {
            return stated;
        }
        let commands = named(tells_how_to_install).filter_map(|path| Self::of_guide(&read(path)?));
        let scripts = named(installs).filter_map(|path| Self::of_commands(&read(path)?));
        commands.chain(scripts).reduce(Self::oldest).or(stated)
    }

    /// The limit in the text of a requirement file; `None` if it does not name PyTorch.
    fn of_text(text: &str) -> Option<Self> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        lines.flat_map(requirements).reduce(Self::oldest)
    }

    /// The limit of the images that a Dockerfile builds on; `None` if none has PyTorch.
    fn of_image(text: &str) -> Option<Self> {
        let images = text.lines().filter_map(|line| line.trim().strip_prefix("FROM "));
        images.filter_map(release_of_image).map(|below| Self { below: Some(below) }).reduce(Self::oldest)
    }

    /// The limit in the `pip install` and `conda install` commands of a guide, or else the release that it
    /// names; `None` if it has neither.
    fn of_guide(text: &str) -> Option<Self> {
        Self::of_commands(text).or_else(|| {
            let named = text.lines().filter_map(named_release);
            named.map(|(major, minor)| Self { below: Some((major, minor + 1)) }).reduce(Self::oldest)
        })
    }

    /// The limit in the `pip install` and `conda install` commands of a guide or a script.
    fn of_commands(text: &str) -> Option<Self> {
        let lines = text.lines().map(|line| line.split(" #").next().unwrap_or_default());
        let commands = lines
            .filter(|line| !line.trim_start().starts_with("# "))
            .filter(|line| line.contains("pip install") || line.contains("conda install"));
        commands.flat_map(requirements).filter(|stated| stated.below.is_some()).reduce(Self::oldest)
    }

    /// Of several statements, such as one for each platform, the one with the oldest release counts.
    fn oldest(self, other: Self) -> Self {
        Self { below: self.below.into_iter().chain(other.below).min() }
    }
}

/// The limits of a project's folders, read once each.
#[derive(Debug, Default)]
pub(crate) struct Requirements {
    folders: HashMap<PathBuf, AllowedTorch>,
}

impl Requirements {
    /// The limit for a folder: that of the nearest folder from it up to `root` which states one.
    pub(crate) fn of_folder(&mut self, folder: &Path, root: &Path) -> AllowedTorch {
        if let Some(known) = self.folders.get(folder) {
            return *known;
        }
        // Outside of any project, the root is empty.
        let is_below = folder != root && !root.as_os_str().is_empty() && folder.starts_with(root);
        let above = || folder.parent().filter(|_| is_below);
        let found = match (AllowedTorch::of_folder(folder), above()) {
            (Some(own), _) => own,
            (None, Some(parent)) => self.of_folder(parent, root),
            (None, None) => AllowedTorch::default(),
        };
        self.folders.insert(folder.to_owned(), found);
        found
    }
}

/// Returns `true` for files that state requirements: pip's, conda's, and those of a package.
fn states_requirements(name: &str) -> bool {
    let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
    match extension {
        "txt" => stem.contains("requirements"),
        "yml" | "yaml" => ["requirements", "environment", "conda"].iter().any(|word| stem.contains(word)),
        _ => ["setup.py", "setup.cfg", "pyproject.toml"].contains(&name),
    }
}

/// Returns `true` for the recipe of an image.
fn builds_an_image(name: &str) -> bool {
    name.starts_with("Dockerfile") || name.ends_with(".dockerfile") || name == "Containerfile"
}

/// The first release beyond that of an image such as `pytorch/pytorch:1.8.1-cuda11.1` or NVIDIA's
/// `nvcr.io/nvidia/pytorch:20.12-py3`, whose tag is a month.
fn release_of_image(image: &str) -> Option<Release> {
    let (name, tag) = image.split_once(':')?;
    let mut numbers = tag.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    let (first, second) = (numbers.next()?, numbers.next()?);
    if name == "pytorch/pytorch" {
        return Some((first, second + 1));
    }
    if !name.ends_with("nvidia/pytorch") {
        return None;
    }
    // The first month of an image with each release.
    let months = [
        ((21, 3), (1, 9)),
        ((21, 10), (1, 11)),
        ((22, 11), (1, 14)),
        ((23, 10), (2, 2)),
        ((24, 5), (2, 4)),
        ((25, 1), (2, 6)),
    ];
    months.into_iter().find(|(month, _)| (first, second) < *month).map(|(_, release)| release)
}

/// Returns `true` for a project's guide to its installation.
fn tells_how_to_install(name: &str) -> bool {
    let stem = name.strip_suffix(".md").or_else(|| name.strip_suffix(".rst")).unwrap_or_default();
    ["readme", "install", "installation"].contains(&stem.to_ascii_lowercase().as_str())
}

/// Returns `true` for a shell script that installs what a project needs: `install.sh`, `setup_env.sh`.
fn installs(name: &str) -> bool {
    let stem = name.strip_suffix(".sh").unwrap_or_default().to_ascii_lowercase();
    let words = ["install", "env", "environment", "setup", "conda", "requirements"];
    stem.split(['_', '-', '.']).any(|word| words.contains(&word))
}

/// The release in a line such as `- PyTorch 1.8.1` or `Tested with PyTorch version 2.0`. `PyTorch 1.8+`,
/// `PyTorch >= 1.8` and `PyTorch 1.8 or higher` name the oldest one only.
fn named_release(line: &str) -> Option<Release> {
    let lower = line.to_ascii_lowercase();
    // An item of a list of requirements, or a step of an installation. What was tested is no requirement.
    let item = lower.trim_start_matches(|c: char| !c.is_alphabetic());
    let starts = ["pytorch", "torch", "python", "install", "require", "dependenc", "prerequisite"];
    if line.len() > MAX_ITEM_BYTES
        || !starts.iter().any(|word| item.starts_with(word))
        || lower.contains("tested")
    {
        return None;
    }
    lower.match_indices("torch").find_map(|(at, name)| {
        let before = lower[..at].strip_suffix("py").unwrap_or(&lower[..at]);
        let is_part = |c: char| c.is_alphanumeric() || "-_./".contains(c);
        let rest = &lower[at + name.len()..];
        if before.ends_with(is_part) || rest.starts_with(|c: char| c.is_alphanumeric() || "-_./".contains(c))
        {
            return None;
        }
        let rest = rest.trim_start_matches([' ', '(', '[', ':', '`', '*', '|', '"']);
        // `PyTorch install 1.7.1`
        let between = ["version", "release", "installation", "install"];
        let rest = between.iter().find_map(|word| rest.strip_prefix(word)).unwrap_or(rest);
        let rest = rest.trim_start_matches([' ', '(', '[', ':', '`', '*', '|', '=']);
        let rest = rest.strip_prefix('v').unwrap_or(rest);
        let length = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let (version, after) = rest.split_at(length);
        let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
        let release = (numbers.next()?, numbers.next()?);
        let later = ["higher", "later", "newer", "above", "greater", "upward", "onward", "up"];
        let open = after.starts_with(['+', '~', '-', '<', '>'])
            || after.split(|c: char| !c.is_alphabetic()).take(5).any(|word| later.contains(&word));
        // Releases of PyTorch so far; other numbers are of something else.
        (!open && release.0 <= 2).then_some(release)
    })
}

fn read(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The limits that a line states for PyTorch.
fn requirements(line: &str) -> Vec<AllowedTorch> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices("torch") {
        let (before, after) = (&line[..at], &line[at + "torch".len()..]);
        let conda = before.ends_with("py");
        let before = if conda { &before[..before.len() - 2] } else { before };
        let part_of_a_name = |c: char| c.is_alphanumeric() || "-_./".contains(c);
        if before.ends_with(part_of_a_name) || after.starts_with(|c: char| part_of_a_name(c) || c == ':') {
            continue;
        }
        let stated = after.split(['"', '\'', ';', ')']).next().unwrap_or_default().trim();
        let stated = stated.trim_start_matches('(');
        // Without a release, `pytorch` is a channel of conda's.
        if conda && stated.is_empty() {
            continue;
        }
        found.push(AllowedTorch { below: stated.split(',').filter_map(limit).min() });
    }
    found
}

/// The first release beyond a constraint such as `==1.8.1`, `<=1.13`, `<2`, `~=1.8.0` or conda's
/// `=1.8=py3_cuda`.
fn limit(constraint: &str) -> Option<Release> {
    let constraint = constraint.trim();
    let number = constraint.find(|c: char| c.is_ascii_digit())?;
    let (operator, version) = constraint.split_at(number);
    let version = version.split(|c: char| !(c.is_ascii_digit() || c == '.')).next().unwrap_or_default();
    let numbers: Vec<u32> = version.split('.').map_while(|number| number.parse().ok()).collect();
    let (major, minor) = (*numbers.first()?, numbers.get(1).copied());
    match operator.trim() {
        "==" | "=" | "===" | "<=" => Some(minor.map_or((major + 1, 0), |minor| (major, minor + 1))),
        "~=" if numbers.len() > 2 => Some((major, minor.unwrap_or_default() + 1)),
        "~=" => Some((major + 1, 0)),
        "<" => Some((major, minor.unwrap_or_default())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_pip_and_conda_mean_them() {
        for (text, expected) in [
            ("torch==1.8.1", Some(Some((1, 9)))),
            ("numpy\ntorch == 2.0.1 # the one that we tried\n", Some(Some((2, 1)))),
            ("torch<=1.13", Some(Some((1, 14)))),
            ("torch>=1.7,<2.0", Some(Some((2, 0)))),
            ("torch<2", Some(Some((2, 0)))),
            ("torch~=1.8.0", Some(Some((1, 9)))),
            ("torch~=1.8", Some(Some((2, 0)))),
            ("torch==1.*", Some(Some((2, 0)))),
            ("torch==1.8.1+cu111; sys_platform != 'darwin'", Some(Some((1, 9)))),
            ("install_requires=['numpy', 'torch==1.9', 'tqdm']", Some(Some((1, 10)))),
            ("dependencies = [\"torch (>=1.9,<2.3)\"]", Some(Some((2, 3)))),
            ("  - pytorch=1.8.1=py3.8_cuda11.1_cudnn8.0.5_0", Some(Some((1, 9)))),
            ("channels:\n  - pytorch\ndependencies:\n  - pytorch=1.8", Some(Some((1, 9)))),
            ("torch>=2.0", Some(None)),
            ("torch", Some(None)),
            // Another line for another platform.
            ("torch==1.8.1\ntorch==2.1.0", Some(Some((1, 9)))),
            ("torch>=2.0\ntorch==2.2.1", Some(Some((2, 3)))),
            ("torch==1.8.1\ntorch", Some(Some((1, 9)))),
            ("torchvision==0.9.1\npytorch-lightning==1.2\ntorch-geometric==1.7", None),
            ("channels:\n  - pytorch", None),
            ("import torch.nn as nn", None),
            ("", None),
        ] {
            let found = AllowedTorch::of_text(text).map(|allowed| allowed.below);
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn the_nearest_folder_counts_and_none_above_the_root() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for folder in ["project/old/src", "project/new"] {
            std::fs::create_dir_all(path(folder)).unwrap();
        }
        std::fs::write(path("requirements.txt"), "torch==1.5").unwrap();
        std::fs::write(path("project/requirements-dev.txt"), "torch==2.4").unwrap();
        std::fs::write(path("project/old/conda_env.yml"), "  - pytorch=1.8.1").unwrap();
        let mut requirements = Requirements::default();
        let mut reaches =
            |folder: &str, release| requirements.of_folder(&path(folder), &path("project")).reaches(release);
        assert!(!reaches("project/old/src", (1, 11)));
        assert!(reaches("project/old/src", (1, 8)));
        assert!(reaches("project/new", (2, 4)));
        assert!(!reaches("project/new", (2, 5)));
        std::fs::create_dir(path("alone")).unwrap();
        assert!(Requirements::default().of_folder(&path("alone"), Path::new("")).reaches((9, 0)));
    }

    #[test]
    fn the_oldest_environment_counts_and_a_guide_only_without_one() {
        let root = tempfile::tempdir().unwrap();
        let of_folder = || AllowedTorch::of_folder(root.path()).map(|allowed| allowed.below);
        let write = |name: &str, text: &str| std::fs::write(root.path().join(name), text).unwrap();
        write("README.md", "Requirements: Python 3.8, PyTorch 1.4.0 and torchvision 0.5");
        assert_eq!(of_folder(), Some(Some((1, 5))));
        write("README.md", "* PyTorch install 1.7.1\n* torchvision");
        assert_eq!(of_folder(), Some(Some((1, 8))));
        write("README.md", "1. Install [PyTorch 2.0](https://pytorch.org/get-started/locally/)");
        assert_eq!(of_folder(), Some(Some((2, 1))));
        write("README.md", "Tested on PyTorch version 1.13.1.\nBy default, this uses PyTorch 2.0.");
        assert_eq!(of_folder(), None);
        write("README.md", "PyTorch 1.4+, PyTorch 1.4 or higher, pytorch-lightning 1.2, PyTorch >= 1.2");
        assert_eq!(of_folder(), None);
        write("INSTALL.md", "PyTorch>=1.7\n\n    pip install torch==1.8.0+cu111 torchvision==0.9.0+cu111\n");
        assert_eq!(of_folder(), Some(Some((1, 9))));
        write("setup.cfg", "install_requires =\n    torch >= 2.0.0\n");
        assert_eq!(of_folder(), Some(Some((1, 9))));
        // A script of the project that installs.
        write(
            "make_env.sh",
            "conda create -n x\n# conda install pytorch=1.1\nconda install -y pytorch=1.7.1 cudatoolkit=10.2\n",
        );
        assert_eq!(of_folder(), Some(Some((1, 8))));
        write("make_env.sh", "pip install -r requirements.txt");
        write("train.sh", "pip install torch==1.2");
        assert_eq!(of_folder(), Some(Some((1, 9))));
        write("environment.yml", "  - pip:\n    - torch==2.2.1\n");
        assert_eq!(of_folder(), Some(Some((2, 3))));
        write("INSTALL.md", "pip install torch torchvision==0.9.0");
        std::fs::remove_file(root.path().join("environment.yml")).unwrap();
        assert_eq!(of_folder(), Some(None));
    }

    #[test]
    fn images_have_a_release_of_their_own() {
        for (text, expected) in [
            ("FROM nvcr.io/nvidia/pytorch:20.12-py3\nRUN pip install x", Some(Some((1, 9)))),
            ("FROM nvcr.io/nvidia/pytorch:24.07-py3", Some(Some((2, 6)))),
            ("FROM nvcr.io/nvidia/pytorch:25.06-py3", None),
            ("FROM pytorch/pytorch:1.8.1-cuda11.1-cudnn8-runtime", Some(Some((1, 9)))),
            ("FROM pytorch/pytorch:latest", None),
            ("FROM ubuntu:20.04", None),
        ] {
            assert_eq!(AllowedTorch::of_image(text).map(|allowed| allowed.below), expected, "{text}");
        }
    }

    #[test]
    fn no_text_is_too_strange() {
        for text in
            ["torch==", "torch==9999999999999.1", "torch==1.8.", "torch(((", "torch\u{e9}==1", "é torch <"]
        {
            let _read = AllowedTorch::of_text(text);
        }
    }
}
