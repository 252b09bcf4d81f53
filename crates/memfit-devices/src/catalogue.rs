//! The catalogue: the built-in devices, the user's own, and look-up by name.

use std::collections::HashMap;
use std::path::Path;

use crate::calibration::Calibration;
use crate::device::Device;
use crate::error::CatalogueError;
use crate::raw::{Architectures, Card};

const ARCHITECTURES: &str = include_str!("../data/architectures.toml");
const CARDS: &[(&str, &str)] = &[
    ("pascal-to-turing.toml", include_str!("../data/pascal-to-turing.toml")),
    ("ampere.toml", include_str!("../data/ampere.toml")),
    ("ada.toml", include_str!("../data/ada.toml")),
    ("hopper-to-blackwell.toml", include_str!("../data/hopper-to-blackwell.toml")),
];

/// All known devices, in the order of the data files and then the user's.
#[derive(Debug)]
pub struct Catalogue {
    architectures: Architectures,
    /// Each entry as written, for `based_on`.
    written: HashMap<String, toml::Table>,
    devices: Vec<Device>,
    /// Index in `devices` by the folded form of each name.
    names: HashMap<String, usize>,
}

impl Catalogue {
    /// Loads the built-in devices.
    pub fn builtin() -> Result<Self, CatalogueError> {
        let architectures = toml::from_str(ARCHITECTURES)
            .map_err(|error| CatalogueError::syntax("architectures.toml", error))?;
        let mut catalogue =
            Self { architectures, written: HashMap::new(), devices: Vec::new(), names: HashMap::new() };
        for (file, text) in CARDS {
            catalogue.add(file, text)?;
        }
        Ok(catalogue)
    }

    /// Loads the built-in devices and those of a user's TOML file; a known `id` there replaces the built-in
    /// device.
    pub fn with_user_file(path: &Path) -> Result<Self, CatalogueError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| CatalogueError::Unreadable { file: path.to_owned(), source: error })?;
        let mut catalogue = Self::builtin()?;
        catalogue.add_user_cards(&path.display().to_string(), &text)?;
        Ok(catalogue)
    }

    /// Adds the devices of a TOML text; `file` names it in errors and sources.
    ///
    /// Each `[[card]]` gives all fields, or `based_on = "rtx-4090"` and those that differ. The source of a
    /// given field is the file, unless the entry says otherwise under `sources`.
    pub fn add_user_cards(&mut self, file: &str, text: &str) -> Result<(), CatalogueError> {
        self.add(file, text)
    }

    /// Replaces a device's figures with measurements. Returns `false` if there is no such device.
    pub fn calibrate(&mut self, calibration: &Calibration) -> bool {
        let known = self.devices.iter_mut().find(|device| device.id == calibration.card.id);
        let Some(device) = known else { return false };
        *device = device.clone().calibrated(calibration);
        true
    }

    /// All devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Finds a device by its id, the driver's name for it or an alias. Ignores case, spaces and punctuation;
    /// words like "NVIDIA", "GeForce", "Tesla" or "RTX" are optional, and so is the memory size on its box
    /// ("RTX 4090 24GB").
    ///
    /// A name shared by several variants means the one with the least memory: a script that fits there fits
    /// on the others.
    pub fn find(&self, name: &str) -> Result<&Device, CatalogueError> {
        let wanted = keys(name);
        let plain = wanted.iter().find_map(|key| self.names.get(key).map(|&index| &self.devices[index]));
        if let Some(device) = plain.or_else(|| wanted.iter().find_map(|key| self.find_sized(key))) {
            return Ok(device);
        }
        Err(CatalogueError::UnknownDevice { name: name.to_owned(), suggestions: self.suggestions(name) })
    }

    /// Finds a device by a name that ends with its memory size ("rtx409024gb"), if it has that much.
    fn find_sized(&self, key: &str) -> Option<&Device> {
        let digits_end = key.trim_end_matches('b').strip_suffix('g')?;
        let rest = digits_end.trim_end_matches(|c: char| c.is_ascii_digit());
        // Digits of the size may touch digits of the name: try each split.
        (rest.len()..digits_end.len()).find_map(|cut| {
            let (card, size) = digits_end.split_at(cut);
            let device = &self.devices[*self.names.get(card)?];
            let box_gib = device.box_memory.get() >> 30;
            (size.parse() == Ok(box_gib)).then_some(device)
        })
    }

    fn add(&mut self, file: &str, text: &str) -> Result<(), CatalogueError> {
        let tables = card_tables(file, text)?;
        for table in tables {
            self.add_card(file, table)?;
        }
        Ok(())
    }

    fn add_card(&mut self, file: &str, mut table: toml::Table) -> Result<(), CatalogueError> {
        let id = table.get("id").and_then(toml::Value::as_str).unwrap_or("(no id)").to_owned();
        let invalid = |problem: String| CatalogueError::InvalidCard {
            file: file.to_owned(),
            card: id.clone(),
            problem,
        };
        if let Some(base) = table.remove("based_on") {
            let base =
                base.as_str().ok_or_else(|| invalid("based_on is not the name of a GPU".to_owned()))?;
            let base = self.find(base)?.id.clone();
            table = derive(&self.written[&base], table, file);
        }
        let card: Card =
            table.clone().try_into().map_err(|error: toml::de::Error| invalid(error.message().to_owned()))?;
        if !is_slug(&card.id) {
            return Err(invalid("id must be lower-case letters, digits and hyphens".to_owned()));
        }
        let device = card.resolve(&self.architectures).map_err(invalid)?;
        self.register(file, device, table)
    }

    fn register(&mut self, file: &str, device: Device, table: toml::Table) -> Result<(), CatalogueError> {
        let index = self.devices.iter().position(|known| known.id == device.id).unwrap_or(self.devices.len());
        let own = std::iter::once(&device.id).chain(&device.aliases);
        let mut new_keys: Vec<String> = own.flat_map(|name| keys(name)).collect();
        let is_taken = |key: &String| self.names.get(key).is_some_and(|&place| place != index);
        if let Some(key) = new_keys.iter().find(|key| is_taken(key)) {
            return Err(CatalogueError::InvalidCard {
                file: file.to_owned(),
                problem: format!("it shares a name with `{}`", self.devices[self.names[key]].id),
                card: device.id,
            });
        }
        // Variants with more memory report the same name as their smaller sibling, which comes first and
        // keeps it.
        new_keys.extend(keys(&device.name).into_iter().filter(|key| !is_taken(key)));
        self.names.retain(|_, place| *place != index);
        self.names.extend(new_keys.into_iter().map(|key| (key, index)));
        self.written.insert(device.id.clone(), table);
        if index == self.devices.len() {
            self.devices.push(device);
        } else {
            self.devices[index] = device;
        }
        Ok(())
    }

    /// Returns up to three ids whose names are most similar to the given one.
    fn suggestions(&self, name: &str) -> Vec<String> {
        const MIN_SIMILARITY: f64 = 0.7;
        let wanted = keys(name);
        // "rtx-4090-48gb" means a 4090, though by edit distance it is as close to other names with a size.
        let has_size = name.trim_end().to_ascii_lowercase().trim_end_matches('b').ends_with('g');
        let alike = |key: &str, known: &str| {
            if has_size && known.len() >= 4 && key.starts_with(known) {
                return 1.0;
            }
            strsim::normalized_damerau_levenshtein(key, known)
        };
        let score = |known: &str| wanted.iter().map(|key| alike(key, known)).fold(0.0, f64::max);
        let mut best: HashMap<usize, f64> = HashMap::new();
        for (key, &index) in &self.names {
            let entry = best.entry(index).or_default();
            *entry = entry.max(score(key));
        }
        let mut ranked: Vec<_> = best.into_iter().filter(|(_, score)| *score >= MIN_SIMILARITY).collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        ranked.into_iter().take(3).map(|(index, _)| self.devices[index].id.clone()).collect()
    }
}

fn card_tables(file: &str, text: &str) -> Result<Vec<toml::Table>, CatalogueError> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[serde(default)]
        card: Vec<toml::Table>,
    }
    toml::from_str::<File>(text).map(|file| file.card).map_err(|error| CatalogueError::syntax(file, error))
}

/// Overrides the base with the fields that an entry gives. Names are not inherited, nor is the base's range
/// of observed memory sizes if the entry has its own memory.
fn derive(base: &toml::Table, over: toml::Table, file: &str) -> toml::Table {
    let mut derived = base.clone();
    derived.remove("aliases");
    if over.contains_key("memory") {
        derived.remove("memory_seen");
    }
    let mut sources = match derived.remove("sources") {
        Some(toml::Value::Table(sources)) => sources,
        _ => toml::Table::new(),
    };
    for field in over.keys() {
        if let Some(key) = crate::device::source_key(field.trim_end_matches("_mhz").trim_end_matches("_gbps"))
        {
            sources.insert(key.to_owned(), toml::Value::String(file.to_owned()));
        }
    }
    for (field, value) in over {
        match (field.as_str(), value) {
            ("sources", toml::Value::Table(given)) => sources.extend(given),
            (_, value) => {
                derived.insert(field, value);
            }
        }
    }
    derived.insert("sources".to_owned(), toml::Value::Table(sources));
    derived
}

fn is_slug(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Normalised forms of a name for look-up: without the maker's words, and also without the product line's
/// ("RTX", "GTX"), so that "4090" is enough.
fn keys(name: &str) -> Vec<String> {
    const MAKERS: [&str; 6] = ["nvidia", "geforce", "tesla", "quadro", "gpu", "generation"];
    let mut folded: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    for word in MAKERS {
        folded = folded.replace(word, "");
    }
    let short = folded.strip_prefix("rtx").or_else(|| folded.strip_prefix("gtx")).map(str::to_owned);
    std::iter::once(folded).chain(short).filter(|key| !key.is_empty()).collect()
}
