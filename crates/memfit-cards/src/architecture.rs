//! GPUs on which a script makes the same allocations, as far as they depend on the hardware.

use memfit_devices::{ComputeCapability, Device};

/// The GPUs of one compute capability.
///
/// PyTorch and its libraries choose kernels, and thereby workspaces, by the compute capability. The number of
/// multiprocessors affects the size of a few workspaces, too. The representative has the most of them, so its
/// requests are the largest; [`crate::Judge`] also runs the GPUs for which that difference could matter.
#[derive(Clone, Debug)]
pub struct Architecture {
    /// The compute capability.
    pub capability: ComputeCapability,
    /// The GPUs, the representative first.
    pub cards: Vec<Device>,
}

impl Architecture {
    /// The GPU that runs on behalf of all of them.
    pub fn representative(&self) -> &Device {
        &self.cards[0]
    }

    /// Index of a GPU among them.
    pub fn place(&self, device: &Device) -> Option<usize> {
        self.cards.iter().position(|card| card.id == device.id)
    }
}

/// The architectures of these GPUs, in the order in which they first appear.
pub fn architectures(devices: &[Device]) -> Vec<Architecture> {
    let mut found: Vec<Architecture> = Vec::new();
    for device in devices {
        let capability = device.compute_capability;
        match found.iter_mut().find(|known| known.capability == capability) {
            Some(known) => known.cards.push(device.clone()),
            None => found.push(Architecture { capability, cards: vec![device.clone()] }),
        }
    }
    for architecture in &mut found {
        let most = (0..architecture.cards.len()).rev().max_by_key(|place| {
            let card = &architecture.cards[*place];
            (card.sm_count, card.memory)
        });
        architecture.cards.swap(0, most.unwrap_or(0));
    }
    found
}

/// The architectures of these GPUs, those with most GPUs first: very old and very new ones are the likeliest
/// to lack kernels in this torch.
pub(crate) fn largest_first(devices: &[Device]) -> Vec<Architecture> {
    let mut all = architectures(devices);
    all.sort_by_key(|architecture| std::cmp::Reverse(architecture.cards.len()));
    all
}

#[cfg(test)]
mod tests {
    use memfit_devices::Catalogue;

    use super::*;

    #[test]
    fn every_card_is_in_one_architecture_and_the_largest_stands_for_it() {
        let catalogue = Catalogue::builtin().unwrap();
        let found = architectures(catalogue.devices());
        let cards: usize = found.iter().map(|architecture| architecture.cards.len()).sum();
        assert_eq!(cards, catalogue.devices().len());
        assert!(found.len() < 15, "{} runs would be needed", found.len());
        for architecture in &found {
            let most = architecture.representative().sm_count;
            for card in &architecture.cards {
                assert_eq!(card.compute_capability, architecture.capability);
                assert!(card.sm_count <= most, "{}", card.id);
                assert!(architecture.place(card).is_some());
            }
        }
    }
}
