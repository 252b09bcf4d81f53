//! The families of kernels: which kernels belong to each, what a launch does to the known contents of memory,
//! what it costs, and where the numbers come from.
//!
//! A kernel is described once, from its name: [`Descriptor::new`] takes the first family of [`FAMILIES`] that
//! has it. What follows contents and what estimates durations read the same descriptor.

#![allow(unsafe_code, reason = "the arguments of a launch are addresses that a C caller hands in")]

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
    /// What reports and tests call it.
    pub name: &'static str,
    kernels: Kernels,
    effect: EffectOf,
    cost: CostOf,
    /// Whether the family states how arguments are laid out; if not, the machine code is asked.
    stated_layout: bool,
    /// Where the layout of its arguments and the numbers of its cost come from.
    pub source: &'static str,
}

/// Which kernels belong to a family.
enum Kernels {
    /// Those whose mangled name begins with one of these.
    Prefixed(&'static [&'static str]),
    /// Those whose mangled name has one of these in it.
    Mangled(&'static [&'static str]),
    /// C++ functions of these names.
    Named(&'static [&'static str]),
    /// Functions whose name has one of these in it.
    Containing(&'static [&'static str]),
    /// Those that this accepts.
    Accepted(fn(&Name) -> bool),
}

/// How the effect of a family's kernels is found.
enum EffectOf {
    /// Forgets what the kernel writes: by its signature, by the text that Triton keeps, or else wherever its
    /// arguments lead.
    Writes,
    /// By this; as [`EffectOf::Writes`] where it is `None`.
    Signature(fn(&Signature) -> Option<Effect>),
}

/// How the cost of a family's kernels is found.
enum CostOf {
    /// The same for all of them.
    All(Cost),
    /// By the name, or by the effect where both need the same.
    Each(fn(&Name, &Effect) -> Cost),
}

impl Family {
    fn has(&self, name: &Name) -> bool {
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
            let written = name.text.and_then(|text| triton::written(text, name.mangled));
            return written.map_or(Effect::Anything, Effect::Overwrites);
        };
        let own = match self.effect {
            EffectOf::Writes => None,
            EffectOf::Signature(effect) => effect(signature),
        };
        own.unwrap_or_else(|| match Writes::of(signature) {
            writes if writes.is_nowhere() => Effect::None,
            writes => Effect::Writes(writes),
        })
    }

    fn cost(&self, name: &Name, effect: &Effect) -> Cost {
        match &self.cost {
            CostOf::All(cost) => cost.clone(),
            CostOf::Each(cost) => cost(name, effect),
        }
    }
}

/// What is known of a kernel.
pub struct Descriptor {
    family: &'static Family,
    effect: Effect,
    cost: Cost,
    /// Whether the arguments are laid out as the family says. PyTorch's own kernels are: the tables of the
    /// releases' kernels are checked for it.
    own_layout: bool,
    /// The parameters, as far as the signature tells, for kernels whose machine code is not at hand.
    declared: Option<Vec<Param>>,
    /// What the machine code says, once it was asked for.
    function: OnceLock<Function>,
}

impl Descriptor {
    /// Describes the kernel of a mangled name, of which Triton perhaps kept a text.
    pub fn new(mangled: &str, text: Option<&str>) -> Self {
        let name = Name::new(mangled, text);
        let family = FAMILIES.iter().find(|family| family.has(&name)).unwrap_or(&table::UNKNOWN);
        let effect = family.effect(&name);
        let cost = family.cost(&name, &effect);
        let own_layout = family.stated_layout && name.signature.as_ref().is_some_and(Signature::is_pytorch);
        let sizes = name.signature.as_ref().and_then(Signature::sizes);
        let param = |size| Param { offset: 0, size };
        let declared = sizes.map(|sizes| sizes.into_iter().map(param).collect());
        Self { family, effect, cost, own_layout, declared, function: OnceLock::new() }
    }

    /// The launch, with its arguments read as far as the kernel is known to have them.
    #[inline]
    fn bounded<'l>(&'l self, launch: Launch<'l>) -> Launch<'l> {
        let arguments = launch.arguments;
        let arguments = if self.own_layout {
            // SAFETY: the family is of PyTorch's own kernels, whose layout it states.
            unsafe { arguments.unchecked() }
        } else if let (None, Some(declared)) = (arguments.params(), &self.declared) {
            // SAFETY: the kernel has the parameters of its own signature.
            unsafe { arguments.with_params(declared) }
        } else {
            arguments
        };
        Launch { arguments, ..launch }
    }

    /// The family that the kernel belongs to.
    pub fn family(&self) -> &'static Family {
        self.family
    }

    /// Whether parameters have the sizes that the family's layout gives them; `None` where contents are not
    /// followed through such kernels.
    pub fn fits(&self, params: &[Param]) -> Option<bool> {
        self.effect.fits(params)
    }

    /// Whether a launch leaves all known contents as they are.
    pub fn is_inert(&self) -> bool {
        matches!(self.effect, Effect::None)
    }

    /// Applies a launch to the known contents of memory.
    pub fn apply(&self, launch: Launch) {
        self.effect.apply(self.bounded(launch));
    }

    /// How long a launch takes; `function` gives what the machine code says, which is only asked where it is
    /// needed.
    pub fn work(
        &self,
        launch: Launch,
        prepared: &Prepared,
        speeds: &Speeds,
        function: impl Fn() -> Function,
    ) -> Work {
        let launch = self.bounded(launch);
        self.cost.work(launch, prepared, speeds, || self.function.get_or_init(&function))
    }
}

/// The cost of a kernel over lists of tensors.
fn foreach(name: &Name, _: &Effect) -> Cost {
    name.signature.as_ref().and_then(Foreach::of).map_or(Cost::Unknown, Cost::Foreach)
}

#[cfg(test)]
mod tests;
