//! Consistency checks of each entry in the built-in catalogue, name look-up, and user entries.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as the tests do")]

use std::collections::{BTreeMap, HashSet};

use memfit_devices::{Bytes, Catalogue, CatalogueError, Class, Device, HostLinkKind};

fn catalogue() -> Catalogue {
    Catalogue::builtin().unwrap()
}

#[track_caller]
fn assert_near(what: &str, device: &Device, actual: f64, expected: f64, tolerance: f64) {
    let error = (actual / expected - 1.0).abs();
    assert!(error <= tolerance, "{}: {what} is {actual:e}, expected {expected:e}", device.id);
}

#[test]
fn the_cards_that_people_ask_for_are_there() {
    let catalogue = catalogue();
    assert!(catalogue.devices().len() >= 60, "{}", catalogue.devices().len());
    for name in [
        "gtx-1080-ti",
        "t4",
        "v100-16gb",
        "v100-32gb",
        "rtx-2060",
        "rtx-2080-ti",
        "rtx-3060",
        "rtx-3080",
        "rtx-3090",
        "rtx-3090-ti",
        "rtx-3060-laptop",
        "rtx-4060",
        "rtx-4070",
        "rtx-4080",
        "rtx-4090",
        "rtx-4090-laptop",
        "rtx-5070",
        "rtx-5080",
        "rtx-5090",
        "a10",
        "a10g",
        "a30",
        "a40",
        "a100-40gb",
        "a100-80gb",
        "l4",
        "l40s",
        "rtx-a6000",
        "rtx-6000-ada",
        "h100",
        "h100-nvl",
        "h200",
        "b200",
        "gh200",
    ] {
        catalogue.find(name).unwrap();
    }
}

#[test]
fn capacity_is_below_the_number_on_the_box() {
    for device in catalogue().devices() {
        let share = device.memory.as_gib() / device.box_memory.as_gib();
        assert!((0.88..1.0).contains(&share), "{}: {} of {}", device.id, device.memory, device.box_memory);
        assert!(device.memory_seen.low <= device.memory && device.memory <= device.memory_seen.high);
        assert!(device.memory_seen.high < device.box_memory, "{}", device.id);
        // Drivers and boards differ in the firmware's share, and in rows that a maker retires.
        let spread = device.memory_seen.high.saturating_sub(device.memory_seen.low);
        let most = if device.shares_host_memory() { 2.0 } else { 1.3 };
        assert!(spread.as_gib() < most, "{}: {spread}", device.id);
        assert!(device.memory > Bytes::from_gib(5), "{}", device.id);
    }
}

#[test]
fn bandwidth_follows_from_the_bus() {
    for device in catalogue().devices() {
        let clock = f64::from(device.memory_clock_khz) * 1e3;
        let computed = 2.0 * clock * f64::from(device.memory_bus_bits) / 8.0;
        assert_near("memory_bandwidth", device, device.memory_bandwidth as f64, computed, 0.03);
    }
}

/// Multiply-add units for fp32 per multiprocessor; kept apart from the data so that an error there is
/// detected here.
fn fp32_cores(device: &Device) -> f64 {
    match device.compute_capability.sm_version() {
        60 | 70 | 75 | 80 => 64.0,
        _ => 128.0,
    }
}

#[test]
fn rates_follow_from_cores_and_clock() {
    for device in catalogue().devices() {
        let clocks = f64::from(device.sm_count) * f64::from(device.sm_clock_khz) * 1e3;
        assert_near("fp32 rate", device, device.rates.fp32 as f64, 2.0 * fp32_cores(device) * clocks, 0.20);
        let rates = &device.rates;
        assert!(rates.fp16 >= rates.fp32, "{}", device.id);
        for (lower, higher) in
            [(rates.tf32, Some(rates.fp16)), (rates.bf16, rates.fp8), (rates.fp8, rates.fp4)]
        {
            if let (Some(lower), Some(higher)) = (lower, higher) {
                assert!(lower <= higher, "{}: {rates:?}", device.id);
            }
        }
        let ampere_or_newer = device.compute_capability.major >= 8;
        assert_eq!(rates.tf32.is_some(), ampere_or_newer, "{}", device.id);
        assert_eq!(rates.bf16.is_some(), ampere_or_newer, "{}", device.id);
        assert_eq!(rates.fp8.is_some(), device.compute_capability.sm_version() >= 89, "{}", device.id);
        assert_eq!(rates.fp4.is_some(), device.compute_capability.major >= 10, "{}", device.id);
    }
}

/// Published rates, in 10¹² operations per second, against those computed from the table.
#[test]
fn computed_rates_meet_the_published_ones() {
    let catalogue = catalogue();
    for (name, field, published) in [
        ("v100-16gb", "fp16", 125.0),
        ("t4", "fp16", 65.0),
        ("t4", "int8", 130.0),
        ("rtx-2080-ti", "fp16", 53.8),
        ("rtx-3090", "fp32", 35.6),
        ("rtx-3090", "fp16", 71.0),
        ("rtx-3090", "tf32", 35.6),
        ("rtx-3090", "int8", 284.0),
        ("rtx-a6000", "fp16", 154.8),
        ("rtx-a6000", "tf32", 77.4),
        ("a10", "fp16", 125.0),
        ("a10g", "fp16", 70.0),
        ("a30", "fp16", 165.0),
        ("a40", "bf16", 149.7),
        ("a100-80gb", "fp16", 312.0),
        ("a100-80gb", "tf32", 156.0),
        ("a100-80gb", "fp64", 19.5),
        ("a100-80gb", "int8", 624.0),
        ("l4", "fp16", 121.0),
        ("l4", "fp8", 242.5),
        ("l40", "fp16", 181.0),
        ("l40s", "fp16", 362.0),
        ("l40s", "tf32", 183.0),
        ("l40s", "fp8", 733.0),
        ("rtx-4090", "fp32", 82.6),
        ("rtx-4090", "fp16", 165.2),
        ("rtx-4090", "fp8", 330.3),
        ("rtx-6000-ada", "fp16", 364.2),
        ("h100-sxm", "bf16", 989.4),
        ("h100-nvl", "bf16", 835.5),
        ("rtx-5090", "fp16", 209.5),
        ("rtx-5090", "fp4", 1676.0),
        ("rtx-pro-6000", "fp16", 503.8),
        ("dgx-spark", "fp32", 29.7),
    ] {
        let device = catalogue.find(name).unwrap();
        let rates = serde_json::to_value(device.rates).unwrap();
        let computed = rates[field].as_f64().unwrap();
        assert_near(field, device, computed, published * 1e12, 0.02);
    }
}

#[test]
fn limits_make_sense() {
    for device in catalogue().devices() {
        let sm = &device.sm;
        assert!(sm.max_threads.is_multiple_of(sm.warp_size) && sm.warp_size == 32);
        assert!(sm.max_threads_per_block <= sm.max_threads);
        assert!(sm.registers_per_block <= sm.registers);
        assert!(sm.shared_memory_per_block <= sm.shared_memory_per_block_optin);
        assert!(sm.shared_memory_per_block_optin + sm.reserved_shared_memory_per_block <= sm.shared_memory);
        assert!((10..=200).contains(&device.sm_count), "{}", device.id);
        assert!((1_000_000..=2_700_000).contains(&device.sm_clock_khz), "{}", device.id);
        assert!(device.memory_bus_bits.is_multiple_of(32), "{}", device.id);
        let l2 = device.l2_cache;
        assert!((Bytes::from_mib(1)..=Bytes::from_mib(128)).contains(&l2), "{}", device.id);
        assert!(l2.get().is_multiple_of(1024), "{}", device.id);
        assert_ne!(device.pci_device_id, 0, "{}", device.id);
        match device.host_link.kind {
            HostLinkKind::Pcie { generation, lanes } => {
                assert!((3..=6).contains(&generation) && (lanes == 8 || lanes == 16), "{}", device.id);
            }
            HostLinkKind::NvlinkC2c => assert!(device.id.starts_with("gh") || device.id.starts_with("gb")),
            HostLinkKind::Shared => {
                assert!(device.shares_host_memory());
                assert!(device.host_link.bandwidth < device.memory_bandwidth);
            }
            _ => panic!("{}: a kind of link that this test does not know", device.id),
        }
        assert!((7_000_000_000..=450_000_000_000).contains(&device.host_link.bandwidth), "{}", device.id);
        if let Some(link) = device.peer_link {
            assert!(link.bandwidth < device.memory_bandwidth, "{}", device.id);
        }
        assert_eq!(device.class == Class::Laptop, device.name.contains("Laptop"), "{}", device.id);
    }
}

/// Devices of one product line in the order of their rank: each has at least as much of everything as the
/// previous one.
#[test]
fn variants_rise_with_their_rank() {
    let catalogue = catalogue();
    for line in [
        &[
            "rtx-3060",
            "rtx-3060-ti",
            "rtx-3070",
            "rtx-3070-ti",
            "rtx-3080",
            "rtx-3080-ti",
            "rtx-3090",
            "rtx-3090-ti",
        ][..],
        &[
            "rtx-4060",
            "rtx-4060-ti",
            "rtx-4070",
            "rtx-4070-super",
            "rtx-4070-ti-super",
            "rtx-4080",
            "rtx-4080-super",
            "rtx-4090",
        ],
        &["rtx-4050-laptop", "rtx-4060-laptop", "rtx-4070-laptop", "rtx-4080-laptop", "rtx-4090-laptop"],
        &["rtx-5060-ti", "rtx-5070", "rtx-5070-ti", "rtx-5080", "rtx-5090"],
        &[
            "rtx-2060",
            "rtx-2060-super",
            "rtx-2070",
            "rtx-2070-super",
            "rtx-2080",
            "rtx-2080-super",
            "rtx-2080-ti",
            "titan-rtx",
        ],
        &["l4", "l40", "l40s"],
        &["a2", "a10", "a40"],
        &["a30", "a100-40gb", "a100-80gb", "h100-pcie", "h100-sxm", "h200", "b200", "gb200"],
    ] {
        let cards: Vec<_> = line.iter().map(|name| catalogue.find(name).unwrap()).collect();
        for pair in cards.windows(2) {
            let (lesser, greater) = (pair[0], pair[1]);
            let names = (&lesser.id, &greater.id);
            assert!(lesser.sm_count <= greater.sm_count, "{names:?}");
            assert!(lesser.rates.fp32 <= greater.rates.fp32, "{names:?}");
            assert!(lesser.rates.fp16 <= greater.rates.fp16, "{names:?}");
        }
        let (first, last) = (cards[0], cards[cards.len() - 1]);
        assert!(first.memory < last.memory && first.memory_bandwidth < last.memory_bandwidth);
    }
}

#[test]
fn every_figure_has_a_source() {
    for device in catalogue().devices() {
        let fields = serde_json::to_value(device).unwrap();
        for field in fields.as_object().unwrap().keys() {
            let descriptive =
                ["id", "name", "aliases", "architecture", "class", "sources"].contains(&field.as_str());
            let source = device.source_of(field);
            assert_eq!(source.is_none(), descriptive, "{}: {field}", device.id);
            let text = source.unwrap_or("no figure");
            assert!(text.contains(' ') && !text.contains("provisional"), "{}: {field}: {text}", device.id);
        }
    }
}

/// A mistyped key would be left unresolved, and an uncited reference has lost its device.
#[test]
fn sources_cite_works_that_are_listed() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let table = |path: &std::path::Path| -> toml::Table {
        toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let architectures = table(&folder.join("architectures.toml"));
    let mut unused: HashSet<String> =
        architectures["references"].as_table().unwrap().keys().cloned().collect();
    let listed = unused.clone();
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = table(&entry.unwrap().path());
        let Some(cards) = file.get("card").and_then(toml::Value::as_array) else { continue };
        for card in cards {
            for (key, text) in card["sources"].as_table().unwrap() {
                let cited = text.as_str().unwrap().split(": ").next().unwrap();
                unused.remove(cited);
                assert!(listed.contains(cited) || cited == "derived", "{}: {key}: {cited}", card["id"]);
            }
        }
    }
    assert!(unused.is_empty(), "{unused:?}");
}

/// A source "as that card" must be true.
#[test]
fn derived_memory_equals_its_origin_s() {
    let catalogue = catalogue();
    let mut derived = 0;
    for device in catalogue.devices() {
        if let Some(rest) = device.source_of("memory").unwrap().strip_prefix("derived: as ") {
            let origin = rest.split([',', ';', ' ']).next().unwrap();
            assert_eq!(catalogue.find(origin).unwrap().memory, device.memory, "{}: {origin}", device.id);
            derived += 1;
        }
    }
    assert!(derived > 0);
}

#[test]
fn ids_are_unique_and_found_however_they_are_written() {
    let catalogue = catalogue();
    let mut seen = HashSet::new();
    for device in catalogue.devices() {
        assert!(seen.insert(&device.id), "{}", device.id);
        let spellings = [
            device.id.clone(),
            device.id.to_uppercase(),
            device.id.replace('-', " "),
            device.id.replace('-', ""),
            format!("NVIDIA {}", device.id.replace('-', "_")),
        ];
        for spelling in spellings.iter().chain(&device.aliases) {
            assert_eq!(catalogue.find(spelling).unwrap().id, device.id, "{spelling}");
        }
    }
}

#[track_caller]
fn finds(name: &str, id: &str) {
    assert_eq!(catalogue().find(name).unwrap().id, id, "{name}");
}

#[test]
fn people_s_names_for_cards_are_understood() {
    finds("4090", "rtx-4090");
    finds("NVIDIA GeForce RTX 4090", "rtx-4090");
    finds("GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop");
    finds("Tesla T4", "t4");
    finds("1080ti", "gtx-1080-ti");
    finds("A6000", "rtx-a6000");
    finds("RTX 6000 Ada Generation", "rtx-6000-ada");
    finds("RTX6000 Ada", "rtx-6000-ada");
    finds("NVIDIA A100-SXM4-80GB", "a100-80gb");
    finds("NVIDIA H100 80GB HBM3", "h100-sxm");
    finds("4070 Ti SUPER", "rtx-4070-ti-super");
    finds("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000");
    finds("RTX 4090 24GB", "rtx-4090");
    finds("rtx-3090-24g", "rtx-3090");
    finds("T4 16GB", "t4");
    finds("DGX Spark", "dgx-spark");
    finds("NVIDIA GB10", "dgx-spark");
    finds("RTX 4060 Ti 8GB", "rtx-4060-ti");
    finds("RTX 4060 Ti 16GB", "rtx-4060-ti-16gb");
    finds("RTX 3050", "rtx-3050-6gb");
}

/// A verdict for a bare name must hold for every variant with that name.
#[test]
fn a_shared_name_means_the_variant_with_the_least_memory() {
    let catalogue = catalogue();
    for (name, variants) in [
        ("a100", &["a100-40gb", "a100-80gb", "a100-80gb-pcie"][..]),
        ("v100", &["v100-16gb", "v100-32gb"]),
        ("h100", &["h100-sxm", "h100-pcie", "h100-nvl"]),
        ("gh200", &["gh200", "gh200-144gb"]),
        ("rtx-3080", &["rtx-3080", "rtx-3080-12gb"]),
    ] {
        let meant = catalogue.find(name).unwrap().memory;
        for variant in variants {
            assert!(meant <= catalogue.find(variant).unwrap().memory, "{name}: {variant}");
        }
    }
    let mut by_name: BTreeMap<&str, Vec<&Device>> = BTreeMap::new();
    for device in catalogue.devices() {
        by_name.entry(&device.name).or_default().push(device);
    }
    for (name, devices) in by_name {
        let least = devices.iter().map(|device| device.memory).min().unwrap();
        assert_eq!(catalogue.find(name).unwrap().memory, least, "{name}");
    }
}

#[track_caller]
fn suggests(name: &str, expected: &str) {
    match catalogue().find(name) {
        Err(error @ CatalogueError::UnknownDevice { .. }) => {
            assert!(error.hint().contains(&format!("`{expected}`")), "{name}: {}", error.hint());
            assert_eq!(error.to_string(), format!("no GPU named `{name}` is in the catalogue"));
        }
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn a_name_close_to_a_known_one_gets_a_suggestion() {
    suggests("rtx-4099", "rtx-4090");
    suggests("rtx 409", "rtx-4090");
    suggests("RTX 4070 Tii", "rtx-4070-ti");
    suggests("rtx-4090-48gb", "rtx-4090");
    suggests("h1000", "h100-sxm");
    suggests("a100-80", "a100-80gb");
    suggests("rtx-a600", "rtx-a6000");
    let error = catalogue().find("Voodoo 2").unwrap_err();
    assert_eq!(
        error.hint(),
        "`memfit gpus` lists all GPUs; `--catalogue FILE` adds your own from a TOML file",
        "nothing is like it"
    );
    assert!(catalogue().find("").is_err());
}

proptest::proptest! {
    // Each case reads the whole catalogue, so fewer than the usual 256.
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    #[test]
    fn any_name_is_found_or_refused_without_a_panic(name in "\\PC{0,24}", digits in "[0-9a-z ]{0,12}(g|gb|b)?") {
        let catalogue = catalogue();
        for name in [name, digits] {
            if let Err(error) = catalogue.find(&name) {
                proptest::prop_assert!(!error.hint().is_empty());
            }
        }
    }

    #[test]
    fn any_figures_of_a_user_s_card_are_taken_or_refused_without_a_panic(
        sm_count in proptest::prop_oneof![1_u32..2048, proptest::num::u32::ANY],
        clock in proptest::prop_oneof![1e-9..2e5, proptest::num::f64::ANY],
        memory in proptest::num::i64::ANY,
        link in "(pcie|nvlink)[ -][0-9a-z]{1,10} x?[0-9]{0,11}",
    ) {
        let text = format!(
            "[[card]]\nbased_on = \"t4\"\nid = \"mine\"\nsm_count = {sm_count}\nsm_clock_mhz = {clock:?}\n\
             memory = {memory}\nhost_link = \"{link}\"\n"
        );
        if let Ok(catalogue) = catalogue_with(&text) {
            let card = catalogue.find("mine").unwrap();
            let overhead = card.overhead(13);
            proptest::prop_assert!(overhead.total().low <= overhead.total().high);
        }
    }
}

#[test]
fn a_device_survives_json() {
    for device in catalogue().devices() {
        let text = serde_json::to_string(device).unwrap();
        let back: Device = serde_json::from_str(&text).unwrap();
        assert_eq!(&back, device);
    }
}

#[test]
fn memory_can_be_overridden() {
    let device = catalogue().find("rtx-4090").unwrap().clone().with_memory(Bytes::from_gib(14));
    assert_eq!(device.memory, Bytes::from_gib(14));
    assert_eq!(device.memory_seen.low, device.memory_seen.high);
    assert_eq!(device.source_of("memory"), Some("set by the user"));
    assert_eq!(device.box_memory, Bytes::from_gib(24));
}

fn catalogue_with(text: &str) -> Result<Catalogue, CatalogueError> {
    let mut catalogue = catalogue();
    catalogue.add_user_cards("cards.toml", text)?;
    Ok(catalogue)
}

#[test]
fn a_user_s_card_starts_from_a_known_one() {
    let catalogue = catalogue_with(
        r#"
        [[card]]
        based_on = "4090"
        id = "rtx-4090-48gb"
        name = "NVIDIA GeForce RTX 4090 48GB"
        aliases = ["modded"]
        memory = "47.38 GiB"
        box_memory = "48 GiB"
        sm_clock_mhz = 2400
        sources = { clocks = "nvidia-smi" }
        "#,
    )
    .unwrap();
    let (card, base) = (catalogue.find("modded").unwrap(), catalogue.find("rtx-4090").unwrap());
    assert_eq!(card.id, "rtx-4090-48gb");
    assert_eq!(card.memory.to_string(), "47.38 GiB");
    assert_eq!((card.sm_count, card.sm), (base.sm_count, base.sm));
    assert!(card.rates.fp32 < base.rates.fp32);
    assert_eq!(card.source_of("memory"), Some("cards.toml"));
    assert_eq!(card.source_of("sm_clock_khz"), Some("nvidia-smi"));
    assert_eq!(card.source_of("pci_device_id"), base.source_of("pci_device_id"));
}

#[test]
fn a_user_s_file_is_read_and_may_replace_a_card() {
    let folder = std::env::temp_dir().join(format!("memfit-devices-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("cards.toml");
    std::fs::write(&file, "[[card]]\nbased_on = \"t4\"\nid = \"t4\"\nmemory = \"15102 MiB\"\n").unwrap();
    let catalogue = Catalogue::with_user_file(&file).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let card = catalogue.find("Tesla T4").unwrap();
    assert_eq!(card.memory, Bytes::from_mib(15102));
    assert_eq!(catalogue.devices().iter().filter(|device| device.id == "t4").count(), 1);
    assert!(matches!(Catalogue::with_user_file(&file), Err(CatalogueError::Unreadable { .. })));
}

#[test]
fn a_user_s_mistakes_are_named() {
    for (text, expected) in [
        ("[[card]]\nbased_on = \"t4\"\nid = \"my card\"", "id must be"),
        ("[[card]]\nbased_on = \"t4\"\nid = \"mine\"\nmemroy = \"1GiB\"", "unknown field `memroy`"),
        ("[[card]]\nid = \"mine\"", "missing field"),
        ("[[card]]\nbased_on = \"t4\"\nid = \"mine\"\naliases = [\"4090\"]", "shares a name with `rtx-4090`"),
        ("[[card]]\nbased_on = \"t4\"\nid = \"mine\"\nmemory = \"15\"", "has no unit"),
        ("[[card]]\nbased_on = \"t4\"\nid = \"mine\"\nsm_clock_mhz = -1", "sm_clock_mhz"),
        ("[[card]]\nbased_on = \"t4\"\nid = \"mine\"\nhost_link = \"agp\"", "host_link `agp`"),
        ("[[card]]\nbased_on = \"t4\"\nid = \"mine\"\ncompute_capability = \"2.0\"", "capability 2.0"),
        ("[[card]]\nbased_on = \"t44\"\nid = \"mine\"", "no GPU named `t44`"),
        ("[[crad]]\nid = \"mine\"", "cards.toml"),
        ("id = ", "cards.toml"),
    ] {
        let error = catalogue_with(text).unwrap_err();
        assert!(error.to_string().contains(expected), "{text}: {error}");
        assert!(!error.hint().is_empty());
    }
}
