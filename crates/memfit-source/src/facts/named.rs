//! Items of dictionaries by their literal keys.

use std::sync::Arc;

use super::Value;

/// Maximum number of items that are followed.
const MAX_ITEMS: usize = 16;

/// Items of a dictionary display by their keys, if it has no others.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Named(Arc<[(Arc<str>, Value)]>);

impl Named {
    /// Items with these keys; `None` if there are too many.
    pub(crate) fn new(items: Vec<(Arc<str>, Value)>) -> Option<Self> {
        // Dictionaries in dictionaries are not followed.
        let flat = items.into_iter().map(|(key, item)| (key, Value { named: None, ..item }));
        let items: Arc<[_]> = flat.collect();
        (items.len() <= MAX_ITEMS).then_some(Self(items))
    }

    /// Item with a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| &**known == key).map(|(_, item)| item)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().map(|(_, item)| item)
    }

    /// The same with another item.
    pub(crate) fn with(&self, key: &Arc<str>, item: &Value) -> Option<Self> {
        let others = self.0.iter().filter(|(known, _)| known != key).cloned();
        Self::new(others.chain([(key.clone(), item.clone())]).collect())
    }

    /// The same with each item changed.
    pub(crate) fn map(&self, change: impl Fn(&mut Value)) -> Self {
        let changed = self.0.iter().map(|(key, item)| {
            let mut item = item.clone();
            change(&mut item);
            (key.clone(), item)
        });
        Self(changed.collect())
    }

    /// Join of two control-flow paths; `None` if their keys differ.
    pub(crate) fn either(&self, other: &Self) -> Option<Self> {
        if self.0.len() != other.0.len() {
            return None;
        }
        let joined = self.0.iter().map(|(key, item)| Some((key.clone(), item.either(other.get(key)?))));
        Some(Self(joined.collect::<Option<Vec<_>>>()?.into()))
    }
}
