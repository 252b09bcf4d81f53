//! Tests that NVML shows the ledger's state. Each state of a process has a test in a child process, since the
//! library reads its run once.

#![allow(unsafe_code, reason = "the tests call as C callers do")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::fs;
use std::path::{Path, PathBuf};

use memfit_channel::{CardSetup, Ledger, Outside, RunDir, Setup, TallyKind};
use memfit_devices::{Bytes, Catalogue, Interval, Overhead};
use memfit_prototypes::testing::fork::in_child;
use memfit_prototypes::testing::{Loaded, library_path};

const CAPACITY: u64 = 8 << 30;
const CONTEXT: Interval =
    Interval { low: Bytes::from_mib(100), typical: Bytes::from_mib(200), high: Bytes::from_mib(300) };

/// The library's functions, by the types of their arguments.
struct Nvml(Loaded);

impl Nvml {
    fn load() -> Self {
        Self(Loaded::new(&library_path("libmemfit_nvml.so")))
    }

    fn call_0(&self, name: &str) -> i32 {
        // SAFETY: the functions called by this have no parameters.
        unsafe { std::mem::transmute::<*const c_void, extern "C" fn() -> i32>(self.0.symbol(name))() }
    }

    fn call_1<A>(&self, name: &str, a: A) -> i32 {
        // SAFETY: the functions called by this have one parameter, of the type that the test passes.
        unsafe { std::mem::transmute::<*const c_void, extern "C" fn(A) -> i32>(self.0.symbol(name))(a) }
    }

    fn call_2<A, B>(&self, name: &str, a: A, b: B) -> i32 {
        // SAFETY: as above, with two.
        unsafe { std::mem::transmute::<*const c_void, extern "C" fn(A, B) -> i32>(self.0.symbol(name))(a, b) }
    }

    fn call_3<A, B, C>(&self, name: &str, a: A, b: B, c: C) -> i32 {
        // SAFETY: as above, with three.
        unsafe {
            std::mem::transmute::<*const c_void, extern "C" fn(A, B, C) -> i32>(self.0.symbol(name))(a, b, c)
        }
    }

    fn device(&self, index: u32) -> *mut c_void {
        let mut device = std::ptr::null_mut();
        assert_eq!(self.call_2("nvmlDeviceGetHandleByIndex_v2", index, &raw mut device), 0);
        device
    }

    fn memory(&self, device: *mut c_void) -> [u64; 3] {
        let mut memory = [0_u64; 3];
        assert_eq!(self.call_2("nvmlDeviceGetMemoryInfo", device, memory.as_mut_ptr()), 0);
        memory
    }
}

struct Run {
    folder: PathBuf,
    setup: Setup,
}

impl Run {
    fn new(name: &str) -> Self {
        Self::with_cards(name, &["rtx-4090", "t4"])
    }

    fn with_cards(name: &str, cards: &[&str]) -> Self {
        Self::make(name, cards, Bytes::ZERO)
    }

    fn with_other_processes(name: &str, other_processes: Bytes) -> Self {
        Self::make(name, &["rtx-4090"], other_processes)
    }

    fn make(name: &str, cards: &[&str], other_processes: Bytes) -> Self {
        let folder = std::env::temp_dir().join(format!("memfit-nvml-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let catalogue = Catalogue::builtin().unwrap();
        let card = |id: &str| {
            let device = catalogue.find(id).unwrap().clone().with_memory(Bytes::new(CAPACITY));
            let overhead = Overhead {
                context: CONTEXT,
                libraries: CONTEXT,
                per_communicator: CONTEXT,
                ..Overhead::default()
            };
            CardSetup { other_processes, ..CardSetup::new(device, overhead) }
        };
        let setup = Setup::new(cards.iter().map(|id| card(id)).collect());
        setup.write(&RunDir::new(&folder)).unwrap();
        Ledger::create(&RunDir::new(&folder), &setup).unwrap();
        Self { folder, setup }
    }

    fn ledger(&self) -> Ledger {
        Ledger::open(&RunDir::new(&self.folder), &self.setup, None).unwrap()
    }

    /// Runs a test in a child process that belongs to the run.
    fn enter(&self, test: impl FnOnce(&Nvml)) {
        let outcome = in_child(|| {
            // SAFETY: the child has one thread.
            unsafe { std::env::set_var(memfit_channel::env::RUN_DIR, &self.folder) };
            test(&Nvml::load());
            Ok(())
        });
        assert_eq!(outcome, Ok(()));
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new(&self.folder));
    }
}

#[test]
fn outside_a_run_there_is_no_driver() {
    let outcome = in_child(|| {
        // SAFETY: the child has one thread.
        unsafe { std::env::remove_var(memfit_channel::env::RUN_DIR) };
        let nvml = Nvml::load();
        assert_eq!(nvml.call_0("nvmlInit_v2"), 9, "driver not loaded");
        let mut count = 7_u32;
        assert_eq!(nvml.call_1("nvmlDeviceGetCount_v2", &raw mut count), 1, "uninitialized");
        assert_eq!(count, 7, "nothing is written on failure");
        Ok(())
    });
    assert_eq!(outcome, Ok(()));
}

#[test]
fn users_are_counted() {
    Run::new("users").enter(|nvml| {
        assert_eq!(nvml.call_0("nvmlShutdown"), 1);
        assert_eq!(nvml.call_0("nvmlInit_v2"), 0);
        assert_eq!(nvml.call_0("nvmlInit_v2"), 0);
        assert_eq!(nvml.call_0("nvmlShutdown"), 0);
        let mut count = 0_u32;
        assert_eq!(nvml.call_1("nvmlDeviceGetCount_v2", &raw mut count), 0);
        assert_eq!(count, 2);
        assert_eq!(nvml.call_0("nvmlShutdown"), 0);
        assert_eq!(nvml.call_1("nvmlDeviceGetCount_v2", &raw mut count), 1);
    });
}

#[test]
fn memory_is_the_ledgers() {
    let run = Run::new("memory");
    run.enter(|nvml| {
        assert_eq!(nvml.call_0("nvmlInit_v2"), 0);
        assert_eq!(nvml.memory(nvml.device(0)), [CAPACITY, CAPACITY, 0], "nothing is used yet");
        let ledger = run.ledger();
        ledger.book(0, Outside::Context, CONTEXT).unwrap();
        ledger.allocate(0, 1 << 30).unwrap();
        // Used memory includes the memory outside the allocator at its upper bound, as for an allocation.
        let used = (1 << 30) + CONTEXT.high.get();
        assert_eq!(nvml.memory(nvml.device(0)), [CAPACITY, CAPACITY - used, used]);
        assert_eq!(nvml.memory(nvml.device(1)), [CAPACITY, CAPACITY, 0], "the other card");
        let mut v2 = [0_u64; 5];
        v2[0] = 0x0200_0028;
        assert_eq!(nvml.call_2("nvmlDeviceGetMemoryInfo_v2", nvml.device(0), v2.as_mut_ptr()), 0);
        assert_eq!(v2, [0x0200_0028, CAPACITY, 0, CAPACITY - used, used]);
        v2[0] = 1;
        assert_eq!(nvml.call_2("nvmlDeviceGetMemoryInfo_v2", nvml.device(0), v2.as_mut_ptr()), 25, "version");
    });
}

/// `cudaMemGetInfo` returns [`Ledger::free`], and a script may query either.
#[test]
fn memory_of_other_programs_is_used_and_not_free() {
    let run = Run::with_other_processes("others", Bytes::from_gib(2));
    run.enter(|nvml| {
        assert_eq!(nvml.call_0("nvmlInit_v2"), 0);
        let ledger = run.ledger();
        ledger.book(0, Outside::Context, CONTEXT).unwrap();
        let (free, total) = ledger.free(0).unwrap();
        assert_eq!(nvml.memory(nvml.device(0)), [total, free, total - free]);
        assert_eq!(total - free, (2 << 30) + CONTEXT.high.get());
    });
}

#[test]
fn processes_are_the_ledgers() {
    let run = Run::new("processes");
    run.enter(|nvml| {
        assert_eq!(nvml.call_0("nvmlInit_v2"), 0);
        let name = "nvmlDeviceGetComputeRunningProcesses_v3";
        let mut count = 0_u32;
        assert_eq!(nvml.call_3(name, nvml.device(0), &raw mut count, std::ptr::null_mut::<u64>()), 0);
        assert_eq!(count, 0);
        let ledger = run.ledger();
        ledger.book(0, Outside::Context, CONTEXT).unwrap();
        ledger.allocate(0, 64 << 20).unwrap();
        assert_eq!(
            nvml.call_3(name, nvml.device(0), &raw mut count, std::ptr::null_mut::<u64>()),
            7,
            "no room"
        );
        assert_eq!(count, 1, "says how much is needed");
        let mut infos = [0_u64; 3];
        assert_eq!(nvml.call_3(name, nvml.device(0), &raw mut count, infos.as_mut_ptr()), 0);
        assert_eq!(infos, [u64::from(std::process::id()), CONTEXT.typical.get() + (64 << 20), u64::MAX]);
        assert_eq!(nvml.call_3(name, nvml.device(1), &raw mut count, infos.as_mut_ptr()), 0);
        assert_eq!(count, 0, "the other card");
    });
}

#[test]
fn cards_are_found_by_every_name() {
    Run::new("names").enter(|nvml| {
        assert_eq!(nvml.call_0("nvmlInit_v2"), 0);
        let device = nvml.device(1);
        let mut text = [0_u8; 96];
        let read = |text: &[u8]| CStr::from_bytes_until_nul(text).unwrap().to_str().unwrap().to_owned();
        assert_eq!(nvml.call_3("nvmlDeviceGetName", device, text.as_mut_ptr(), 96_u32), 0);
        assert_eq!(read(&text), "Tesla T4");
        assert_eq!(nvml.call_3("nvmlDeviceGetName", device, text.as_mut_ptr(), 8_u32), 7, "no room");
        assert_eq!(nvml.call_3("nvmlDeviceGetUUID", device, text.as_mut_ptr(), 96_u32), 0);
        assert_eq!(read(&text), memfit_channel::identity::uuid_text(1));
        let found = |name: &str, text: &str| {
            let text = CString::new(text).unwrap();
            let mut found = std::ptr::null_mut::<c_void>();
            match nvml.call_2(name, text.as_ptr(), &raw mut found) {
                0 => Ok(found),
                status => Err(status),
            }
        };
        assert_eq!(found("nvmlDeviceGetHandleByUUID", &read(&text)), Ok(device));
        assert_eq!(found("nvmlDeviceGetHandleByUUID", "GPU-0"), Err(6));
        assert_eq!(found("nvmlDeviceGetHandleByPciBusId_v2", "00000000:02:00.0"), Ok(device));
        assert_eq!(found("nvmlDeviceGetHandleByPciBusId_v2", "00000000:03:00.0"), Err(6));
        assert_eq!(found("nvmlDeviceGetHandleByPciBusId_v2", "nonsense"), Err(2));
        let mut index = 9_u32;
        assert_eq!(nvml.call_2("nvmlDeviceGetIndex", device, &raw mut index), 0);
        assert_eq!(index, 1);
        for stray in [0_usize, 1, usize::MAX] {
            assert_eq!(
                nvml.call_2("nvmlDeviceGetIndex", stray, &raw mut index),
                2,
                "{stray:#x} is not a card"
            );
        }
        assert_eq!(nvml.call_2("nvmlDeviceGetHandleByIndex_v2", 2_u32, &raw mut index), 2);
        assert_eq!(
            nvml.call_2("nvmlDeviceGetIndex", device, std::ptr::null_mut::<u32>()),
            2,
            "nowhere to write"
        );
    });
}

#[test]
fn only_cards_with_a_fabric_tell_of_it() {
    let run = Run::with_cards("fabric", &["h100", "rtx-4090"]);
    run.enter(|nvml| {
        assert_eq!(nvml.call_0("nvmlInit_v2"), 0);
        let mut info = [u32::MAX; 10];
        for (version, words) in [(0x0200_0024, 9), (0x0300_0028, 10)] {
            info.fill(u32::MAX);
            info[0] = version;
            assert_eq!(nvml.call_2("nvmlDeviceGetGpuFabricInfoV", nvml.device(0), info.as_mut_ptr()), 0);
            assert!(info[1..words].iter().all(|word| *word == 0), "not part of one: {info:x?}");
            assert!(
                info[words..].iter().all(|word| *word == u32::MAX),
                "version {version:#x} is {words} words long"
            );
        }
        assert_eq!(nvml.call_2("nvmlDeviceGetGpuFabricInfoV", nvml.device(1), info.as_mut_ptr()), 3);
        info[0] = 0x0100_0024;
        assert_eq!(nvml.call_2("nvmlDeviceGetGpuFabricInfoV", nvml.device(0), info.as_mut_ptr()), 25);
    });
}

#[test]
fn errors_have_texts() {
    let nvml = Nvml::load();
    // SAFETY: that is this function's prototype.
    let text: extern "C" fn(i32) -> *const c_char =
        unsafe { std::mem::transmute(nvml.0.symbol("nvmlErrorString")) };
    for (code, expected) in [(0, c"Success"), (3, c"Not Supported"), (12345, c"Unknown Error")] {
        // SAFETY: the result is a NUL-terminated string.
        assert_eq!(unsafe { CStr::from_ptr(text(code)) }, expected);
    }
}

#[test]
fn refused_requests_are_counted_in_the_ledger() {
    let run = Run::new("refused");
    run.enter(|nvml| {
        assert_eq!(nvml.call_0("nvmlInit_v2"), 0);
        let mut celsius = 0_u32;
        for _ in 0..2 {
            assert_eq!(nvml.call_3("nvmlDeviceGetTemperature", nvml.device(0), 0, &raw mut celsius), 3);
        }
        let tally = run.ledger().view().tally;
        let counted = tally.iter().find(|each| each.name == "nvmlDeviceGetTemperature");
        assert_eq!(counted.map(|each| (each.kind, each.count)), Some((TallyKind::Unmodelled, 2)));
    });
}

/// Runs `nvidia-smi` with these arguments; returns its exit status and its output in the file of `-f`.
fn smi(nvml: &Nvml, folder: &Path, line: &str) -> (i32, String) {
    let file = folder.join("smi.txt");
    let _ = fs::remove_file(&file);
    let words: Vec<CString> = ["-f", file.to_str().unwrap()]
        .into_iter()
        .chain(line.split_whitespace())
        .map(|word| CString::new(word).unwrap())
        .collect();
    let pointers: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).collect();
    let status = nvml.call_2("memfit_nvidia_smi", i32::try_from(pointers.len()).unwrap(), pointers.as_ptr());
    (status, fs::read_to_string(&file).unwrap_or_default())
}

#[test]
fn nvidia_smi_answers_as_nvml_does() {
    let run = Run::new("smi");
    run.enter(|nvml| {
        let ledger = run.ledger();
        ledger.book(0, Outside::Context, CONTEXT).unwrap();
        ledger.allocate(0, 1 << 30).unwrap();
        let check = |line: &str, expected: &str| {
            assert_eq!(smi(nvml, &run.folder, line), (0, expected.to_owned()), "{line}");
        };
        let used = 1024 + (CONTEXT.high.get() >> 20);
        check(
            "--query-gpu=index,name,memory.total,memory.used,memory.free --format=csv",
            &format!(
                "index, name, memory.total [MiB], memory.used [MiB], memory.free [MiB]\n\
                 0, NVIDIA GeForce RTX 4090, 8192 MiB, {used} MiB, {} MiB\n\
                 1, Tesla T4, 8192 MiB, 0 MiB, 8192 MiB\n",
                8192 - used
            ),
        );
        check("--query-gpu=memory.used --format=csv,noheader,nounits", &format!("{used}\n0\n"));
        check(
            "--query-gpu=name,compute_cap,temperature.gpu --format=csv,noheader -i 1",
            "Tesla T4, 7.5, [N/A]\n",
        );
        let pid = std::process::id();
        check(
            "--query-compute-apps=pid,used_memory --format=csv",
            // The process is shown with the typical memory outside the allocator, not with its upper bound.
            &format!("pid, used_memory [MiB]\n{pid}, {} MiB\n", 1024 + (CONTEXT.typical.get() >> 20)),
        );
        let (_, list) = smi(nvml, &run.folder, "-L");
        assert!(list.starts_with("GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-"), "{list}");
        let uuid = list.lines().nth(1).unwrap().split_once("UUID: ").unwrap().1.trim_end_matches(')');
        check(&format!("--query-gpu=index --format=csv,noheader -i {uuid}"), "1\n");
        let (_, report) = smi(nvml, &run.folder, "-q -d MEMORY");
        assert!(
            report.contains(&format!("        Used                                      : {used} MiB")),
            "{report}"
        );
        assert!(!report.contains("Product Name"), "{report}");
        let (status, table) = smi(nvml, &run.folder, "");
        assert_eq!(status, 0);
        assert!(table.contains(&format!("{used}MiB /   8192MiB")), "{table}");
        assert!(table.contains(&format!("{pid}      C   ")), "{table}");
        for line in table.lines().skip(1).filter(|line| !line.is_empty()) {
            assert_eq!(line.chars().count(), 91, "{line}");
        }
        assert_eq!(smi(nvml, &run.folder, "--query-gpu=speed --format=csv").0, 2);
        assert_eq!(smi(nvml, &run.folder, "--query-compute-apps=speed --format=csv").0, 2);
        assert_eq!(smi(nvml, &run.folder, "-i 7").0, 6);
    });
}

#[test]
fn nvidia_smi_outside_a_run_finds_no_driver() {
    let folder = std::env::temp_dir();
    let outcome = in_child(|| {
        // SAFETY: the child has one thread.
        unsafe { std::env::remove_var(memfit_channel::env::RUN_DIR) };
        assert_eq!(smi(&Nvml::load(), &folder, "-L").0, 9);
        Ok(())
    });
    assert_eq!(outcome, Ok(()));
}
