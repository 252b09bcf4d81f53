//! Parameters on whose truth it depends whether a function performs an operation: `if visualise: model(x)`.

use super::{Frame, Walker};
use crate::facts::{FunctionId, Op};
use crate::project::Switch;

impl Walker<'_> {
    /// Parameters that decide whether a function performs an operation.
    pub(super) fn switches(&self, id: FunctionId, frame: &Frame<'_>, op: &Op) -> Vec<Switch> {
        let around = self.facts.guards_of(op.site.guard).take(8).map(|guard| self.facts.guard(guard));
        let tested = around.filter_map(|guard| {
            let (parameter, is_same) = self.tested_parameter(frame, self.slice(guard.test))?;
            Some((parameter, is_same != guard.negated))
        });
        tested
            .chain(op.switches.iter().copied())
            .map(|(parameter, runs)| Switch { parameter, runs, default: self.default_truth(id, parameter) })
            .collect()
    }

    /// Parameter whose truth a condition tests, and `false` if it tests for the opposite.
    pub(super) fn tested_parameter(&self, frame: &Frame<'_>, test: &str) -> Option<(usize, bool)> {
        let test = test.trim_matches(['(', ')', ' ']);
        let (name, is_same) = test.strip_prefix("not ").map_or((test, true), |name| (name.trim(), false));
        let parameters = &self.facts.function(frame.function).parameters;
        let index = parameters.iter().position(|parameter| parameter == name)?;
        (!frame.env.is_own(name)).then_some((index, is_same))
    }

    /// Truth of a parameter's default, if that is a literal.
    fn default_truth(&self, id: FunctionId, parameter: usize) -> Option<bool> {
        let name = self.facts.function(id).parameters.get(parameter)?;
        let node = self.definitions.functions[id.index()].node?;
        let mut all = node.parameters.iter_non_variadic_params();
        let own = all.find(|own| own.parameter.name.id.as_str() == name)?;
        match self.slice(super::span(own.default()?)) {
            "False" | "None" | "0" => Some(false),
            "True" | "1" => Some(true),
            _ => None,
        }
    }
}
