//! Text output of `memfit gpus`.

use std::fmt::Write as _;

use memfit_devices::{Bytes, Device, Interval};

use super::canvas::{BOLD, Canvas, DIM, paint};

/// All GPUs, one a line.
pub fn gpus(devices: &[&Device], canvas: Canvas) -> String {
    let wide = canvas.width >= 100;
    let mut out = String::new();
    let id_width = devices.iter().map(|device| device.id.len()).max().unwrap_or(4).max(4);
    let mut header = format!(
        "{:<id_width$}  {:>10}  {:>10}  {:>10}  {:>10}",
        "GPU", "memory", "nominal", "capability", "bandwidth"
    );
    if wide {
        header.push_str("  driver's name");
    }
    let _ = writeln!(out, "{}", paint(BOLD, &header));
    for device in devices {
        let bandwidth = format!("{} GB/s", device.memory_bandwidth / 1_000_000_000);
        let _ = write!(
            out,
            "{:<id_width$}  {:>10}  {:>10}  {:>10}  {bandwidth:>10}",
            device.id,
            device.memory.to_string(),
            device.box_memory.to_string(),
            device.compute_capability.to_string()
        );
        if wide {
            let _ = write!(out, "  {}", paint(DIM, &device.name));
        }
        out.push('\n');
    }
    out
}

/// One GPU, followed by the source of each figure.
pub fn gpu(device: &Device, canvas: Canvas) -> String {
    let mut out = String::new();
    let dot = canvas.dot();
    let _ = writeln!(out, "{}  {}", paint(BOLD, &device.name), paint(DIM, &device.id));
    let mut sources: Vec<(String, Vec<String>)> = Vec::new();
    let mut field = |label: &str, text: &str, source: Option<&str>| {
        out.push_str(&canvas.wrapped(&format!("  {label:<16}"), DIM, text));
        let Some(source) = source else { return };
        match sources.iter_mut().find(|(known, _)| known == source) {
            Some((_, labels)) => labels.push(label.to_owned()),
            None => sources.push((source.to_owned(), vec![label.to_owned()])),
        }
    };
    field("architecture", &format!("{}{dot}{}", device.architecture, device.class), None);
    let memory = format!("{} as PyTorch sees it, {} nominal", device.memory, device.box_memory);
    field("memory", &memory, device.source_of("memory"));
    let bandwidth = format!(
        "{} GB/s over {} bits at {} MHz",
        device.memory_bandwidth / 1_000_000_000,
        device.memory_bus_bits,
        device.memory_clock_khz / 1000
    );
    field("bandwidth", &bandwidth, device.source_of("memory_bandwidth"));
    let processors = format!(
        "{} multiprocessors at {} MHz, compute capability {}, {} of L2",
        device.sm_count,
        device.sm_clock_khz / 1000,
        device.compute_capability,
        device.l2_cache
    );
    field("processors", &processors, device.source_of("sm_count"));
    let limits = format!(
        "{} threads, {} registers, {} of shared memory each; up to {} per block (opt-in)",
        device.sm.max_threads,
        device.sm.registers,
        device.sm.shared_memory,
        device.sm.shared_memory_per_block_optin
    );
    field("multiprocessor", &limits, device.source_of("sm"));
    field("peak rates", &rates(device, dot), device.source_of("rates"));
    field("achieved", &achievable(device, dot), device.source_of("achieved"));
    let link =
        format!("{}, {} GB/s each way", device.host_link.kind, device.host_link.bandwidth / 1_000_000_000);
    field("host link", &link, device.source_of("host_link"));
    if let Some(peer) = device.peer_link {
        let text = format!("NVLink {}, {} GB/s each way", peer.generation, peer.bandwidth / 1_000_000_000);
        field("peers", &text, device.source_of("peer_link"));
    }
    let alike = device.overhead(13).has_figures_of(&device.overhead(12));
    for cuda in [13, 12].into_iter().take(if alike { 1 } else { 2 }) {
        let outside = device.overhead(cuda);
        let release = if alike { String::new() } else { format!("with CUDA {cuda}: ") };
        let text = format!(
            "{release}context {}, libraries {}, {} for each NCCL communicator",
            interval(outside.context),
            interval(outside.libraries),
            interval(outside.per_communicator)
        );
        let [context, libraries, communication] = &outside.sources;
        let source = if context == libraries && libraries == communication {
            context.clone()
        } else {
            format!("context: {context}; libraries: {libraries}; communicators: {communication}")
        };
        field("non-PyTorch", &text, Some(&format!("{release}{source}")));
    }
    if let Some(other) = device.outside.as_ref().and_then(|seen| seen.parts.other_processes) {
        field("other programs", &format!("{other}, assumed in each run"), device.calibrated_by());
    }
    if !sources.is_empty() {
        let _ = writeln!(out, "\n{}", paint(DIM, "Sources"));
    }
    for (source, labels) in sources {
        let lines = canvas.wrapped("  ", DIM, &format!("{}: {source}", labels.join(", ")));
        let _ = write!(out, "{}", paint(DIM, &lines));
    }
    out
}

/// Rates that large kernels achieve: measured, or as a share of the peak rates.
fn achievable(device: &Device, dot: &str) -> String {
    let (rates, achieved, seen) = (&device.rates, &device.achieved, &device.achieved.measured);
    let of = |measured: Option<u64>, peak: Option<u64>, factor: f64| {
        measured.map(|rate| rate as f64).or_else(|| peak.map(|peak| peak as f64 * factor))
    };
    let tensor = achieved.tensor.factor();
    let mut parts: Vec<_> = [
        ("fp32", of(seen.fp32, Some(rates.fp32), achieved.ordinary.factor())),
        ("tf32", of(seen.tf32, rates.tf32, tensor)),
        ("fp16", of(seen.fp16, Some(rates.fp16), tensor)),
        ("bf16", of(seen.bf16, rates.bf16, tensor)),
        ("fp8", of(seen.fp8, rates.fp8, tensor)),
    ]
    .into_iter()
    .filter_map(|(name, rate)| rate.map(|rate| format!("{name} {:.1}", rate / 1e12)))
    .collect();
    if let Some(last) = parts.last_mut() {
        last.push_str(" TFLOP/s");
    }
    let giga = |bytes: u64, factor: f64| format!("{:.0} GB/s", bytes as f64 * factor / 1e9);
    parts.push(format!("memory {}", giga(device.memory_bandwidth, achieved.memory.factor())));
    parts.push(format!("host link {}", giga(device.host_link.bandwidth, achieved.host_link.factor())));
    let peers = device.peer_link.map(|link| giga(link.bandwidth, achieved.peer_link.factor()));
    parts.extend(seen.peers.map(|peers| giga(peers, 1.0)).or(peers).map(|rate| format!("peers {rate}")));
    parts.push(format!("kernel launch {} ns", achieved.launch_ns));
    parts.join(dot)
}

fn interval(interval: Interval) -> String {
    let whole = |bytes: Bytes| Bytes::new(bytes.get().div_ceil(1 << 20) << 20);
    format!("{} ({} to {})", whole(interval.typical), whole(interval.low), whole(interval.high))
}

fn rates(device: &Device, dot: &str) -> String {
    let rates = &device.rates;
    let known = [
        ("fp64", Some(rates.fp64)),
        ("fp32", Some(rates.fp32)),
        ("tf32", rates.tf32),
        ("fp16", Some(rates.fp16)),
        ("bf16", rates.bf16),
        ("fp8", rates.fp8),
        ("fp4", rates.fp4),
        ("int8", rates.int8),
    ];
    let parts: Vec<_> = known
        .into_iter()
        .filter_map(|(name, rate)| rate.map(|rate| format!("{name} {:.1}", rate as f64 / 1e12)))
        .collect();
    format!("{} TFLOP/s dense, at the rated clock", parts.join(dot))
}
