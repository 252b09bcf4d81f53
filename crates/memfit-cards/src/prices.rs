//! The price file: offers of GPUs, with vendors' names as free text.

use std::path::{Path, PathBuf};

use memfit_devices::{Catalogue, CatalogueError};
use serde::Deserialize;

/// Offers read from a price file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// The currency of all prices.
    pub currency: String,
    #[serde(rename = "offer", default)]
    offers: Vec<Offer>,
}

/// A machine for rent.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// The GPU's name.
    pub gpu: String,
    /// Cards in the machine.
    #[serde(default = "one")]
    pub cards: u32,
    /// Per hour, for the whole machine.
    pub per_hour: f64,
    /// Vendor that rents it out.
    #[serde(default)]
    pub vendor: String,
    /// Vendor's name for it.
    #[serde(default)]
    pub instance: String,
}

const fn one() -> u32 {
    1
}

/// The price file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum PricesError {
    /// Unreadable.
    #[error("the price file `{}` cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Reason.
        source: std::io::Error,
    },
    /// Content is not a valid price file.
    #[error("the price file `{}` is not valid: {why}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Description of the error.
        why: String,
    },
    /// An offer names an unknown GPU.
    #[error("the price file `{}` has an offer for an unknown GPU: {source}", path.display())]
    UnknownGpu {
        /// The file.
        path: PathBuf,
        /// The name, with similar ones.
        source: CatalogueError,
    },
}

impl Prices {
    /// Reads a price file, and resolves the names of its GPUs to those of the catalogue.
    pub fn read(path: &Path, catalogue: &Catalogue) -> Result<Self, PricesError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| PricesError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(&text, path, catalogue)
    }

    pub(crate) fn parse(text: &str, path: &Path, catalogue: &Catalogue) -> Result<Self, PricesError> {
        let invalid = |why| PricesError::Invalid { path: path.to_owned(), why };
        let mut prices: Self =
            toml::from_str(text).map_err(|error| invalid(error.to_string().trim().to_owned()))?;
        for offer in &mut prices.offers {
            if !(offer.per_hour.is_finite() && offer.per_hour >= 0.0) {
                return Err(invalid(format!(
                    "`per_hour = {}` of `{}` is not a price",
                    offer.per_hour, offer.gpu
                )));
            }
            if offer.cards == 0 {
                return Err(invalid(format!("an offer of `{}` has no GPUs", offer.gpu)));
            }
            let found = catalogue.find(&offer.gpu);
            let found = found.map_err(|source| PricesError::UnknownGpu { path: path.to_owned(), source })?;
            offer.gpu = found.id.clone();
        }
        Ok(prices)
    }

    /// The cheapest machine with at least `count` of these GPUs; the price includes all of its GPUs.
    pub fn cheapest(&self, gpu: &str, count: u32) -> Option<&Offer> {
        let enough = |offer: &&Offer| offer.gpu == gpu && offer.cards >= count;
        self.offers.iter().filter(enough).min_by(|a, b| a.per_hour.total_cmp(&b.per_hour))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Prices, String> {
        Prices::parse(text, Path::new("prices.toml"), &Catalogue::builtin().unwrap())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_cheapest_machine_with_enough_cards_is_taken() {
        let prices = parse(
            "currency = 'EUR'\n\
             [[offer]]\ngpu = 'RTX 4090'\nper_hour = 0.6\nvendor = 'one'\n\
             [[offer]]\ngpu = 'rtx-4090'\nper_hour = 0.5\nvendor = 'two'\n\
             [[offer]]\ngpu = 'rtx-4090'\ncards = 4\nper_hour = 2.2\nvendor = 'two'",
        )
        .unwrap();
        let vendor =
            |count| prices.cheapest("rtx-4090", count).map(|offer| (offer.vendor.as_str(), offer.cards));
        assert_eq!(vendor(1), Some(("two", 1)));
        assert_eq!(vendor(2), Some(("two", 4)), "a machine is rented whole");
        assert_eq!(vendor(8), None);
        assert_eq!(prices.cheapest("t4", 1), None);
    }

    #[test]
    fn a_mistake_in_the_file_is_named() {
        for (text, named) in [
            ("", "currency"),
            ("currency = 'EUR'\n[[offer]]\ngpu = 'rtx-9999'\nper_hour = 1", "rtx-9999"),
            ("currency = 'EUR'\n[[offer]]\ngpu = 't4'\nper_hour = -1", "per_hour"),
            ("currency = 'EUR'\n[[offer]]\ngpu = 't4'\nper_hour = 1\ncards = 0", "no GPUs"),
            ("currency = 'EUR'\n[[offer]]\ngpu = 't4'\nper_hour = 1\nprice = 1", "price"),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(named), "{why}");
        }
    }
}
