//! The runs that verdicts still need, and which of them are made next.

use memfit_devices::{ComputeCapability, Device};

use crate::replay::Site;

/// A run that a verdict still needs.
#[derive(Clone, Debug)]
pub(crate) enum Need {
    /// An architecture's representative with unlimited memory.
    Representative(ComputeCapability),
    /// The GPU of an architecture with the fewest multiprocessors, with unlimited memory.
    Fewest {
        /// The architecture.
        capability: ComputeCapability,
        /// The GPU's multiprocessors.
        sm_count: u32,
        /// Digest of the allocator calls of the representative.
        path: Option<u64>,
    },
    /// The GPU itself.
    Run(Box<Device>),
    /// The GPU itself, or another one on which memory runs out in the same part of the training.
    Unseen(Site, Box<Device>),
    /// GPUs of the architecture with at least and with at most this GPU's memory; the number is the bytes
    /// that its allocator can get.
    Between(u64, Box<Device>),
}

impl Need {
    /// Returns `true` for a run with unlimited memory.
    pub(crate) const fn is_unlimited(&self) -> bool {
        matches!(self, Self::Representative(_) | Self::Fewest { .. })
    }

    fn capability(&self) -> ComputeCapability {
        match self {
            Self::Representative(capability) | Self::Fewest { capability, .. } => *capability,
            Self::Run(device) | Self::Unseen(_, device) | Self::Between(_, device) => {
                device.compute_capability
            }
        }
    }
}

/// Chooses the runs to make next: those that no other needed run could make unnecessary. `tried` has the
/// bytes that the allocator could get on GPUs that were run.
pub(crate) fn chosen(needs: Vec<Need>, tried: &[(ComputeCapability, u64)]) -> Vec<Need> {
    let mut chosen: Vec<Need> = Vec::new();
    let mut groups: Vec<Vec<(u64, Need)>> = Vec::new();
    for need in needs {
        match &need {
            Need::Run(_) => chosen.push(need),
            Need::Representative(capability) => {
                if !chosen.iter().any(|other| {
                    matches!(other, Need::Representative(_)) && other.capability() == *capability
                }) {
                    chosen.push(need);
                }
            }
            // The behaviour belongs to the script, so one GPU is enough to observe it.
            Need::Unseen(site, _) => {
                if !chosen.iter().any(|other| matches!(other, Need::Unseen(known, _) if known == site)) {
                    chosen.push(need);
                }
            }
            // Of architectures with the same kernels, the one with the widest range represents the others.
            Need::Fewest { capability, sm_count, path } => {
                let of_same = chosen.iter().position(|other| match other {
                    Need::Fewest { capability: other, path: known, .. } => {
                        other == capability || (path.is_some() && known == path)
                    }
                    _ => false,
                });
                match of_same {
                    None => chosen.push(need),
                    Some(place) => {
                        if matches!(&chosen[place], Need::Fewest { sm_count: known, .. } if sm_count < known)
                        {
                            chosen[place] = need;
                        }
                    }
                }
            }
            Need::Between(limit, _) => {
                let limit = *limit;
                let capability = need.capability();
                // Index of the gap between runs into which it falls.
                let rank = |limit: u64| {
                    tried.iter().filter(|(other, at)| *other == capability && *at < limit).count()
                };
                let group = groups.iter_mut().find(|group| {
                    let (at, first) = &group[0];
                    first.capability() == capability && rank(*at) == rank(limit)
                });
                match group {
                    Some(group) => group.push((limit, need)),
                    None => groups.push(vec![(limit, need)]),
                }
            }
        }
    }
    for mut group in groups {
        group.sort_by_key(|(limit, _)| *limit);
        let capability = group[0].1.capability();
        let of_it = || tried.iter().filter(|(other, _)| *other == capability).map(|(_, limit)| *limit);
        let (lowest, highest) = (group[0].0, group[group.len() - 1].0);
        let has_below = of_it().any(|limit| limit <= lowest);
        let has_above = of_it().any(|limit| limit >= highest);
        let mut places = Vec::new();
        if has_below && has_above {
            places.push(group.len() / 2);
        } else {
            places.extend((!has_below).then_some(0));
            places.extend((!has_above).then_some(group.len() - 1));
            places.dedup();
        }
        chosen.extend(places.into_iter().map(|place| group[place].1.clone()));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use memfit_devices::Catalogue;
    use memfit_vocabulary::Phase;

    use super::*;

    fn device(name: &str) -> Box<Device> {
        Box::new(Catalogue::builtin().unwrap().find(name).unwrap().clone())
    }

    fn names(needs: &[Need]) -> Vec<String> {
        needs
            .iter()
            .map(|need| match need {
                Need::Run(device) | Need::Unseen(_, device) | Need::Between(_, device) => device.id.clone(),
                Need::Representative(capability) | Need::Fewest { capability, .. } => capability.to_string(),
            })
            .collect()
    }

    #[test]
    fn one_run_of_those_that_tell_the_same_is_made() {
        let ada = device("l4").compute_capability;
        let ampere = device("a2").compute_capability;
        let site = Site::new(false, Phase::Forward);
        let fewest = |capability, sm_count, path| Need::Fewest { capability, sm_count, path };
        let needs = vec![
            Need::Representative(ada),
            Need::Representative(ada),
            Need::Unseen(site, device("l4")),
            Need::Unseen(site, device("a2")),
            Need::Unseen(Site::new(true, Phase::Forward), device("t4")),
            Need::Run(device("l40s")),
        ];
        assert_eq!(names(&chosen(needs, &[])), ["8.9", "l4", "t4", "l40s"]);
        let same = vec![fewest(ada, 20, Some(7)), fewest(ampere, 10, Some(7))];
        assert_eq!(names(&chosen(same, &[])), ["8.6"], "the one with the fewest multiprocessors");
        let apart = vec![fewest(ada, 20, Some(7)), fewest(ampere, 10, Some(8)), fewest(ada, 20, Some(7))];
        assert_eq!(names(&chosen(apart, &[])), ["8.9", "8.6"]);
        let unknown = vec![fewest(ada, 20, None), fewest(ampere, 10, None)];
        assert_eq!(names(&chosen(unknown, &[])), ["8.9", "8.6"]);
    }

    #[test]
    fn runs_close_in_on_the_gpus_between_them() {
        let ada = device("l4").compute_capability;
        let cards = ["rtx-4050-laptop", "rtx-4060", "rtx-4070", "rtx-4080", "rtx-4090"];
        let needs = || {
            (1..).zip(cards).map(|(limit, name)| Need::Between(limit * 10, device(name))).collect::<Vec<_>>()
        };
        assert_eq!(names(&chosen(needs(), &[])), ["rtx-4050-laptop", "rtx-4090"], "the ends first");
        let ends = [(ada, 10), (ada, 50)];
        assert_eq!(names(&chosen(needs()[1..4].to_vec(), &ends)), ["rtx-4070"], "then the middle");
        let more = [(ada, 10), (ada, 30), (ada, 50)];
        let left = [needs()[1].clone(), needs()[3].clone()];
        assert_eq!(names(&chosen(left.to_vec(), &more)), ["rtx-4060", "rtx-4080"], "on both sides of a run");
        let of_another = [(device("a2").compute_capability, 10)];
        assert_eq!(names(&chosen(needs()[..1].to_vec(), &of_another)), ["rtx-4050-laptop"]);
    }
}
