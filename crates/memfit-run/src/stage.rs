//! The run directory with everything that the processes of a run need, and the environment variables that
//! point to it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use memfit_channel::env::RUN_DIR;
use memfit_channel::{CardSetup, HostRun, OtherValues, RunDir, Setup, ValuePolicy};
use memfit_devices::{Bytes, Overhead};
use tempfile::TempDir;

use crate::libraries::Library;
use crate::preflight::Torch;
use crate::request::LoneRank;
use crate::{Card, Home, Request, RunError, error, leftovers, programs};

/// CUDA major version assumed if torch could not be inspected. It is the one with the larger overhead, so the
/// assumption is safe.
const UNKNOWN_CUDA: u32 = 12;

/// Maximum number of steps for which stacks are always recorded.
const MAX_STACK_STEPS: u64 = 8;

/// Probe files, by their path in its folder.
const PROBE: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/probe.rs"));

/// A prepared run directory.
#[derive(Debug)]
pub(crate) struct Stage {
    folder: Option<TempDir>,
    run_dir: RunDir,
    setup: Setup,
    overhead: Option<Overhead>,
    local: bool,
    lone_rank: Option<LoneRank>,
    environment: Vec<(&'static str, Option<OsString>)>,
    /// Variables that make the script's training library distribute it.
    library: BTreeMap<String, String>,
}

/// Overrides for a further run of the script; the user's own files are not touched.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Environment variables: a value to set, or `None` to remove the variable.
    pub environment: Vec<(&'static str, Option<OsString>)>,
    /// Source files with their replacement text.
    pub files: BTreeMap<String, String>,
    /// `true` if the stack of each allocation is recorded, even without a requested recording.
    pub stacks: bool,
    /// Values other than the assumed ones.
    pub others: OtherValues,
    /// `true` if random number generators are seeded, so that another such run draws the same numbers.
    pub seeded: bool,
    /// Settings of a run whose tensors stay on the host.
    pub host: Option<HostRun>,
}

impl Changes {
    /// Returns `true` if the run is that of the unchanged script.
    pub(crate) fn is_none(&self) -> bool {
        self.environment.is_empty() && self.files.is_empty() && self.host.is_none()
    }
}

impl Stage {
    /// Creates the run directory.
    pub(crate) fn set_up(
        request: &Request,
        torch: Option<&Torch>,
        values: ValuePolicy,
        changes: &Changes,
        home: &Home,
    ) -> Result<Self, RunError> {
        let folder = folder()?;
        let run_dir = RunDir::new(folder.path());
        let overhead = overhead(request, torch);
        let mut setup = setup(request, overhead.as_ref(), values);
        setup.stacks |= changes.stacks;
        setup.others = changes.others.clone();
        if let Some(sizes) = setup.others.sizes {
            setup.values = sizes;
        }
        setup.seeded = changes.seeded;
        setup.host.clone_from(&changes.host);
        setup.write(&run_dir)?;
        if !changes.files.is_empty() {
            let path = run_dir.edits();
            let text = serde_json::to_vec(&changes.files).map_err(RunError::Json)?;
            std::fs::write(&path, text).map_err(RunError::io("write", path))?;
        }
        if let Some(planned) = &request.planned {
            planned.write(&run_dir)?;
        }
        if !request.card.is_local() {
            make_overlay(&run_dir)?;
        }
        write_probe(&run_dir.probe())?;
        link_libraries(&run_dir.libraries(), request.card.is_local(), home)?;
        if !request.card.is_local() {
            programs::write(&run_dir, home)?;
        }
        Ok(Self {
            folder: Some(folder),
            run_dir,
            setup,
            overhead,
            local: request.card.is_local(),
            lone_rank: request.lone_rank,
            environment: changes.environment.clone(),
            library: request.library().map(|library| library.environment.clone()).unwrap_or_default(),
        })
    }

    /// Run directory.
    pub(crate) fn run_dir(&self) -> &RunDir {
        &self.run_dir
    }

    /// Settings of the processes.
    pub(crate) fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Memory outside the allocator on a virtual device, with its source.
    pub(crate) fn overhead(&self) -> Option<&Overhead> {
        self.overhead.as_ref()
    }

    /// Keeps the run directory.
    pub(crate) fn keep(mut self) -> PathBuf {
        match self.folder.take() {
            Some(folder) => folder.keep(),
            None => self.run_dir.path().to_owned(),
        }
    }

    /// Variables that make the script's training library distribute it.
    pub(crate) fn library_environment(&self) -> &BTreeMap<String, String> {
        &self.library
    }

    /// Changes to the environment, in order: a value to set, or `None` to remove the variable.
    pub(crate) fn environment(&self) -> Vec<(&'static str, Option<OsString>)> {
        let libraries = self.run_dir.libraries();
        let preloaded: Vec<PathBuf> =
            preloads(self.local).iter().map(|library| libraries.join(library.soname())).collect();
        let preload = preloaded.iter().map(|path| path.as_os_str());
        let mut environment = vec![
            (RUN_DIR, Some(self.run_dir.path().as_os_str().to_owned())),
            ("LD_PRELOAD", Some(prepend_to_list("LD_PRELOAD", preload))),
            ("PYTHONPATH", Some(prepend_to_list("PYTHONPATH", [self.run_dir.probe().as_os_str()]))),
        ];
        if !self.local {
            let path = [libraries.as_os_str()];
            environment.push(("LD_LIBRARY_PATH", Some(prepend_to_list("LD_LIBRARY_PATH", path))));
            environment.push(("TRITON_LIBCUDA_PATH", Some(libraries.as_os_str().to_owned())));
            environment.push(("PATH", Some(prepend_to_list("PATH", [self.run_dir.programs().as_os_str()]))));
            // Compilers search this folder for `-lcuda`, which Inductor's ahead-of-time packages link
            // against.
            let folder = [libraries.as_os_str()];
            environment.push(("LIBRARY_PATH", Some(prepend_to_list("LIBRARY_PATH", folder))));
            // The variable's value refers to the real GPUs, not to the virtual ones.
            environment.push(("CUDA_VISIBLE_DEVICES", None));
        }
        if let Some(lone) = self.lone_rank {
            environment
                .extend(lone.environment().into_iter().map(|(name, value)| (name, Some(value.into()))));
        }
        environment.extend(self.environment.iter().cloned());
        environment
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        leftovers::clear(&self.run_dir);
    }
}

/// Creates an empty folder whose path is valid in `LD_PRELOAD`, which is split at spaces and colons and has
/// no quotes.
fn folder() -> Result<TempDir, RunError> {
    let plain = |path: &Path| {
        !path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b'\t' | b'$'))
    };
    let wanted = std::env::temp_dir();
    let parent =
        wanted.canonicalize().ok().filter(|path| plain(path)).unwrap_or_else(|| PathBuf::from("/tmp"));
    tempfile::Builder::new()
        .prefix("memfit-")
        // The script's input and output are private.
        .permissions(std::fs::Permissions::from_mode(0o700))
        .tempdir_in(&parent)
        .map_err(RunError::io(error::TEMPORARY, parent))
}

/// Memory outside the allocator on the requested device; `None` for a real one.
fn overhead(request: &Request, torch: Option<&Torch>) -> Option<Overhead> {
    match &request.card {
        Card::Local(_) => None,
        Card::Virtual(device, _) => {
            Some(device.overhead(torch.and_then(Torch::cuda_major).unwrap_or(UNKNOWN_CUDA)))
        }
    }
}

fn setup(request: &Request, overhead: Option<&Overhead>, values: ValuePolicy) -> Setup {
    let cards = match (&request.card, overhead) {
        (Card::Virtual(device, count), Some(overhead)) => {
            let card = CardSetup {
                device: (**device).clone(),
                overhead: overhead.clone(),
                other_processes: Bytes::new(request.other_processes),
            };
            vec![card; *count as usize]
        }
        _ => Vec::new(),
    };
    Setup {
        steps: request.steps,
        forward_steps: request.forward_steps,
        cover_full: request.cover_full,
        // For a few steps, stacks cost hardly anything, and they show which line to change if memory runs
        // out.
        stacks: request.output.is_some() || (1..=MAX_STACK_STEPS).contains(&request.steps),
        values,
        synthetic: request.synthetic.clone(),
        clock: request.clock,
        host_time: request.host_time,
        measure_loader_ms: request.measure_loader.map_or(0, |each| each.as_millis() as u64),
        beside: request.estimated.clone(),
        ..Setup::new(cards)
    }
}

/// Prepends names to a variable that holds a list.
fn prepend_to_list<'a>(name: &str, paths: impl IntoIterator<Item = &'a OsStr>) -> OsString {
    let mut words: Vec<OsString> = paths.into_iter().map(OsStr::to_owned).collect();
    words.extend(std::env::var_os(name).filter(|value| !value.is_empty()));
    words.join(OsStr::new(":"))
}

fn preloads(local: bool) -> &'static [Library] {
    if local { &[Library::Watch] } else { &[Library::Device, Library::Watch] }
}

/// Creates the empty overlay over the user's files, since results computed by a virtual device are not worth
/// saving.
fn make_overlay(run_dir: &RunDir) -> Result<(), RunError> {
    for folder in [run_dir.overlay(), run_dir.overlay_tree(), run_dir.overlay_made()] {
        std::fs::create_dir(&folder).map_err(RunError::io("make the folder", folder))?;
    }
    Ok(())
}

fn write_probe(folder: &Path) -> Result<(), RunError> {
    for (name, text) in PROBE {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(RunError::io("make the folder", parent))?;
        }
        std::fs::write(&path, text).map_err(RunError::io("write", path))?;
    }
    Ok(())
}

/// Links the libraries under the names that loaders look for.
fn link_libraries(folder: &Path, local: bool, home: &Home) -> Result<(), RunError> {
    std::fs::create_dir(folder).map_err(RunError::io("make the folder", folder))?;
    let link = |library: Library, name: &str| {
        let path = folder.join(name);
        std::os::unix::fs::symlink(library.find(home)?, &path).map_err(RunError::io("make the link", path))
    };
    link(Library::Watch, Library::Watch.soname())?;
    if !local {
        link(Library::Device, Library::Device.soname())?;
        // The name that linkers search for: Triton builds an extension against it.
        link(Library::Device, "libcuda.so")?;
        // Few programs use NVML, so a run without it is better than no run.
        if Library::Nvml.find(home).is_ok() {
            link(Library::Nvml, Library::Nvml.soname())?;
        }
    }
    Ok(())
}
