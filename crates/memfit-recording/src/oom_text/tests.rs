//! Messages of every release, alone and embedded in real-world logs.

mod forms;

use super::*;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// A message and its expected content: device, requested, capacity, free, allowed, allocated, reserved, idle,
/// this process, advice.
struct Case {
    releases: &'static str,
    text: &'static str,
    kind: OomKind,
    device: Option<u32>,
    /// Requested, capacity, free, allowed, allocated, total reserved, idle, this process: in MiB.
    says: [Option<f64>; 8],
    advice: Option<Advice>,
}

const CASES: [Case; 11] = [
    Case {
        releases: "up to 1.4",
        text: "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.90 GiB total capacity; 14.95 GiB already allocated; 3.88 MiB free; 121.50 MiB cached)",
        kind: OomKind::CachingAllocator,
        device: Some(0),
        says: [Some(20.0), Some(16281.6), Some(3.88), None, Some(15308.8), Some(15430.3), Some(121.5), None],
        advice: None,
    },
    Case {
        releases: "1.5 to 1.9",
        text: "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 3; 10.76 GiB total capacity; 8.00 GiB already allocated; 1.25 GiB free; 8.50 GiB reserved in total by PyTorch)",
        kind: OomKind::CachingAllocator,
        device: Some(3),
        says: [
            Some(1536.0),
            Some(11018.24),
            Some(1280.0),
            None,
            Some(8192.0),
            Some(8704.0),
            Some(512.0),
            None,
        ],
        advice: None,
    },
    Case {
        releases: "1.8 to 1.9 with a fraction",
        text: "RuntimeError: CUDA out of memory. Tried to allocate 512 bytes (GPU 1; 10.00 GiB total capacity; 4.00 GiB already allocated; 5.00 GiB free; 4.50 GiB allowed; 4.25 GiB reserved in total by PyTorch)",
        kind: OomKind::CachingAllocator,
        device: Some(1),
        says: [
            Some(512.0 / 1_048_576.0),
            Some(10240.0),
            Some(5120.0),
            Some(4608.0),
            Some(4096.0),
            Some(4352.0),
            Some(256.0),
            None,
        ],
        advice: None,
    },
    Case {
        releases: "1.10 to 2.0",
        text: "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.68 GiB total capacity; 18.00 GiB already allocated; 1.50 GiB free; 21.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
        kind: OomKind::CachingAllocator,
        device: Some(0),
        says: [
            Some(2048.0),
            Some(24248.32),
            Some(1536.0),
            None,
            Some(18432.0),
            Some(21504.0),
            Some(3072.0),
            None,
        ],
        advice: Some(Advice::MaxSplitSize),
    },
    Case {
        releases: "2.1",
        text: "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacty of 7.79 GiB of which 12.50 MiB is free. Process 4321 has 1.00 GiB memory in use. Including non-PyTorch memory, this process has 6.50 GiB memory in use. Of the allocated memory 6.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
        kind: OomKind::CachingAllocator,
        device: Some(0),
        says: [
            Some(20.0),
            Some(7976.96),
            Some(12.5),
            None,
            Some(6144.0),
            Some(6244.0),
            Some(100.0),
            Some(6656.0),
        ],
        advice: Some(Advice::MaxSplitSize),
    },
    Case {
        releases: "2.2 to 2.5",
        text: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 7 has a total capacity of 79.15 GiB of which 2.00 GiB is free. Including non-PyTorch memory, this process has 77.00 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 6.00 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
        kind: OomKind::CachingAllocator,
        device: Some(7),
        says: [
            Some(4096.0),
            Some(81049.6),
            Some(2048.0),
            None,
            Some(71680.0),
            Some(77824.0),
            Some(6144.0),
            Some(78848.0),
        ],
        advice: Some(Advice::ExpandableSegments),
    },
    Case {
        releases: "2.6 to 2.9 with a fraction",
        text: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 14.56 GiB of which 10.00 GiB is free. Including non-PyTorch memory, this process has 4.00 GiB memory in use. 4.25 GiB allowed; Of the allocated memory 3.50 GiB is allocated by PyTorch, and 256.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
        kind: OomKind::CachingAllocator,
        device: Some(0),
        says: [
            Some(20.0),
            Some(14909.44),
            Some(10240.0),
            Some(4352.0),
            Some(3584.0),
            Some(3840.0),
            Some(256.0),
            Some(4096.0),
        ],
        advice: Some(Advice::ExpandableSegments),
    },
    Case {
        releases: "2.15, expandable segments on, NVML failed",
        text: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 14.56 GiB of which 1.00 MiB is free. Of the allocated memory 3.50 GiB is allocated by PyTorch, and 256.00 MiB is reserved by PyTorch but unallocated. expandable_segments is enabled. If instead the process is running out of virtual address space (VSZ), lower the reserve.",
        kind: OomKind::CachingAllocator,
        device: Some(0),
        says: [Some(1024.0), Some(14909.44), Some(1.0), None, Some(3584.0), Some(3840.0), Some(256.0), None],
        advice: Some(Advice::ExpandableAlreadyOn),
    },
    Case {
        releases: "2.15, rejected beforehand",
        text: "torch.OutOfMemoryError: CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: 1.50 GiB",
        kind: OomKind::FractionExceeded,
        device: None,
        says: [Some(1536.0), None, None, None, None, None, None, None],
        advice: None,
    },
    Case {
        releases: "all, absurd",
        text: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        kind: OomKind::Absurd,
        device: None,
        says: [None; 8],
        advice: None,
    },
    Case {
        releases: "all, backend cudaMallocAsync",
        text: "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 6.00 GiB\nRequested               : 2.00 GiB\nDevice limit            : 7.79 GiB\nFree (according to CUDA): 19.00 MiB\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB",
        kind: OomKind::CudaMallocAsync,
        device: Some(0),
        says: [
            Some(2048.0),
            Some(7976.96),
            Some(19.0),
            Some(17_592_186_044_416.0),
            Some(6144.0),
            None,
            None,
            None,
        ],
        advice: None,
    },
];

fn found(text: &str) -> Vec<OomText> {
    find(text.as_bytes()).expect("a text in memory can be read")
}

/// Returns `true` if an amount contains a number of MiB.
fn holds(amount: Option<Amount>, mib: Option<f64>) -> bool {
    match (amount, mib) {
        (None, None) => true,
        (Some(amount), Some(mib)) => {
            let bytes = mib * MIB as f64;
            amount.low as f64 <= bytes + 1.0 && bytes <= amount.high as f64 + 1.0
        }
        _ => false,
    }
}

#[test]
fn the_text_of_every_release_is_understood() {
    for case in &CASES {
        let texts = found(case.text);
        let [text] = &texts[..] else { panic!("{}: {texts:?}", case.releases) };
        assert_eq!(
            (text.kind, text.figures.device, text.advice),
            (case.kind, case.device, case.advice),
            "{}",
            case.releases
        );
        let figures = &text.figures;
        let says = [
            figures.requested,
            figures.capacity,
            figures.free,
            figures.allowed,
            figures.allocated,
            figures.total_reserved(),
            figures.idle(),
            figures.this_process,
        ];
        for (index, (amount, mib)) in says.into_iter().zip(case.says).enumerate() {
            assert!(holds(amount, mib), "{}: figure {index}: {amount:?}, not {mib:?} MiB", case.releases);
        }
        assert!(text.kind.is_certain(&text.message));
    }
    let other = &found(CASES[4].text)[0].figures.other_processes;
    assert_eq!((other.len(), other[0].0), (1, 4321));
    assert!(holds(Some(other[0].1), Some(1024.0)));
    assert!(holds(found(CASES[5].text)[0].figures.private_pools, Some(1024.0)));
}

/// Draws a box around a text, as some loggers do with tracebacks.
fn boxed(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let lines: Vec<String> = words.chunks(9).map(|words| format!("│ {:<76} │", words.join(" "))).collect();
    lines.join("\n")
}

#[test]
fn colours_ranks_prefixes_and_broken_lines_do_not_hide_a_text() {
    let plain = CASES[5].text;
    let expected = &found(plain)[0].figures;
    let dressed = [
        format!("\u{1b}[31m\u{1b}[1m{}\u{1b}[0m", plain.replace("GiB", "\u{1b}[33mGiB\u{1b}[31m")),
        format!("2026-01-01 12:00:00,123 ERROR trainer: step failed: {plain}"),
        format!("100%|████| 3/3 [00:01<00:00]\r\u{1b}[A{plain}\r\n"),
        format!("{{\"level\":\"error\",\"message\":\"{plain}\"}}"),
        // A box of 80 columns.
        boxed(plain),
    ];
    for text in &dressed {
        let texts = found(text);
        assert_eq!(texts.len(), 1, "{text}");
        assert_eq!(&texts[0].figures, expected, "{text}");
    }
}

#[test]
fn mixed_ranks_keep_their_own_tracebacks() {
    let log = "\
[rank0]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank0]:   File \"/home/me/train.py\", line 10, in <module>
[rank1]:   File \"/home/me/train.py\", line 20, in <module>
[rank1]:   File \"/home/me/model.py\", line 7, in forward
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 10.00 GiB of which 1.00 GiB is free. Of the allocated memory 8.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 10.00 GiB of which 1.00 GiB is free. Of the allocated memory 8.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 10.00 GiB of which 1.00 GiB is free. Of the allocated memory 8.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.
";
    let texts = found(log);
    let summary: Vec<_> = texts
        .iter()
        .map(|text| {
            (
                text.rank,
                text.figures.device,
                text.line,
                text.count,
                text.frames.iter().map(|frame| frame.line).collect(),
            )
        })
        .collect();
    assert_eq!(summary, [(Some(0), Some(0), 6, 1, vec![10]), (Some(1), Some(1), 7, 2, vec![20, 7])]);
    for (prefix, rank) in [("[default12]:", 12), ("3: ", 3), ("[1,5]<stderr>:", 5), ("[Rank 2] ", 2)] {
        let texts = found(&format!("{prefix}RuntimeError: CUDA error: out of memory\n"));
        assert_eq!((texts[0].rank, texts[0].kind), (Some(rank), OomKind::Cuda), "{prefix}");
    }
}

#[test]
fn notebook_tracebacks_are_parsed() {
    let frames = |text: &str| -> Vec<(String, u32, String)> {
        let text = format!(
            "{text}\nOutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.\n"
        );
        found(&text)[0]
            .frames
            .iter()
            .map(|frame| (frame.file.clone(), frame.line, frame.function.clone()))
            .collect()
    };
    let new = "\u{1b}[36mCell\u{1b}[39m In[3], line 5\n      3 x\n----> 5 train(model)\nFile \u{1b}[32m~/project/train.py:88\u{1b}[39m, in train(model)\n---> 88 loss.backward()";
    assert_eq!(
        frames(new),
        [("Cell In[3]".into(), 5, String::new()), ("~/project/train.py".into(), 88, "train".into())]
    );
    let old = "<ipython-input-7-5c2e> in step(batch)\n      1 def step(batch):\n----> 2     model(batch)\n/usr/lib/python3/torch/nn/module.py in _call_impl(self, *input)\n    700 a\n--> 727 b";
    assert_eq!(
        frames(old),
        [
            ("<ipython-input-7-5c2e>".into(), 2, "step".into()),
            ("/usr/lib/python3/torch/nn/module.py".into(), 727, "_call_impl".into())
        ]
    );
    let linked =
        "[<ipython-input-7-5c2e>](https://localhost:8080/#) in <cell line: 1>()\n----> 4 model(batch)";
    assert_eq!(frames(linked), [("<ipython-input-7-5c2e>".into(), 4, "<cell line: 1>".into())]);
}

#[test]
fn disguised_errors_are_recognized_and_graded() {
    for (text, kind, certain) in [
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            OomKind::Cublas,
            true,
        ),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
            OomKind::Cublas,
            false,
        ),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", OomKind::Cudnn, true),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", OomKind::Cudnn, false),
        ("RuntimeError: Unable to find a valid cuDNN algorithm to run convolution", OomKind::Cudnn, false),
        ("RuntimeError: GET was unable to find an engine to execute this computation", OomKind::Cudnn, false),
        (
            "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc 10485760 bytes",
            OomKind::Nccl,
            true,
        ),
        ("node1:1:2 [0] transport.cc:1 NCCL WARN Cuda failure 2 'out of memory'", OomKind::Nccl, true),
        (
            "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
            OomKind::Cuda,
            true,
        ),
        (
            "torch.AcceleratorError: CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.",
            OomKind::Cuda,
            true,
        ),
        ("RuntimeError: CUDA driver error: out of memory", OomKind::Cuda, true),
        ("RuntimeError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED", OomKind::OtherLibrary, true),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 34359738368 bytes. Error code 12 (Cannot allocate memory)",
            OomKind::Host,
            true,
        ),
    ] {
        let texts = found(text);
        assert_eq!(texts.len(), 1, "{text}: {texts:?}");
        assert_eq!((texts[0].kind, texts[0].kind.is_certain(&texts[0].message)), (kind, certain), "{text}");
    }
    let host =
        &found("DefaultCPUAllocator: can't allocate memory: you tried to allocate 34359738368 bytes.")[0];
    assert_eq!(host.figures.requested, Some(Amount::exactly(32 * GIB)));
}

#[test]
fn ordinary_lines_are_no_errors() {
    for text in [
        "",
        "epoch 1: loss 0.3, memory 12 GiB",
        "out of memory is what we fear",
        "ALLOC",
        "\u{1b}",
        "\u{1b}[",
        "\u{1b}]0;title",
    ] {
        assert_eq!(found(text), [], "{text:?}");
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_can_be_searched(bytes: Vec<u8>, at: proptest::sample::Index, case in 0..CASES.len()) {
        let text = CASES[case].text.as_bytes();
        let cut = at.index(text.len());
        let _ = find(&[&text[..cut], &bytes[..], &text[cut..]].concat()[..]);
        let _ = find(&bytes[..]);
    }
}
