//! Every listed call does what its class says: each is made in a child process of its own.
//!
//! One test, since it forks: a second test's thread would be in the children's way.

use std::ffi::{CString, c_char, c_void};
use std::fs;
use std::path::Path;

use memfit_devices::Catalogue;
use memfit_link::{CardSetup, Ledger, PROTOCOL, RunDir, Setup, SizedInterval, ValuePolicy};
use memfit_prototypes::testing::call::{Answer, Argument, Callers};
use memfit_prototypes::testing::canary::Canary;
use memfit_prototypes::testing::fork::in_child;
use memfit_prototypes::testing::recipe::{Kitchen, Recipes};
use memfit_prototypes::testing::{Loaded, environments, library_path};
use memfit_prototypes::{Class, Entry, Flow, Kind, Library, read_folder};

const CARDS: usize = 2;
const CAPACITY: u64 = 8 << 30;

#[test]
fn every_call_keeps_its_promise() {
    let lists = read_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("api")).unwrap_or_else(|problem| panic!("{problem}"));
    let library = Loaded::new(&library_path("libmemfit_vgpu.so"));
    let callers = memfit_prototypes::callers!();
    let mut failures = Vec::new();
    let mut check = |name: &str, outcome: Result<(), String>| {
        if let Err(what) = outcome {
            failures.push(format!("{name}: {what}"));
        }
    };

    for list in &lists {
        for entry in list.entries.iter().filter(|entry| entry.class == Class::Harmless) {
            check(&entry.name, in_child(|| harmless(&library, &callers, entry)));
        }
        let outcome = in_child(|| refused(&library, &callers, list));
        check(&list.name, outcome);
    }

    let folder = run_directory();
    // SAFETY: no other thread of this process reads the environment now.
    unsafe { std::env::set_var(memfit_link::env::RUN_DIR, &folder) };
    let cudnn = load_cudnn();
    let recipes = Recipes::read(include_str!("recipes.txt"));
    for name in recipes.names() {
        let listed = lists.iter().flat_map(|list| &list.entries).find(|entry| entry.name == name);
        let class = listed.map(|entry| entry.class);
        check(name, if class == Some(Class::Modelled) { Ok(()) } else { Err(format!("a recipe, but {class:?}")) });
    }
    for list in &lists {
        if list.name == "cudnn" && !cudnn {
            println!("cuDNN's modelled calls ask the real library: not called, MEMFIT_TEST_SITE_PACKAGES is not set");
            continue;
        }
        for entry in list.entries.iter().filter(|entry| entry.class == Class::Modelled) {
            check(&entry.name, in_child(|| Kitchen::new(&library, &callers, &lists, &recipes).cook(entry)));
        }
    }
    let _ = fs::remove_dir_all(&folder);
    assert!(failures.is_empty(), "{} calls do not keep their promise:\n{}", failures.len(), failures.join("\n"));
}

/// A harmless call succeeds whatever its arguments, and writes every out-parameter: no more, no less.
fn harmless(library: &Loaded, callers: &Callers, entry: &Entry) -> Result<(), String> {
    let parameters = entry.parameters.as_deref().ok_or("its parameters are unknown")?;
    let caller = callers.get(&entry.name).ok_or("no caller was generated")?;
    let room = vec![0_u64; 512];
    let mut canaries: Vec<Option<Canary>> =
        parameters.iter().map(|each| (each.flow == Flow::Out).then(|| Canary::new(each))).collect();
    for round in 0..2 {
        let mut arguments = Vec::new();
        for (parameter, canary) in parameters.iter().zip(&mut canaries) {
            arguments.push(match (canary, &parameter.kind) {
                (Some(canary), _) => Argument::new(canary.address(round)),
                (None, Kind::F32) => Argument::new(1.5_f32),
                (None, Kind::F64) => Argument::new(1.5_f64),
                (None, Kind::Int | Kind::U32 | Kind::I64 | Kind::U64 | Kind::Size) => Argument::new(1_u64),
                (None, Kind::U8 | Kind::U16) => Argument::new(1_u64),
                (None, Kind::Complex32 | Kind::Complex64 | Kind::Bytes(_)) => Argument::new([0_u64; 32]),
                (None, _) => Argument::new(room.as_ptr()),
            });
        }
        // SAFETY: the arguments are of the prototype's kinds, and what they point to is large enough for any of them.
        let answer = unsafe { caller(library.symbol(&entry.name), &arguments) };
        if entry.result == Kind::Status && answer != Answer::Number(0) {
            return Err(format!("answered {answer:?}"));
        }
    }
    for (index, canary) in canaries.iter().enumerate() {
        if let Some(canary) = canary {
            canary.judge().map_err(|what| format!("parameter {index}: {what}"))?;
        }
    }
    if room.iter().any(|word| *word != 0) {
        return Err("wrote where nothing says it may".to_owned());
    }
    Ok(())
}

/// A refused call answers the library's own "not supported", and is counted under its name.
fn refused(library: &Loaded, callers: &Callers, list: &Library) -> Result<(), String> {
    // SAFETY: that is this function's prototype.
    let count: unsafe extern "C" fn(*const c_char) -> u64 =
        unsafe { std::mem::transmute(library.symbol("memfit_vgpu_refused")) };
    for entry in list.entries.iter().filter(|entry| entry.class == Class::Refused) {
        let answer = match callers.get(&entry.name) {
            // SAFETY: a refused call looks at none of its arguments.
            Some(caller) => unsafe { caller(library.symbol(&entry.name), &[Argument::new([0_u64; 32]); 40]) },
            None => {
                // SAFETY: as above; the caller clears the arguments, and there are none.
                let function: unsafe extern "C" fn() -> u64 =
                    unsafe { std::mem::transmute::<*const c_void, _>(library.symbol(&entry.name)) };
                // SAFETY: as above.
                Answer::Number(unsafe { function() } as i64)
            }
        };
        if entry.result == Kind::Status && answer != Answer::Number(list.refusal.into()) {
            return Err(format!("{} answered {answer:?}, not {}", entry.name, list.refusal));
        }
        let name = CString::new(entry.name.as_str()).map_err(|_| "a name with NUL")?;
        // SAFETY: the name ends with NUL.
        let counted = unsafe { count(name.as_ptr()) };
        if counted != 1 {
            return Err(format!("{} was counted {counted} times, not once", entry.name));
        }
    }
    Ok(())
}

/// A run with two cards.
fn run_directory() -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("memfit-calls-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let catalogue = Catalogue::builtin().unwrap();
    let device = serde_json::to_value(catalogue.find("rtx-4090").unwrap()).unwrap();
    let small = SizedInterval { low: 1 << 20, typical: 2 << 20, high: 3 << 20 };
    let card =
        CardSetup { device, capacity: CAPACITY, context: small, libraries: small, communicator: small };
    let setup = Setup {
        protocol: PROTOCOL,
        cards: vec![card; CARDS],
        steps: 0,
        forward_steps: 0,
        cover_full: false,
        stacks: false,
        values: ValuePolicy::UpperBound,
    };
    let run_dir = RunDir::new(&folder);
    setup.write(&run_dir).unwrap();
    Ledger::create(&run_dir, &setup).unwrap();
    folder
}

/// Loads the real cuDNN of the last environment beside the device, as PyTorch does; false if there is none.
fn load_cudnn() -> bool {
    let Some(environment) = environments().pop() else {
        return false;
    };
    let path: &Path = &environment.join("nvidia/cudnn/lib/libcudnn.so.9");
    let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the path ends with NUL; loading cuDNN starts nothing.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{} cannot be loaded", path.display());
    true
}
