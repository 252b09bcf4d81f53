//! Calls of models and loss functions.

use std::sync::Arc;

use ruff_python_ast::Expr;

use super::Walker;
use super::definitions::dotted;
use super::library_calls::CallResult;
use crate::facts::{Argument, Call, Criterion, Device, Flags, Grad, Graph, Kind, OpKind, Value};
use crate::project::Summary;

/// Operations for which rules check whether they are the last on an output.
pub(super) const LAST_OPERATIONS: Flags = Flags::SOFTMAX.union(Flags::SIGMOID).union(Flags::LOG_SOFTMAX);

impl<'a> Walker<'a> {
    pub(super) fn call_module(&mut self, call: &Call, module: &Value) -> Value {
        let receiver = self.slice(call.callee);
        let weights = self.weights_of(receiver, module);
        self.op(OpKind::Forward, call.span, receiver, weights.clone());
        self.record_model_arguments(call, module);
        // What may have been cut off is skipped.
        let inputs = call
            .arguments
            .iter()
            .map(|argument| argument.value.graph.uncut())
            .fold(Graph::none(), |all, graph| all.union(&graph));
        let hidden = call.arguments.iter().any(|argument| argument.value.graph.unknown);
        let weights = if hidden { weights.with_unknown_owners() } else { weights };
        let (graph, flags) = if module.is(Flags::FROZEN) && self.frame.grad == Grad::On {
            // Gradients are recorded if anything that remains is trainable.
            if let Some(op) = self.frame.ops.last_mut().filter(|op| op.span == call.span) {
                op.site.grad = Grad::Unknown;
            }
            (Graph::unknown().union(&inputs), Flags::NONE)
        } else {
            self.forward(&inputs, weights)
        };
        if let Some(op) = self.frame.ops.last_mut().filter(|op| op.span == call.span) {
            op.graph = graph.clone();
        }
        let device = if module.device == Device::Unknown {
            // A wrapper such as `DataParallel` moves the batch itself.
            let given = call.arguments.first().map_or(Device::Unknown, |argument| argument.value.device);
            // A model is where its inputs are.
            let name = receiver.strip_suffix(".forward").unwrap_or(receiver);
            if given.is_gpu()
                && let Some(binding) = self.frame.env.get(name)
            {
                let mut binding = binding.clone();
                binding.value.device = given;
                self.frame.env.set(name, binding);
            }
            if given == Device::Cpu { Device::Unknown } else { given }
        } else {
            module.device
        };
        // Last operation of the model's own `forward`.
        let forward = module.class.and_then(|class| self.method_of(class, "forward", 0));
        let mut last = forward.and_then(|id| self.summary(id));
        if last.is_none() {
            let mut models = module.weights.owners().iter().rev();
            let path = models.find_map(|id| self.facts.models[id.index()].class_path.clone());
            last = path.and_then(|path| self.method_there(&path, "forward"));
        }
        let is_looped = |own: &Arc<Summary>| own.ops.iter().any(|op| op.deep && op.kind == OpKind::Forward);
        if last.as_ref().is_some_and(is_looped)
            && let Some(id) = module.weights.owners().last()
        {
            self.facts.models[id.index()].loops = true;
        }
        // Arrays are on the host, and have no graph.
        let switched = || {
            let models = module.weights.owners().iter().map(|id| &self.facts.models[id.index()]);
            let mut switches = models.flat_map(|model| &model.array_switches);
            switches.any(|name| call.keyword(name).is_some_and(|given| given.value.truth() != Some(false)))
        };
        let by_summary = last.as_ref().map(|forward| forward.may_give_arrays(call, 1));
        if by_summary.unwrap_or_else(switched) {
            return Value { graph: graph.with_unknown(), ..Value::unknown() }.with_flags(Flags::OPAQUE);
        }
        let flags = flags.union(Flags::OUTPUT);
        let parts = match &last {
            Some(summary) => summary.last_operations(),
            None => self.outputs_of(&module.weights),
        };
        if let Some(parts) = parts {
            let part =
                |last: Flags| Value::tensor(graph.clone()).with_device(device).with_flags(flags.union(last));
            let kind = Kind::Tuple(parts.into_iter().map(part).collect());
            return Value { kind, graph: graph.clone(), device, ..Value::default() }.with_flags(flags);
        }
        let last =
            last.map_or(module.flags.intersection(LAST_OPERATIONS), |summary| summary.last_operation());
        Value::tensor(graph).with_device(device).with_flags(flags.union(last))
    }

    /// Call of a module without parameters: no forward pass of a model, but an operation on its inputs.
    pub(super) fn call_operation(&mut self, call: &Call, module: &Value, inputs: &Graph) -> Value {
        let last = CallResult::Tensor(module.flags.intersection(LAST_OPERATIONS));
        let mut result = self.call_known(call, "torch.nn", last, inputs).with_flags(Flags::OUTPUT);
        // Modules are called on activations: where nothing is known of these, they have a graph.
        if self.frame.grad == Grad::On && !inputs.is_none() && !inputs.is_certain() {
            let weights = self.weights_of(self.slice(call.callee), module).with_unknown_owners();
            result.graph = self.forward(&inputs.uncut(), weights).0;
        }
        result
    }

    /// Result of a method of a model: a pass through the model's parameters, if the method runs one.
    pub(super) fn pass_of_method(&mut self, call: &Call, summary: &Summary, mut result: Value) -> Value {
        let Some(receiver) = call.receiver.as_ref().filter(|receiver| receiver.value.is_module()) else {
            return result;
        };
        let name = self.slice(receiver.span);
        let passes = summary.ops.iter().any(|op| op.kind == OpKind::Forward && op.grad != Grad::Off);
        if name == "self" || !passes || self.frame.grad != Grad::On || result.graph.is_none() {
            return result;
        }
        let weights = self.weights_of(name, &receiver.value).with_unknown_owners();
        let (own, _) = self.forward(&Graph::none(), weights);
        result.map_graphs(&|graph| match (graph.is_none(), graph.unknown && !graph.is_certain()) {
            (true, _) => Graph::none(),
            (false, true) => graph.union(&own).with_unknown(),
            (false, false) => graph.union(&own),
        });
        result
    }

    pub(super) fn call_loss(&mut self, call: &Call, sums: bool, inputs: &Graph) -> Value {
        let reduction =
            call.keyword("reduction").and_then(|argument| argument.value.text().map(str::to_owned));
        let mut flags = Flags::NONE;
        if reduction.as_deref() != Some("none") {
            flags = flags.union(Flags::SCALAR);
        }
        if sums || reduction.as_deref() == Some("sum") {
            flags = flags.union(Flags::SUMMED);
        }
        let mut device = call.arguments.first().map_or(Device::Unknown, |argument| argument.value.device);
        // What a loss compares is on one device.
        let met = call.arguments.iter().map(|argument| argument.value.device).find(|device| device.is_gpu());
        if let Some(met) = met.filter(|_| device == Device::Unknown) {
            device = met;
            for argument in &call.arguments {
                let name = self.slice(argument.value_span);
                if let Some(binding) = self.frame.env.get(name)
                    && binding.value.device == Device::Unknown
                    && matches!(binding.value.kind, Kind::Tensor)
                {
                    let mut binding = binding.clone();
                    binding.value.device = met;
                    self.frame.env.set(name, binding);
                }
            }
        }
        if self.frame.grad == Grad::Off {
            return Value::tensor(Graph::none())
                .with_device(device)
                .with_flags(flags.union(Flags::NO_GRAD_BUILT));
        }
        // A loss of inputs that were cut from their graphs has none. One of the project may have parameters,
        // or models.
        let is_cut = |flag: Flags| call.arguments.iter().any(|argument| argument.value.is(flag));
        let is_plain = call.path.is_some()
            || matches!(call.target.kind, Kind::Criterion { .. })
                && !call.target.is(Flags::OPAQUE)
                && !call.target.is(Flags::BY_NAME);
        if inputs.is_none() && is_plain {
            for flag in [Flags::DETACHED, Flags::NO_GRAD_BUILT] {
                flags = if is_cut(flag) { flags.union(flag) } else { flags };
            }
        }
        Value::tensor(inputs.clone()).with_device(device).with_flags(flags)
    }

    /// `model.fc = nn.Sequential(nn.Linear(512, 10), nn.Softmax(1))`: the model ends in what its head ends
    /// in.
    pub(super) fn replace_head(&mut self, target: &'a Expr, value: &Value) {
        if !value.is_module() {
            return;
        }
        let owner = match target {
            Expr::Subscript(subscript) => &*subscript.value,
            other => other,
        };
        let Expr::Attribute(attribute) = owner else { return };
        let heads = ["fc", "classifier", "head", "heads", "last_linear", "output"];
        let Some(name) = dotted(&attribute.value, self.text) else { return };
        if name == "self" || !heads.contains(&attribute.attr.id.as_str()) {
            return;
        }
        if let Some(binding) = self.frame.env.get(name)
            && binding.value.is_module()
        {
            let mut binding = binding.clone();
            binding.value =
                binding.value.without(LAST_OPERATIONS).with_flags(value.flags.intersection(LAST_OPERATIONS));
            self.frame.env.set(name, binding);
        }
        // What a method always replaces, the others call.
        let class = self.definitions.functions[self.frame.function.index()].class;
        if let (Some(class), Some(own)) = (class, name.strip_prefix("self."))
            && self.frame.guard.is_none()
            && let Some(known) = self.attributes.get_mut(&(class, own))
            && known.is_module()
        {
            let last = value.flags.intersection(LAST_OPERATIONS);
            known.flags = known.flags.without(LAST_OPERATIONS).union(last);
        }
    }

    /// Records that a function gives one of its parameters to a loss that takes logits.
    pub(super) fn record_logits(&mut self, call: &Call) {
        let which = match &call.target.kind {
            Kind::Criterion { which, .. } => Some(*which),
            _ => None,
        };
        let is_loss = call.is("torch.nn.functional.cross_entropy") || which == Some(Criterion::CrossEntropy);
        let own = call.argument(0, "input").filter(|_| is_loss);
        let handed = call.logits.iter().filter_map(|index| call.arguments.get(*index));
        let given = own.into_iter().chain(handed).filter(|argument| argument.value.is(Flags::GIVEN));
        for argument in given {
            let ids = &argument.value.graph.ids;
            let index = self.frame.parameters.iter().position(|id| ids.contains(id));
            self.frame.logits.extend(index.filter(|index| !self.frame.logits.contains(index)));
        }
    }

    /// Arguments of a call that the called function gives to a loss that takes logits.
    pub(super) fn arguments_of_logits(summary: &Summary, call: &Call, has_receiver: bool) -> Vec<usize> {
        let skipped = usize::from(summary.is_method && has_receiver);
        let place = |parameter: &usize| {
            let name = summary.parameters.get(*parameter)?;
            let named = |argument: &Argument| argument.name.as_deref() == Some(name.as_str());
            call.arguments.iter().position(named).or_else(|| {
                let index = parameter.checked_sub(skipped)?;
                let before = call.arguments.get(..=index)?;
                before.iter().all(|argument| argument.name.is_none() && !argument.starred).then_some(index)
            })
        };
        summary.logits.iter().filter_map(place).collect()
    }
}

/// [`Flags::SCALAR`] for a loss: a container of losses has the flag as well.
pub(super) fn scalar_with_graph(value: &Value) -> Flags {
    if value.is(Flags::SCALAR) && !value.graph.is_none() { Flags::SCALAR } else { Flags::NONE }
}

/// Flags of a model that saves nothing for gradients of its own.
pub(super) const fn fixed_flags(is_frozen: bool, is_parameterless: bool) -> Flags {
    match (is_frozen, is_parameterless) {
        (_, true) => Flags::PARAMETERLESS,
        (true, false) => Flags::FROZEN,
        (false, false) => Flags::NONE,
    }
}

/// Graph of the result of unknown code, by the name of the called function: a loss is differentiable by
/// what it compares.
pub(super) fn graph_of_unknown(name: &str, inputs: &Graph) -> Graph {
    if name.to_ascii_lowercase().ends_with("loss") || name == "criterion" {
        Graph { unknown: true, own: None, ..inputs.clone() }
    } else {
        inputs.clone().with_unknown()
    }
}
