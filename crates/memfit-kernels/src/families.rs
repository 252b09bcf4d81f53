//! Families of kernels: the kernels in each, a launch's effect on the known contents of memory, its cost, and
//! the source of the numbers.
//!
//! A kernel is described once, from its name: [`Descriptor::new`] uses the first family of [`FAMILIES`] that
//! contains it. The tracking of contents and the estimates of durations use the same descriptor.

#![allow(unsafe_code, reason = "the arguments of a launch are addresses from a C caller")]

mod table;

use std::sync::OnceLock;

use crate::{
    binary::{Function, Param},
    cost::{
        Prepared, Speeds, Work,
        kernel::{Cost, Foreach},
    },
    launch::Launch,
    name::{Name, Signature},
    triton,
    values::{Effect, Writes},
};
pub use table::FAMILIES;

/// A family of kernels.
pub struct Family {
    /// Name in reports and tests.
    pub name: &'static str,
    kernels: Kernels,
    effect: EffectSource,
    cost: CostSource,
    /// `true` if the family states the layout of the arguments; otherwise it is read from the machine code.
    stated_layout: bool,
    /// Source of its argument layout and of the numbers in its cost.
    pub source: &'static str,
}

/// Selection of a family's kernels.
enum Kernels {
    /// Kernels whose mangled name begins with one of these.
    Prefixed(&'static [&'static str]),
    /// Kernels whose mangled name contains one of these.
    Mangled(&'static [&'static str]),
    /// C++ functions of these names.
    Named(&'static [&'static str]),
    /// Functions whose name contains one of these.
    Containing(&'static [&'static str]),
    /// Kernels that a function accepts.
    Accepted(fn(&Name) -> bool),
}

/// Derivation of a kernel's effect.
enum EffectSource {
    /// Forgets the memory that the kernel writes: found from its signature, from the text that Triton keeps,
    /// or else all memory that its arguments lead to.
    Writes,
    /// Derived from the signature by this function; as [`EffectSource::Writes`] if it returns `None`.
    Signature(fn(&Signature) -> Option<Effect>),
}

/// Derivation of a kernel's cost.
enum CostSource {
    /// The same for all of them.
    All(Cost),
    /// Derived from the name, or from the effect if both need the same analysis.
    Each(fn(&Name, &Effect) -> Cost),
}

impl Family {
    fn contains(&self, name: &Name) -> bool {
        match &self.kernels {
            Kernels::Prefixed(prefixes) => prefixes.iter().any(|prefix| name.mangled.starts_with(prefix)),
            Kernels::Mangled(parts) => parts.iter().any(|part| name.mangled.contains(part)),
            Kernels::Named(names) => {
                name.signature.as_ref().is_some_and(|signature| names.contains(&signature.name()))
            }
            Kernels::Containing(parts) => parts.iter().any(|part| name.function().contains(part)),
            Kernels::Accepted(accept) => accept(name),
        }
    }

    fn effect(&self, name: &Name) -> Effect {
        let Some(signature) = &name.signature else {
            let written = name.text.and_then(|text| triton::written_params(text, name.mangled));
            return written.map_or(Effect::Anything, Effect::Overwrites);
        };
        let own = match self.effect {
            EffectSource::Writes => None,
            EffectSource::Signature(effect) => effect(signature),
        };
        own.unwrap_or_else(|| match Writes::from_signature(signature) {
            writes if writes.is_nowhere() => Effect::None,
            writes => Effect::Writes(writes),
        })
    }

    fn cost(&self, name: &Name, effect: &Effect) -> Cost {
        match &self.cost {
            CostSource::All(cost) => cost.clone(),
            CostSource::Each(cost) => cost(name, effect),
        }
    }
}

/// Description of a kernel.
pub struct Descriptor {
    family: &'static Family,
    effect: Effect,
    cost: Cost,
    /// `true` if the arguments are laid out as the family states. That holds for PyTorch's own kernels: the
    /// tables of the releases' kernels are checked for it.
    own_layout: bool,
    /// Parameters derived from the signature, for kernels whose machine code is unavailable.
    declared: Option<Vec<Param>>,
    /// Description in the machine code; loaded on demand.
    function: OnceLock<Function>,
}

impl Descriptor {
    /// Describes a kernel by its mangled name and the text that Triton may have kept.
    pub fn new(mangled: &str, text: Option<&str>) -> Self {
        let name = Name::new(mangled, text);
        let family = FAMILIES.iter().find(|family| family.contains(&name)).unwrap_or(&table::UNKNOWN);
        let effect = family.effect(&name);
        let cost = family.cost(&name, &effect);
        let own_layout = family.stated_layout && name.signature.as_ref().is_some_and(Signature::is_pytorch);
        let sizes = name.signature.as_ref().and_then(Signature::sizes);
        let param = |size| Param { offset: 0, size };
        let declared = sizes.map(|sizes| sizes.into_iter().map(param).collect());
        Self { family, effect, cost, own_layout, declared, function: OnceLock::new() }
    }

    /// The launch, with its arguments limited to the known parameters of the kernel.
    #[inline]
    fn bound_arguments<'l>(&'l self, launch: Launch<'l>) -> Launch<'l> {
        let arguments = launch.arguments;
        let arguments = if self.own_layout {
            // SAFETY: the family consists of PyTorch's own kernels, whose layout it states.
            unsafe { arguments.unchecked() }
        } else if let (None, Some(declared)) = (arguments.params(), &self.declared) {
            // SAFETY: the kernel has the parameters of its own signature.
            unsafe { arguments.with_params(declared) }
        } else {
            arguments
        };
        Launch { arguments, ..launch }
    }

    /// Family of the kernel.
    pub fn family(&self) -> &'static Family {
        self.family
    }

    /// Returns `true` if parameters have the sizes of the family's layout; `None` if contents are not tracked
    /// through such kernels.
    pub fn fits(&self, params: &[Param]) -> Option<bool> {
        self.effect.fits(params)
    }

    /// Returns `true` if a launch changes no known contents.
    pub fn is_inert(&self) -> bool {
        matches!(self.effect, Effect::None)
    }

    /// Applies a launch to the known contents of memory.
    pub fn apply(&self, launch: Launch) {
        self.effect.apply(self.bound_arguments(launch));
    }

    /// Duration of a launch. `function` returns the machine code's description, and is only called if it is
    /// needed.
    pub fn work(
        &self,
        launch: Launch,
        prepared: &Prepared,
        speeds: &Speeds,
        function: impl Fn() -> Function,
    ) -> Work {
        let launch = self.bound_arguments(launch);
        self.cost.work(launch, prepared, speeds, || self.function.get_or_init(&function))
    }
}

/// Cost of a kernel over lists of tensors.
fn foreach(name: &Name, _: &Effect) -> Cost {
    name.signature.as_ref().and_then(Foreach::from_signature).map_or(Cost::Unknown, Cost::Foreach)
}

#[cfg(test)]
mod tests;
