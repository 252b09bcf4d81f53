//! Method calls: of models, tensors and containers, and training operations.

use ruff_python_ast::{Expr, ExprCall};

use super::Walker;
use super::callee::is_silent;
use super::definitions::dotted;
use super::library_calls::device_of;
use super::library_calls::{Method, method};
use super::method_names::{
    dotted_receiver, has_no_gradient, is_accelerate_or_fabric, is_fabric, is_gradient, is_of_arrays,
    takes_plain_arguments, takes_sizes,
};
use crate::facts::{Argument, Backward, Call, OpKind, Receiver, StoreKind};
use crate::facts::{DType, Device, Flags, Graph, GraphState, Kind, Value, Weights};
use crate::position::Span;

impl<'a> Walker<'a> {
    pub(super) fn call_method(
        &mut self,
        node: &'a ExprCall,
        call: &Call,
        receiver: &Receiver,
        name: &str,
        inputs: &Graph,
    ) -> Value {
        let text = self.slice(receiver.span);
        let value = &receiver.value;
        if let Some(result) = self.call_training(call, receiver, name, text) {
            return result;
        }
        if matches!(name, "prepare" | "setup") && is_accelerate_or_fabric(text) && !call.is_open() {
            // The arguments are returned wrapped.
            let mut given: Vec<Value> =
                call.arguments.iter().map(|argument| argument.value.clone()).collect();
            return match given.len() {
                1 => given.remove(0),
                _ => Value::from_kind(Kind::Tuple(given.into())),
            };
        }
        if name == "optimizers"
            && text == "self"
            && call.arguments.is_empty()
            && let Some(made) = self.configured_optimizers()
        {
            return made;
        }
        if let Some(summary) = self.imported_method(receiver, name) {
            let result = self.call_summary(node, call, None, &summary, Some(text));
            return self.pass_of_method(call, &summary, result);
        }
        match &value.kind {
            Kind::Container { .. } => return self.call_container(node, call, receiver, name),
            Kind::Module => return self.call_on_module(node, call, receiver, name, inputs),
            Kind::Loader(_) if name == "__iter__" => return value.clone(),
            // A pipeline that is moved is the pipeline.
            Kind::Imported(_) if super::weights::RETURNS_ITSELF.contains(&name) => return value.clone(),
            Kind::Criterion { .. }
                if matches!(name, "to" | "cuda" | "cpu" | "float" | "half" | "double" | "train" | "eval") =>
            {
                return value.clone();
            }
            Kind::StateDict if name == "copy" => return value.clone(),
            Kind::StateDict if ["items", "values"].contains(&name) => {
                return Value::from_kind(Kind::Unknown).with_device(value.device).with_flags(Flags::WEIGHTS);
            }
            Kind::Exception(id) if name == "__str__" => return Value::from_kind(Kind::ExceptionText(*id)),
            Kind::ExceptionText(_) if ["lower", "upper", "strip"].contains(&name) => return value.clone(),
            Kind::Tokenizer if !["from_pretrained"].contains(&name) => {
                return Value::from_kind(Kind::Unknown);
            }
            Kind::Path(path) => {
                let full = format!("{path}.{name}");
                return self.call_path(node, call, &full, inputs);
            }
            _ => {}
        }
        // `self.losses.append(loss)`, `metrics["loss"].append(loss)`
        if ["append", "extend", "appendleft", "add", "insert"].contains(&name) && call.is_statement {
            return self.call_container(node, call, receiver, name);
        }
        if ["clear", "pop", "popleft"].contains(&name) {
            self.record_emptied(text);
            // `history["losses"].clear()`
            if let Some((container, _)) = text.split_once('[') {
                self.record_emptied(container);
            }
        }
        // A tensor has no such methods: it is a model that was moved.
        let maybe = value.is_unknown() || matches!(value.kind, Kind::Tensor);
        if matches!(name, "parameters" | "named_parameters") && maybe && call.arguments.is_empty() {
            self.infer_module(text, value);
            let weights = self.weights_of(text, value);
            return Value { weights, ..Value::from_kind(Kind::Unknown) };
        }
        // Only models have a `forward` that is called.
        if name == "forward" && maybe && !call.arguments.is_empty() && dotted_receiver(node, self.text) {
            return self.call_module(call, &Value { kind: Kind::Module, ..value.clone() });
        }
        // `vgg = vgg.cuda().eval()`
        let is_model = call.is_statement || name == "eval" && self.moved_name(node).is_some();
        if matches!(name, "train" | "eval") && is_model && maybe && !value.is(Flags::BATCH) {
            return self.switch_mode(node, call, receiver, name, inputs);
        }
        // What is computed of a number, or of an array on the host, has no graph either.
        if matches!(value.kind, Kind::Number) && is_of_arrays(name) && !inputs.has_passes() {
            return Value::from_kind(Kind::Number);
        }
        // `f.classify(x)`, where the text also calls `f.eval()`.
        if value.is_unknown()
            && value.is(Flags::GIVEN)
            && !value.is(Flags::BATCH)
            && !call.is_statement
            && !call.arguments.is_empty()
            && matches!(method(name), Method::Plain)
            && self.switches_mode(text)
        {
            let value = Value {
                device: value.device,
                weights: value.weights.clone(),
                ..Value::from_kind(Kind::Module)
            };
            let module = Receiver { span: receiver.span, value };
            return self.call_on_module(node, call, &module, name, inputs);
        }
        let tensor = matches!(value.kind, Kind::Tensor) || value.is(Flags::BATCH) || value.is_unknown();
        if !tensor {
            return self.call_unknown(node, inputs);
        }
        self.call_on_tensor(node, call, receiver, name, inputs)
    }

    /// Optimizers that `configure_optimizers` of a Lightning module returns.
    fn configured_optimizers(&mut self) -> Option<Value> {
        let class = self.definitions.functions[self.frame.function.index()].class?;
        let own = self.method_of(class, "configure_optimizers", 0)?;
        let made = self.summary(own)?.returns.as_ref()?.value.clone();
        let is_one = |value: &Value| matches!(value.kind, Kind::Optimizer);
        match &made.kind {
            Kind::Optimizer => Some(made),
            Kind::Tuple(parts) if parts.iter().all(is_one) => Some(made),
            _ => None,
        }
    }

    fn call_container(&mut self, node: &'a ExprCall, call: &Call, receiver: &Receiver, name: &str) -> Value {
        match name {
            "append" | "extend" | "appendleft" | "add" | "insert" => {
                // `add` of an unknown object (a meter's `add(output, target)`) does not store its argument.
                let count = if name == "insert" { 2 } else { 1 };
                let stores = name != "add" || matches!(receiver.value.kind, Kind::Container { .. });
                if call.arguments.len() != count || !stores {
                    return self.call_unknown(node, &receiver.value.graph);
                }
                let Some(argument) = call.arguments.last() else { return Value::from_kind(Kind::None) };
                if let Expr::Attribute(attribute) = &*node.func
                    && let Some(target) = dotted(super::stores::container_of(&attribute.value), self.text)
                {
                    let (value, at) = (&argument.value, argument.value_span);
                    self.store(StoreKind::Append, target, value, at, call.span);
                    self.grow_named(&attribute.value, &|list| {
                        list.add_item(value);
                        list.graph = list.graph.union(&value.graph);
                    });
                    if let Some(display) = node.arguments.args.last().filter(|_| name == "append") {
                        self.store_parts(target, display, call.span);
                    }
                }
                Value::from_kind(Kind::None)
            }
            "clear" | "pop" | "popleft" | "popitem" => {
                let text = self.slice(receiver.span);
                self.record_emptied(text);
                // `history["losses"].clear()`
                if let Some((container, _)) = text.split_once('[') {
                    self.record_emptied(container);
                }
                Value { graph: receiver.value.graph.clone(), ..Value::from_kind(Kind::Unknown) }
            }
            "values" | "copy" => receiver.value.clone(),
            // The keys have no graph.
            "items" if receiver.value.item().is_some() || receiver.value.items.is_some() => {
                let mut pairs = Value::from_kind(Kind::Container { bounded: true });
                let value = receiver.value.item().unwrap_or_else(|| {
                    let element = receiver.value.items.as_deref().cloned().unwrap_or_default();
                    Value { graph: receiver.value.element_graph(), ..element }
                });
                let pair = Value::from_kind(Kind::Tuple([Value::from_kind(Kind::Number), value].into()));
                pairs.add_item(&pair);
                Value { graph: receiver.value.graph.clone(), ..pairs }
            }
            "get" | "setdefault" if receiver.value.item().is_some() => {
                receiver.value.item().unwrap_or_default()
            }
            _ => Value {
                graph: receiver.value.graph.clone(),
                device: receiver.value.device,
                ..Value::default()
            },
        }
    }

    fn call_on_module(
        &mut self,
        node: &'a ExprCall,
        call: &Call,
        receiver: &Receiver,
        name: &str,
        inputs: &Graph,
    ) -> Value {
        let value = receiver.value.clone();
        let text = self.slice(receiver.span);
        let text = match name {
            "eval" | "train" | "requires_grad_" => self.moved_name(node).unwrap_or(text),
            _ => text,
        };
        let weights = self.weights_of(text, &value);
        match name {
            "eval" => {
                self.op(OpKind::EvalMode, call.span, text, weights);
                value
            }
            // A trainer's `train()` trains.
            "train" if value.class.is_some_and(|class| self.is_trainer(class)) => {
                self.call_unknown(node, inputs)
            }
            "train" => {
                let mode = call.argument(0, "mode").map(|argument| argument.value.truth());
                match mode {
                    Some(Some(false)) => self.op(OpKind::EvalMode, call.span, text, weights),
                    _ => self.op(OpKind::TrainMode, call.span, text, weights),
                }
                value
            }
            "cuda" => value.with_device(Device::Cuda),
            "cpu" => value.with_device(Device::Cpu),
            "half" => value.with_flags(Flags::HALF),
            "float" | "bfloat16" => value.without(Flags::HALF),
            "to" => {
                let mut value = value;
                for argument in &call.arguments {
                    match &argument.value.kind {
                        Kind::DType(DType::Half) => value = value.with_flags(Flags::HALF),
                        Kind::DType(_) => value = value.without(Flags::HALF),
                        _ => {
                            let device = device_of(&argument.value);
                            if device != Device::Unknown {
                                value.device = device;
                            }
                        }
                    }
                }
                value
            }
            "state_dict" => Value::from_kind(Kind::StateDict).with_device(value.device),
            "forward" | "__call__" => self.call_module(call, &value),
            "requires_grad_" => {
                let on = call.argument(0, "requires_grad").map(|argument| argument.value.truth());
                self.op(OpKind::RequireGrad { on: on.unwrap_or(Some(true)) }, call.span, text, weights);
                match on {
                    Some(Some(false)) => value.with_flags(Flags::FROZEN),
                    Some(None) => value,
                    _ => value.without(Flags::FROZEN),
                }
            }
            // `target.load_state_dict(model.state_dict())`
            "load_state_dict"
                if call.argument(0, "state_dict").is_some_and(|of| of.value.kind == Kind::StateDict) =>
            {
                self.op(OpKind::CopyWeights, call.span, text, weights);
                Value::from_kind(Kind::Unknown)
            }
            "apply" | "share_memory" => value,
            "parameters" | "named_parameters" => {
                let device = value.device;
                Value { device, weights, ..Value::from_kind(Kind::Unknown) }.with_flags(Flags::WEIGHTS)
            }
            "modules" | "named_modules" | "children" => Value { weights, ..Value::from_kind(Kind::Unknown) },
            _ => {
                let computed = |argument: &Argument| {
                    !matches!(argument.value.kind, Kind::Str(_) | Kind::Int(_) | Kind::Bool(_) | Kind::None)
                };
                if !is_silent(name) && !call.is_statement && call.arguments.iter().any(computed) {
                    self.op(OpKind::Method { name: name.into() }, call.span, text, weights);
                    // The result of a pass is where its inputs are.
                    let given = call.arguments.first().map_or(Device::Unknown, |first| first.value.device);
                    let on_card = if given.is_gpu() { given } else { Device::Unknown };
                    return self.call_unknown(node, inputs).with_device(on_card);
                }
                self.call_unknown(node, inputs)
            }
        }
    }

    fn call_on_tensor(
        &mut self,
        node: &'a ExprCall,
        call: &Call,
        receiver: &Receiver,
        name: &str,
        inputs: &Graph,
    ) -> Value {
        let value = receiver.value.clone();
        if matches!(name, "items" | "values") && value.is(Flags::GIVEN) && call.arguments.is_empty() {
            let element = Value { graph: value.graph.clone(), ..Value::default() }.with_flags(Flags::GIVEN);
            let mut all =
                Value { graph: value.graph.clone(), ..Value::from_kind(Kind::Container { bounded: true }) };
            all.add_item(&if name == "items" {
                let key = Value::from_kind(Kind::Number);
                Value { graph: value.graph, ..Value::from_kind(Kind::Tuple([key, element].into())) }
            } else {
                element
            });
            return all;
        }
        if has_no_gradient(name) && matches!(value.kind, Kind::Tensor) {
            return Value::tensor(Graph::none()).with_device(value.device);
        }
        // `torch.distributions` samples without gradients; distributions of other libraries may not.
        if name == "sample" && matches!(value.kind, Kind::Tensor) {
            return self.call_unknown(node, &value.graph);
        }
        if matches!(name, "div_" | "mul_" | "copy_") && is_gradient(self.slice(receiver.span)) {
            self.op(OpKind::WriteGrad { single: false, clears: false }, call.span, "", Weights::default());
        }
        if matches!(name, "copy_" | "mul_" | "lerp_" | "add_")
            && let Expr::Attribute(attribute) = &*node.func
        {
            self.copies_weights(&attribute.value, call.span);
        }
        let graph = if takes_plain_arguments(name) { value.graph.clone() } else { value.graph.union(inputs) };
        let kind = if matches!(value.kind, Kind::Tensor) { Kind::Tensor } else { Kind::Unknown };
        let moved = |device: Device| Value { kind: Kind::Tensor, device, ..value.clone() };
        match method(name) {
            Method::Detach => {
                let result =
                    Value { kind: Kind::Tensor, graph: Graph::none(), ..value }.with_flags(Flags::DETACHED);
                if name == "detach_"
                    && let Expr::Attribute(attribute) = &*node.func
                    && let Some(name) = dotted(&attribute.value, self.text)
                {
                    self.detached_in_place(name, &result);
                }
                result
            }
            Method::Host => {
                // `numpy()` raises on a tensor with a graph, so there is none.
                if name == "numpy" {
                    for id in &value.graph.ids {
                        self.graphs.set(*id, GraphState::Unknown);
                    }
                }
                let is_read = name == "item" && !value.graph.is_none();
                let is_first = || call.arguments.first().is_some_and(|place| place.value.int() == Some(0));
                Value::from_kind(Kind::Number).with_flags(match name {
                    "size" if is_first() => Flags::SAMPLES,
                    _ if is_read => Flags::READ,
                    _ => Flags::NONE,
                })
            }
            // `cpu()` copies nothing that is already on the host.
            Method::Cpu if value.device == Device::Cpu => moved(Device::Cpu),
            Method::Cpu => moved(Device::Cpu).without(Flags::VIEW),
            Method::Cuda => moved(Device::Cuda).without(Flags::VIEW),
            Method::To => {
                let mut found = value.clone();
                found.kind = Kind::Tensor;
                for argument in
                    call.arguments.iter().filter(|argument| argument.name.as_deref() != Some("non_blocking"))
                {
                    let device = device_of(&argument.value);
                    if device != Device::Unknown {
                        found.device = device;
                        found = found.without(Flags::VIEW);
                    }
                }
                found
            }
            Method::Cast(dtype) => {
                let mut found = Value { kind, ..value };
                if dtype == DType::Float && found.device == Device::Cpu {
                    found = found.with_flags(Flags::WIDENED);
                }
                found
            }
            Method::Copy => Value { kind, ..value.marked_copied() }.without(Flags::VIEW),
            Method::View => Value { kind, ..value }.with_flags(Flags::VIEW),
            Method::Divide => {
                let divisor = call.arguments.first().and_then(|by| {
                    let flags = super::expression::flags_of_divisor(self.slice(by.value_span));
                    value.divided_by(&by.value.clone().with_flags(flags))
                });
                let found = Value { kind, graph, divisor, ..value }.divided_in(call.span);
                let found = found.without(Flags::GIVEN).with_flags(Flags::DIVIDED);
                self.changed_in_place(node, name, &found);
                found
            }
            Method::Multiply => {
                let found = Value { kind, graph, divisor: None, ..value };
                let found = found.without(Flags::GIVEN).with_flags(Flags::OPAQUE);
                self.changed_in_place(node, name, &found);
                found
            }
            Method::Reduce { sums } => {
                let value = value.without(Flags::GIVEN);
                let scalar = call.arguments.is_empty();
                let mut flags = if scalar { Flags::SCALAR } else { Flags::NONE };
                if sums && scalar {
                    flags = flags.union(Flags::SUMMED);
                }
                Value { kind, graph, ..value }.without(Flags::VIEW).with_flags(flags)
            }
            Method::Marked(flag) => Value { kind, graph, ..value }.without(Flags::GIVEN).with_flags(flag),
            Method::Plain => {
                if value.is_unknown() && !value.is(Flags::BATCH) {
                    let mut unseen = self.call_unknown(node, &graph);
                    unseen.loader = value.loader;
                    return unseen;
                }
                let changed = Flags::SOFTMAX
                    .union(Flags::SIGMOID)
                    .union(Flags::LOG_SOFTMAX)
                    .union(Flags::FULL_IMAGE)
                    .union(Flags::WIDENED);
                let same = super::library_calls::is_elementwise(name);
                let changed = if takes_sizes(name) { changed } else { changed.union(Flags::GIVEN) };
                let flags = value.flags.without(if same { changed } else { changed.union(Flags::SCALAR) });
                let trains = name.starts_with("requires_grad");
                if trains {
                    let found = self.required_gradients(node, call, &Value { graph, flags, ..value });
                    self.changed_in_place(node, name, &found);
                    return found;
                }
                Value { kind, graph, flags, ..value }
            }
        }
    }

    /// `x.div_(k)` changes `x`.
    fn changed_in_place(&mut self, node: &'a ExprCall, name: &str, value: &Value) {
        if name.ends_with('_')
            && let Expr::Attribute(attribute) = &*node.func
            && let Some(name) = dotted(&attribute.value, self.text)
            && let Some(binding) = self.frame.env.get(name)
        {
            let mut binding = binding.clone();
            binding.value = value.clone();
            self.frame.env.set(name, binding);
        }
    }

    /// Methods that perform training operations.
    fn call_training(
        &mut self,
        call: &Call,
        receiver: &Receiver,
        name: &str,
        text: &'a str,
    ) -> Option<Value> {
        let kind = &receiver.value.kind;
        let tensorish = matches!(kind, Kind::Tensor | Kind::Unknown | Kind::Undefined | Kind::Tuple(_));
        match name {
            "backward" | "manual_backward" => {
                let loss = call.arguments.first().filter(|argument| {
                    argument.name.is_none() && (!matches!(kind, Kind::Tensor) || name == "manual_backward")
                });
                let by_name = ["accelerator", "engine", "booster", "manual", "optimizer", "strategy"];
                // Fabric runs the backward pass, and leaves the loss and the optimizer to the script.
                if let Some(loss) = loss.filter(|_| is_fabric(text, &receiver.value)) {
                    let loss = Some((loss.value.clone(), loss.value_span));
                    self.backward(call, loss, false);
                    return Some(Value::from_kind(Kind::None));
                }
                let managed = name == "manual_backward"
                    || (loss.is_some()
                        && by_name.iter().any(|word| text.to_ascii_lowercase().contains(word)))
                    || (loss.is_some() && matches!(kind, Kind::Module | Kind::Optimizer | Kind::Object(_)));
                if managed {
                    let loss = loss.map(|argument| (argument.value.clone(), argument.value_span));
                    self.backward(call, loss, true);
                    return Some(Value::from_kind(Kind::None));
                }
                if tensorish || matches!(kind, Kind::Path(_)) {
                    self.backward(call, Some((receiver.value.clone(), receiver.span)), false);
                    return Some(Value::from_kind(Kind::None));
                }
                None
            }
            "step" => match kind {
                Kind::Optimizer => {
                    let closure = !call.arguments.is_empty();
                    let weights = receiver.value.weights.clone();
                    self.op(OpKind::Step { scaled: false, closure }, call.span, text, weights);
                    Some(Value::from_kind(Kind::Unknown))
                }
                Kind::Scheduler => {
                    self.op(OpKind::SchedulerStep, call.span, text, Weights::default());
                    Some(Value::from_kind(Kind::None))
                }
                Kind::Scaler(_) => {
                    let first = call.arguments.first();
                    let optimizer = first.map_or("", |argument| self.slice(argument.value_span));
                    let weights = first.map_or_else(Weights::default, |first| first.value.weights.clone());
                    let closure = call.arguments.len() > 1;
                    self.op(OpKind::Step { scaled: true, closure }, call.span, optimizer, weights);
                    Some(Value::from_kind(Kind::None))
                }
                _ => None,
            },
            // `step_and_update_lr()` of an optimizer of the project.
            _ if matches!(kind, Kind::Optimizer) && name.starts_with("step_") => {
                let weights = receiver.value.weights.clone();
                self.op(OpKind::Step { scaled: false, closure: false }, call.span, text, weights);
                Some(Value::from_kind(Kind::Unknown))
            }
            "zero_grad" => {
                let to_zero = call.argument(0, "set_to_none").and_then(|argument| argument.value.truth())
                    == Some(false);
                let value = &receiver.value;
                let weights = match value.kind {
                    Kind::Optimizer | Kind::Container { .. } => value.weights.clone(),
                    _ => self.weights_of(text, value),
                };
                self.op(OpKind::ZeroGrad { to_zero }, call.span, text, weights);
                Some(Value::from_kind(Kind::None))
            }
            "update" if matches!(kind, Kind::Scaler(_)) => {
                self.op(OpKind::ScalerUpdate, call.span, text, Weights::default());
                Some(Value::from_kind(Kind::None))
            }
            "scale" if matches!(kind, Kind::Scaler(_)) => {
                let first = call.arguments.first()?;
                Some(first.value.clone().with_flags(Flags::SCALED))
            }
            "unscale_" => {
                let first = call.arguments.first();
                let weights = first.map_or_else(Weights::default, |first| first.value.weights.clone());
                self.op(OpKind::Unscale, call.span, text, weights);
                Some(Value::from_kind(Kind::None))
            }
            "clip_grad_norm_" | "clip_grad_value_" => {
                self.op(OpKind::Clip, call.span, text, Weights::default());
                Some(Value::from_kind(Kind::Number))
            }
            "no_sync" => {
                self.op(OpKind::NoSync, call.span, text, Weights::default());
                Some(Value::from_kind(Kind::Unknown))
            }
            "accumulate" if is_accelerate_or_fabric(text) => Some(Value::from_kind(Kind::Managed)),
            "autocast" if is_accelerate_or_fabric(text) => Some(Value::from_kind(Kind::Unknown)),
            _ => None,
        }
    }

    pub(super) fn backward(&mut self, call: &Call, loss: Option<(Value, Span)>, managed: bool) {
        let (loss, loss_span) = loss.unwrap_or_else(|| (Value::unknown(), call.span));
        let truthy = |name: &str| {
            call.keyword(name)
                .filter(|argument| argument.value.truth() == Some(true))
                .map(|argument| argument.span)
        };
        // An earlier iteration or an earlier line may have freed the loss's graph.
        let mut freed = loss.graph.uncut();
        let frame = &self.frame;
        freed.ids.retain(|id| self.graphs.state(*id) == GraphState::Freed && !frame.parameters.contains(id));
        let retain_is_unknown =
            call.keyword("retain_graph").is_some_and(|argument| argument.value.truth().is_none());
        let sure = loss.graph.ids.iter().filter(|id| loss.graph.has(**id));
        let passes = sure.map(|id| self.graphs.weights(*id).clone()).collect();
        let backward = Backward {
            passes,
            retain: truthy("retain_graph"),
            create: truthy("create_graph"),
            loss: loss.clone(),
            loss_span,
            freed,
            carried: self.goes_back(&loss.graph),
            managed,
            of_loop: None,
            built_this_iteration: !loss.graph.unknown
                && loss.graph.ids.iter().all(|id| *id >= self.frame.iteration_first_graph),
            has_outer_graph: loss.graph.ids.iter().any(|id| *id < self.frame.loop_first_graph),
        };
        let graph = if retain_is_unknown { loss.graph.clone().with_unknown() } else { loss.graph.clone() };
        self.mark_freed(&graph, &backward, false);
        self.know_differentiated(self.slice(loss_span), backward.retain.is_some());
        let reach = self.reach(&loss.graph, &[]);
        self.op(OpKind::Backward(Box::new(backward)), call.span, "", reach);
    }
}
