//! Checks the kernels of PyTorch's releases against the layouts of the families.
//!
//! `symbols/torch.tsv.gz` has the kernels (`make symbols`). `symbols/recognised.md` counts for each family
//! the kernels that are tracked, and those whose parameters differ from the family's layout. A release that
//! changes a layout changes a number there.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::Read,
    path::Path,
};

use super::super::{Descriptor, FAMILIES};
use crate::binary::Param;

/// Variable that makes the test write the counts instead of checking them.
const ACCEPT: &str = "MEMFIT_ACCEPT";
/// Variable that makes the test list the kernels whose parameters differ.
const SHOW: &str = "MEMFIT_SHOW";

/// Counts of one family's kernels in one release.
#[derive(Clone, Copy, Default)]
struct Count {
    all: usize,
    /// Kernels through which contents are tracked.
    followed: usize,
    /// Kernels whose parameters differ from the family's layout.
    differing: usize,
}

impl Count {
    fn text(self) -> String {
        match self {
            Self { all: 0, .. } => String::new(),
            Self { followed: 0, differing: 0, all } => all.to_string(),
            Self { followed, differing: 0, all } => format!("{followed} of {all}"),
            Self { followed, differing, all } => format!("{followed} of {all}, {differing} differ"),
        }
    }
}

fn version(release: &str) -> Vec<u32> {
    release.split('.').map(|part| part.parse().unwrap()).collect()
}

/// Parses a line: the kernel's family, whether its parameters fit, and the releases that have it.
#[allow(clippy::print_stdout, reason = "it is asked for")]
fn described(line: &str) -> (&'static str, Option<bool>, &str) {
    let [name, sizes, releases] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
    let param = |size: &str| Param { offset: 0, size: size.parse().unwrap() };
    let params: Vec<Param> = sizes.split_whitespace().map(param).collect();
    let descriptor = Descriptor::new(name, None);
    let fits = descriptor.fits(&params);
    if fits == Some(false) && env::var_os(SHOW).is_some() {
        println!("{sizes}\t{name}");
    }
    (descriptor.family().name, fits, releases)
}

/// Formats the counts as a table: a row for each family, a column for each release.
fn count_table(kernels: &str) -> String {
    let mut counts: BTreeMap<(&str, &str), Count> = BTreeMap::new();
    // Names are long and numerous, so demangling is spread over threads.
    let lines: Vec<&str> = kernels.lines().collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let described = std::thread::scope(|scope| {
        let parts: Vec<_> = lines
            .chunks(lines.len().div_ceil(threads))
            .map(|part| scope.spawn(move || part.iter().map(|line| described(line)).collect::<Vec<_>>()))
            .collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect::<Vec<_>>()
    });
    for (family, fits, releases) in described {
        for release in releases.split_whitespace() {
            let count = counts.entry((family, release)).or_default();
            count.all += 1;
            count.followed += usize::from(fits == Some(true));
            count.differing += usize::from(fits == Some(false));
        }
    }
    let releases: BTreeSet<(Vec<u32>, &str)> =
        counts.keys().map(|(_, release)| (version(release), *release)).collect();
    let mut text = "# Kernels of PyTorch's releases, by family\n\nHow many kernels of `libtorch_cuda.so` each \
                    family has, and through how many of them known contents are followed (\"of\"); of those that \
                    \"differ\", the parameters are not as large as the family's layout says.\n\n"
        .to_owned();
    let row = |first: &str, cells: Vec<String>| format!("| {first} | {} |\n", cells.join(" | "));
    text += &row("family", releases.iter().map(|(_, release)| (*release).to_owned()).collect());
    text += &row("---", vec!["--:".to_owned(); releases.len()]);
    for family in FAMILIES.iter().map(|family| family.name).chain(["unknown"]) {
        let cells =
            releases.iter().map(|(_, release)| counts.get(&(family, release)).copied().unwrap_or_default());
        let cells: Vec<Count> = cells.collect();
        if cells.iter().any(|count| count.all > 0) {
            text += &row(family, cells.into_iter().map(Count::text).collect());
        }
    }
    text
}

#[test]
fn kernels_of_the_releases_are_recognised_as_before() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("symbols");
    let packed = fs::read(folder.join("torch.tsv.gz")).unwrap();
    let mut kernels = String::new();
    flate2::read::GzDecoder::new(packed.as_slice()).read_to_string(&mut kernels).unwrap();
    let (found, known) = (count_table(&kernels), folder.join("recognised.md"));
    if env::var_os(ACCEPT).is_some() {
        fs::write(&known, found).unwrap();
        return;
    }
    let expected = fs::read_to_string(&known).unwrap();
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected, "a layout has changed; if the new counts are right, set {ACCEPT}=1 once");
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "families or releases have changed");
}
