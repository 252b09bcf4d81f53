//! Models of earlier training runs that are still on the GPU: folds of a cross-validation, trials of a
//! search.

use std::collections::BTreeMap;

use memfit_vocabulary::{Category, Cause, Lever, Phase};

use super::{Finding, size};
use crate::analysis::{Analysis, modelled_fix};
use crate::explanation::Apply;
use crate::origins::Site;
use crate::timeline::Life;

/// Minimum number of live models made by one line, each trained before the next was made. Two may be one that
/// is about to replace the other.
const MIN_MODELS: usize = 3;

pub(super) fn find(analysis: &Analysis<'_>) -> Option<Finding> {
    let timeline = &analysis.timeline;
    timeline.trouble.requested?;
    // Each optimizer counts its own steps, and every model has another: phases tell them apart.
    let optimizers = timeline.phases.iter().filter(|(_, phase)| *phase == Phase::Optimizer);
    let trained: Vec<u32> = optimizers.map(|(began, _)| *began).collect();
    // By line, and by the optimizer phases before its model was made: the first block of each model.
    let mut made: BTreeMap<Site, BTreeMap<usize, &Life>> = BTreeMap::new();
    for life in timeline.live().filter(|life| life.category == Category::Parameters) {
        if let Some(site) = timeline.origins.get(life.block.stack).site() {
            let before = trained.partition_point(|began| *began <= life.block.born);
            made.entry(site).or_default().entry(before).or_insert(life);
        }
    }
    let models = made.into_values().max_by_key(BTreeMap::len).filter(|models| models.len() >= MIN_MODELS)?;
    let (first, last) = (models.first_key_value()?.1, models.last_key_value()?.1);
    // Memory allocated for the earlier ones, up to the moment when the newest was made.
    let earlier = |life: &Life| {
        let kept = life.stays() || life.category == Category::Gradients;
        kept && (first.block.born..last.block.born).contains(&life.block.born)
    };
    let bytes = timeline.sum(earlier);
    let text = format!(
        "{} models made by this line are still on the GPU, each from an earlier training run; the earlier {} hold {} with their gradients and optimizer state",
        models.len(),
        models.len() - 1,
        size(bytes)
    );
    let how = "free each model before the next one is made: keep its score, or its `state_dict()` moved to the host, and no reference to the model or its optimizer (`del model, optimizer`)";
    let fix = modelled_fix(analysis, Lever::KeepOnCpu, bytes, how.to_owned(), Apply::ByHand(None));
    Some(Finding {
        cause: Cause::Leaking,
        bytes,
        enough: analysis.enough(bytes) == Some(true) && bytes * 4 >= timeline.trouble.allocated,
        facts: vec![analysis.fact(text, bytes, Some(last.block.stack))],
        fixes: vec![fix],
    })
}
