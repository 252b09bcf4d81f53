//! Compatibility of compiled kernels with a device's architecture.

/// Architecture that an image was compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Ten times the major version plus the minor: 86 for `sm_86`.
    pub version: u32,
    scope: Scope,
}

/// Devices of its generation that machine code runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// The named architecture, and those with the same major and a greater minor version.
    Generation,
    /// `sm_100f`: only the family of the named architecture. So far, all families are a generation's later
    /// devices.
    Family,
    /// `sm_90a`: only the named architecture.
    Exact,
}

impl Target {
    /// Creates a target from the version and the flags in a fat binary's entry.
    pub fn new(version: u32, flags: u64) -> Self {
        let scope = match flags {
            flags if flags & 0x10_0000 != 0 => Scope::Exact,
            flags if flags & 0x20_0000 != 0 => Scope::Family,
            _ => Scope::Generation,
        };
        Self { version, scope }
    }

    /// Returns `true` if a device of compute capability `device` (89 for 8.9) runs machine code for this
    /// target.
    pub fn runs_on(self, device: u32) -> bool {
        match self.scope {
            Scope::Exact => self.version == device,
            Scope::Family | Scope::Generation => self.version / 10 == device / 10 && self.version <= device,
        }
    }

    /// Returns `true` if the driver can compile PTX for this target for the device.
    pub fn compiles_for(self, device: u32) -> bool {
        match self.scope {
            Scope::Exact => self.version == device,
            Scope::Family => self.version / 10 == device / 10 && self.version <= device,
            Scope::Generation => self.version <= device,
        }
    }

    /// Sort key among the targets that a device runs: the driver takes the greatest.
    pub fn preference(self) -> (u32, u8) {
        let scope = match self.scope {
            Scope::Generation => 0,
            Scope::Family => 1,
            Scope::Exact => 2,
        };
        (self.version, scope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXACT: u64 = 0x10_0000;
    const FAMILY: u64 = 0x20_0000;

    #[test]
    fn machine_code_runs_within_its_generation() {
        for (target, flags, device, runs) in [
            (86, 0, 89, true),
            (80, 0, 89, true),
            (86, 0, 80, false),
            (75, 0, 61, false),
            (75, 0, 89, false),
            (90, 0, 90, true),
            (90, EXACT, 90, true),
            (100, EXACT, 103, false),
            (100, FAMILY, 103, true),
            (100, 0, 103, true),
            (100, 0, 120, false),
            (120, 0, 121, true),
            (120, FAMILY, 100, false),
        ] {
            assert_eq!(Target::new(target, flags).runs_on(device), runs, "{target} {flags:#x} on {device}");
        }
    }

    #[test]
    fn assembly_compiles_for_every_later_card_unless_it_is_bound_to_one() {
        assert!(Target::new(52, 0).compiles_for(120));
        assert!(!Target::new(90, 0).compiles_for(89));
        assert!(!Target::new(90, EXACT).compiles_for(100));
        assert!(!Target::new(100, FAMILY).compiles_for(120));
    }

    #[test]
    fn the_most_specific_architecture_is_preferred() {
        assert!(Target::new(90, EXACT).preference() > Target::new(90, 0).preference());
        assert!(Target::new(90, 0).preference() > Target::new(80, EXACT).preference());
    }
}
