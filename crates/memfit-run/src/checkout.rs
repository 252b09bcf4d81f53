//! A commit checked out in a temporary git working tree, separate from the user's own.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A commit could not be checked out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckoutError {
    /// Git is not installed.
    #[error("git could not be started")]
    NoGit(#[source] std::io::Error),
    /// The folder belongs to no repository.
    #[error("`{}` is not in a git repository", folder.display())]
    NoRepository {
        /// The folder.
        folder: PathBuf,
    },
    /// The repository has no such commit.
    #[error("the repository has no commit `{reference}`")]
    NoCommit {
        /// Name, as given.
        reference: String,
        /// `true` if the clone has only a part of the history.
        shallow: bool,
    },
    /// Git refused.
    #[error("git could not check out `{reference}`: {said}")]
    Refused {
        /// Name, as given.
        reference: String,
        /// Last output.
        said: String,
    },
    /// A file that the settings link does not exist.
    #[error("cannot link `{}` into the checkout", path.display())]
    Link {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The temporary folder could not be created.
    #[error("there is no folder for temporary files")]
    Temporary(#[source] std::io::Error),
}

impl CheckoutError {
    /// Advice for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoGit(_) => Some("install git".to_owned()),
            Self::NoRepository { .. } => {
                Some("without `--base`, the committed baselines are compared; they need no git".to_owned())
            }
            Self::NoCommit { reference, shallow: true } => Some(format!(
                "the clone is shallow: `git fetch --depth 1 origin {reference}` fetches the commit, whose name is then FETCH_HEAD; with \
                 actions/checkout, `fetch-depth: 0` fetches all commits"
            )),
            Self::NoCommit { .. } => Some(
                "`git fetch` downloads the commits of a remote, with names such as `origin/main`".to_owned(),
            ),
            Self::Link { .. } => Some(
                "`link` lists files and folders, relative to pyproject.toml, that git does not have"
                    .to_owned(),
            ),
            Self::Refused { .. } | Self::Temporary(_) => None,
        }
    }
}

/// A commit in its own folder; removed when dropped.
#[derive(Debug)]
pub struct Checkout {
    top: PathBuf,
    tree: PathBuf,
    /// Folder of the settings' file in the checkout.
    folder: PathBuf,
    commit: String,
    temporary: Option<TempDir>,
}

impl Checkout {
    /// Checks out `reference` of the repository that `folder` is in. Files in `link`, relative to `folder`,
    /// that the commit lacks are linked to the user's.
    pub fn new(folder: &Path, reference: &str, link: &[PathBuf]) -> Result<Self, CheckoutError> {
        let top = repository(folder)?;
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let commit = commit(&top, reference)?;
        let temporary =
            tempfile::Builder::new().prefix("memfit-base-").tempdir().map_err(CheckoutError::Temporary)?;
        let root = temporary.path().canonicalize().map_err(CheckoutError::Temporary)?;
        let inside = folder.strip_prefix(&top).unwrap_or(Path::new(""));
        // From here on, dropping removes whatever git has created.
        let checkout = Self {
            tree: root.join("base"),
            folder: root.join("base").join(inside),
            top,
            commit,
            temporary: Some(temporary),
        };
        let tree = checkout.tree.as_os_str();
        let add = ["worktree", "add", "--quiet", "--detach", "--force"].map(OsStr::new);
        let words = add.into_iter().chain([tree, OsStr::new(&checkout.commit)]);
        if let Err(said) = git(&checkout.top, words)? {
            return Err(CheckoutError::Refused { reference: reference.to_owned(), said });
        }
        for path in link {
            checkout.link(&folder, path)?;
        }
        Ok(checkout)
    }

    /// Links a file or folder of the user, unless the commit contains it.
    fn link(&self, folder: &Path, path: &Path) -> Result<(), CheckoutError> {
        let wrong = |source| CheckoutError::Link { path: path.to_owned(), source };
        let own = folder.join(path).canonicalize().map_err(wrong)?;
        let here = self.folder.join(path);
        if here.symlink_metadata().is_ok() {
            return Ok(());
        }
        if let Some(parent) = here.parent() {
            std::fs::create_dir_all(parent).map_err(wrong)?;
        }
        std::os::unix::fs::symlink(own, here).map_err(wrong)
    }

    /// Root of the user's working tree.
    pub fn repository(&self) -> &Path {
        &self.top
    }

    /// Root of the checkout.
    pub fn root(&self) -> &Path {
        &self.tree
    }

    /// The folder in the checkout that corresponds to the folder passed to [`Checkout::new`].
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The commit's hash.
    pub fn commit(&self) -> &str {
        &self.commit
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        let remove = ["worktree", "remove", "--force", "--force"].map(OsStr::new);
        let _removed = git(&self.top, remove.into_iter().chain([self.tree.as_os_str()]));
        drop(self.temporary.take());
        // An interrupted checkout leaves a registered working tree whose folder is missing.
        let _pruned = git(&self.top, ["worktree", "prune"].map(OsStr::new));
    }
}

/// Root of the repository that a folder is in.
pub fn repository(folder: &Path) -> Result<PathBuf, CheckoutError> {
    let found = git(folder, ["rev-parse", "--show-toplevel"].map(OsStr::new))?;
    let top = found.map_err(|_| CheckoutError::NoRepository { folder: folder.to_owned() })?;
    Ok(PathBuf::from(&top).canonicalize().unwrap_or_else(|_| top.into()))
}

fn commit(top: &Path, reference: &str) -> Result<String, CheckoutError> {
    let named = format!("{reference}^{{commit}}");
    let words = ["rev-parse", "--verify", "--quiet", "--end-of-options", &named].map(OsStr::new);
    if let Ok(commit) = git(top, words)? {
        return Ok(commit);
    }
    let shallow = git(top, ["rev-parse", "--is-shallow-repository"].map(OsStr::new))?;
    Err(CheckoutError::NoCommit {
        reference: reference.to_owned(),
        shallow: shallow.is_ok_and(|said| said == "true"),
    })
}

/// Runs git in a folder and returns its output; its error text is the error. The command ignores the
/// terminal's Ctrl-C, so that no checkout is left half done, and runs none of the user's hooks.
fn git<'word>(
    folder: &Path,
    words: impl IntoIterator<Item = &'word OsStr>,
) -> Result<Result<String, String>, CheckoutError> {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder).args(["-c", "core.hooksPath=/dev/null"]).args(words);
    // Inside a git hook, these variables would name another repository.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).process_group(0);
    let done = command.output().map_err(CheckoutError::NoGit)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    Ok(if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(folder: &Path, words: &[&str]) -> String {
        git(folder, words.iter().map(OsStr::new)).unwrap().unwrap()
    }

    /// A repository with two commits; the second has changes in the tree and in the index.
    fn sample() -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        run(&root, &["init", "--quiet"]);
        for text in ["one", "two"] {
            std::fs::create_dir_all(root.join("sub")).unwrap();
            std::fs::write(root.join("sub/a.txt"), text).unwrap();
            run(&root, &["add", "."]);
            let person = ["-c", "user.name=a", "-c", "user.email=a@b"];
            run(&root, &[&person[..], &["commit", "--quiet", "-m", text]].concat());
        }
        std::fs::write(root.join("sub/a.txt"), "three").unwrap();
        std::fs::write(root.join("sub/data.bin"), "data").unwrap();
        (folder, root)
    }

    #[test]
    fn a_commit_is_checked_out_beside_the_tree_and_removed() {
        let (_folder, root) = sample();
        let before = (run(&root, &["status", "--porcelain"]), run(&root, &["worktree", "list"]));
        let checkout = Checkout::new(&root.join("sub"), "HEAD~1", &["data.bin".into()]).unwrap();
        assert_eq!(std::fs::read_to_string(checkout.folder().join("a.txt")).unwrap(), "one");
        assert_eq!(std::fs::read_to_string(checkout.folder().join("data.bin")).unwrap(), "data");
        assert_eq!(checkout.commit(), run(&root, &["rev-parse", "HEAD~1"]));
        assert_eq!((checkout.repository(), checkout.folder()), (&*root, &*checkout.root().join("sub")));
        let path = checkout.root().to_owned();
        drop(checkout);
        assert!(!path.parent().unwrap().exists(), "the checkout is left");
        let after = (run(&root, &["status", "--porcelain"]), run(&root, &["worktree", "list"]));
        assert_eq!(before, after);
        assert_eq!(
            std::fs::read_to_string(root.join("sub/data.bin")).unwrap(),
            "data",
            "the user's file is gone"
        );
    }

    #[test]
    fn a_file_of_the_commit_is_not_replaced_by_a_link() {
        let (_folder, root) = sample();
        let checkout = Checkout::new(&root.join("sub"), "HEAD", &["a.txt".into()]).unwrap();
        assert_eq!(std::fs::read_to_string(checkout.folder().join("a.txt")).unwrap(), "two");
    }

    #[test]
    fn failed_checkout_is_reported_and_leaves_no_files() {
        let (_folder, root) = sample();
        let worktrees = run(&root, &["worktree", "list"]);
        let wrong = |folder: &Path, reference: &str, link: &[PathBuf]| {
            Checkout::new(folder, reference, link).map(|_| ()).unwrap_err()
        };
        assert!(matches!(wrong(&root, "nowhere", &[]), CheckoutError::NoCommit { shallow: false, .. }));
        assert!(matches!(wrong(&root, "--help", &[]), CheckoutError::NoCommit { .. }));
        assert!(matches!(wrong(&root, "HEAD", &["none".into()]), CheckoutError::Link { .. }));
        assert_eq!(run(&root, &["worktree", "list"]), worktrees);
        let clone = tempfile::tempdir().unwrap();
        let source = format!("file://{}", root.display());
        run(clone.path(), &["clone", "--quiet", "--depth", "1", &source, "c"]);
        assert!(matches!(
            wrong(&clone.path().join("c"), "HEAD~1", &[]),
            CheckoutError::NoCommit { shallow: true, .. }
        ));
        let bare = tempfile::tempdir().unwrap();
        assert!(matches!(wrong(bare.path(), "HEAD", &[]), CheckoutError::NoRepository { .. }));
    }
}
