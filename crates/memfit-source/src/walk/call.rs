//! Calls: resolution of the callee, arguments, and the result.

use std::sync::Arc;

use ruff_python_ast::{Expr, ExprCall};

use super::library_calls::{CallResult, device_of, is_harmless, known_call};
use super::model_call::LAST_OPERATIONS;
use super::{Walker, span};
use crate::facts::{Argument, Call, FunctionId, LoaderId, OpKind, Receiver, ScalerId};
use crate::facts::{Criterion, DType, Device, Flags, Grad, Graph, Kind, Partial, Value, Weights};

impl<'a> Walker<'a> {
    pub(super) fn call(&mut self, node: &'a ExprCall, is_statement: bool) -> Value {
        let callee = &*node.func;
        let whole = span(node);
        let path = self.imported_name(callee);
        let held = if path.is_none() { self.held_model(callee) } else { None };
        let (receiver, name) = match callee {
            Expr::Attribute(attribute) if path.is_none() && held.is_none() => {
                let value = self.eval(&attribute.value);
                (Some(Receiver { span: span(&*attribute.value), value }), Some(attribute.attr.id.as_str()))
            }
            _ => (None, None),
        };
        let mut target = match held {
            Some(held) => held,
            None if path.is_none() && receiver.is_none() => self.eval(callee),
            None => Value::default(),
        };
        let mut arguments = self.arguments(node);
        let mut path = path;
        if let Some((of, held)) = self.resolve_partial(callee, &target, receiver.is_some()) {
            // Arguments of this call follow those bound by `partial`, and precede them if they are keywords.
            let renamed = |argument: &Argument| {
                argument.name.is_some() && arguments.iter().any(|given| given.name == argument.name)
            };
            let held: Vec<Argument> = held.into_iter().filter(|argument| !renamed(argument)).collect();
            arguments.splice(0..0, held);
            path = match &of.kind {
                Kind::Path(path) => Some(path.clone()),
                _ => None,
            };
            target = of;
        }
        let function = self.resolve(callee, &target, receiver.as_ref(), name);
        let mut call = Call {
            span: whole,
            callee: span(callee),
            path,
            method: name.map(|name| self.names.intern(name)),
            receiver,
            function,
            is_followed: function.is_some(),
            target: target.clone(),
            arguments,
            parentheses: span(&node.arguments),
            result: Value::default(),
            is_statement,
            logits: Vec::new(),
            site: self.site(),
        };
        let outside = std::mem::take(&mut self.logits);
        call.result = self.outcome(node, &call, &target);
        call.logits = std::mem::replace(&mut self.logits, outside);
        self.record_logits(&call);
        let result = call.result.clone();
        self.record_arguments(&call);
        if self.recording() {
            call.is_followed |= self.is_followed(&call);
            self.register(&call);
            self.facts.calls.push(call);
        }
        result
    }

    fn arguments(&mut self, node: &'a ExprCall) -> Vec<Argument> {
        let mut arguments = Vec::with_capacity(node.arguments.args.len() + node.arguments.keywords.len());
        for argument in &node.arguments.args {
            let value = self.eval(argument);
            let starred = matches!(argument, Expr::Starred(_));
            let at = span(argument);
            arguments.push(Argument { name: None, span: at, value_span: at, value, starred });
        }
        for keyword in &node.arguments.keywords {
            let value = self.eval(&keyword.value);
            arguments.push(Argument {
                name: keyword.arg.as_ref().map(|name| self.names.intern(name.id.as_str())),
                span: span(keyword),
                value_span: span(&keyword.value),
                value,
                starred: keyword.arg.is_none(),
            });
        }
        arguments
    }

    /// Records loaders, scalers, and functions that are called without gradients.
    fn register(&mut self, call: &Call) {
        let index = self.facts.calls.len();
        match call.result.kind {
            Kind::Loader(Some(id)) if self.loaders_at.contains_key(&call.span.start) => {
                self.facts.loaders.resize(self.facts.loaders.len().max(id.index() + 1), usize::MAX);
                self.facts.loaders[id.index()] = index;
            }
            Kind::Scaler(Some(id)) if self.scalers_at.contains_key(&call.span.start) => {
                self.facts.scalers.resize(self.facts.scalers.len().max(id.index() + 1), usize::MAX);
                self.facts.scalers[id.index()] = index;
            }
            _ => {}
        }
        if call.site.grad == Grad::Off {
            let last = self.slice(call.callee).rsplit('.').next().unwrap_or_default();
            if !last.is_empty() && last.len() < 80 && !super::callee::is_of_every_module(last) {
                self.facts.called_without_grad.push(last.to_owned());
            }
        }
    }

    /// Returns `true` if a function of another file of the project is called.
    fn is_followed(&mut self, call: &Call) -> bool {
        match (&call.path, &call.receiver, call.method.as_deref()) {
            (Some(path), ..) => self.imported_function(path).is_some(),
            (None, Some(receiver), Some(name)) => self.imported_method(receiver, name).is_some(),
            _ => false,
        }
    }

    fn outcome(&mut self, node: &'a ExprCall, call: &Call, target: &Value) -> Value {
        let inputs =
            call.arguments.iter().fold(Graph::none(), |graph, argument| graph.union(&argument.value.graph));
        if let Some(id) = call.function {
            return self.call_function(node, call, id, &inputs);
        }
        if let Some(path) = &call.path {
            return self.call_path(node, call, path, &inputs);
        }
        if let (Some(receiver), Some(name)) = (&call.receiver, call.method.as_deref()) {
            return self.call_method(node, call, receiver, name, &inputs);
        }
        let is_fed = !call.arguments.is_empty();
        match &target.kind {
            Kind::Module if target.is(Flags::PARAMETERLESS) => self.call_operation(call, target, &inputs),
            Kind::Module => self.call_module(call, target),
            Kind::Criterion { sums, .. } => self.call_loss(call, *sums, &inputs),
            Kind::Class(id) => {
                let class = self.facts.class(*id);
                let (is_module, norm) = (class.is_module, class.has_batch_norm);
                let fixed = super::model_call::fixed_flags(class.is_frozen, class.is_parameterless);
                let is_loss = class.name.ends_with("Loss");
                let steps = class.bases.iter().any(|base| base.ends_with("Optimizer"));
                let init = self.method_of(*id, "__init__", 0);
                if let Some(init) = init {
                    self.summary(init);
                }
                // A data class keeps its arguments.
                let holds = init.is_none() && !is_module && !steps;
                let kind = match (is_module, is_loss) {
                    _ if steps => Kind::Optimizer,
                    (true, true) => Kind::Criterion { which: Criterion::Other, sums: false },
                    (true, false) => Kind::Module,
                    _ => Kind::Object(*id),
                };
                let mut made =
                    Value::from_kind(kind).with_flags(if norm { Flags::BATCH_NORM } else { Flags::NONE });
                made.weights = match made.kind {
                    Kind::Optimizer => call
                        .arguments
                        .first()
                        .map_or_else(Weights::default, |held| held.value.weights.clone()),
                    _ if is_module => self.made_weights(call),
                    _ => Weights::default(),
                };
                if matches!(made.kind, Kind::Criterion { .. }) {
                    made = made.with_flags(Flags::OPAQUE);
                }
                if holds {
                    made.graph = inputs.clone();
                }
                made.class = Some(*id).filter(|_| is_module);
                // What another module makes of it is known by its last operation only.
                if let Some(own) = self.method_of(*id, "forward", 0).filter(|_| is_module)
                    && let Some(forward) = self.summary(own)
                {
                    made = made.with_flags(forward.last_operation());
                }
                if is_module { made.with_flags(fixed) } else { made }
            }
            Kind::Path(path) => {
                let path = path.clone();
                self.call_path(node, call, &path, &inputs)
            }
            Kind::Object(id) if let Some(own) = self.method_of(*id, "__call__", 0) => {
                let Some(summary) = self.summary(own) else { return self.call_unknown(node, &inputs) };
                let receiver = self.slice(call.callee);
                self.call_summary(node, call, Some(own), &summary, Some(receiver))
            }
            Kind::Imported(class) if let Some(summary) = self.method_there(&class.clone(), "__call__") => {
                let receiver = self.slice(call.callee);
                self.call_summary(node, call, None, &summary, Some(receiver))
            }
            // Nobody calls a tensor: `make(config).to(device)` made a model.
            Kind::Tensor
                if is_fed
                    && (target.graph.is_unseen() || target.graph.is_none())
                    && !self.is_other_target(self.slice(call.callee)) =>
            {
                let weights = target.weights.clone();
                let module = Value { weights, device: target.device, ..Value::from_kind(Kind::Module) };
                self.call_module(call, &module)
            }
            Kind::Unknown | Kind::Undefined
                if is_fed
                    && self.is_used_as_model(self.slice(call.callee))
                    && !self.is_other_target(self.slice(call.callee)) =>
            {
                let device = target.device;
                self.call_module(call, &Value { device, ..Value::from_kind(Kind::Module) })
            }
            Kind::Imported(class) if crate::facts::shrinks(class) => self
                .call_unknown(node, &inputs)
                .with_device(call.arguments.first().map_or(Device::Unknown, |image| image.value.device)),
            _ => self.call_unknown(node, &inputs),
        }
    }

    /// Call of code outside the text.
    pub(super) fn call_unknown(&mut self, node: &'a ExprCall, inputs: &Graph) -> Value {
        let last = match &*node.func {
            Expr::Name(name) => name.id.as_str(),
            Expr::Attribute(attribute) => attribute.attr.id.as_str(),
            _ => "",
        };
        if !is_harmless(last) {
            for argument in &node.arguments.args {
                self.escape(argument);
            }
            for keyword in &node.arguments.keywords {
                self.escape(&keyword.value);
            }
        }
        let mut value = Value::unknown().with_flags(Flags::OPAQUE);
        if self.frame.grad == Grad::Off {
            value.graph = Graph::none();
            return value.with_flags(Flags::NO_GRAD_BUILT);
        }
        value.graph = super::model_call::graph_of_unknown(last, inputs);
        value
    }

    fn call_function(&mut self, node: &'a ExprCall, call: &Call, id: FunctionId, inputs: &Graph) -> Value {
        let Some(summary) = self.summary(id) else { return self.call_unknown(node, inputs) };
        let receiver = call.receiver.as_ref().map(|receiver| self.slice(receiver.span));
        let result = self.call_summary(node, call, Some(id), &summary, receiver);
        self.pass_of_method(call, &summary, result)
    }

    pub(super) fn call_path(&mut self, node: &'a ExprCall, call: &Call, path: &str, inputs: &Graph) -> Value {
        if let Some(value) = self.call_special(call, path, inputs) {
            return value;
        }
        match known_call(path) {
            Some(known) => self.call_known(call, path, known, inputs),
            None => {
                if let Some(summary) = self.imported_function(path) {
                    return self.call_summary(node, call, None, &summary, None);
                }
                if let Some(class) = self.imported_class(path) {
                    return self.object_there(call, path, &class);
                }
                let weights = Self::kept_weights(path, &call.arguments);
                Value { weights, ..self.call_unknown(node, inputs) }
            }
        }
    }

    /// Calls with an effect on the analysis state.
    fn call_special(&mut self, call: &Call, path: &str, inputs: &Graph) -> Option<Value> {
        let last = path.rsplit('.').next().unwrap_or(path);
        let value = match (path, last) {
            (_, "no_grad" | "inference_mode") if path.starts_with("torch") => {
                let off = call.argument(0, "mode").and_then(|argument| argument.value.truth()) != Some(false);
                Value::from_kind(Kind::GradContext(if off { Grad::Off } else { Grad::On }))
            }
            (_, "enable_grad") => Value::from_kind(Kind::GradContext(Grad::On)),
            (_, "set_grad_enabled") => {
                let grad = match call.argument(0, "mode").and_then(|argument| argument.value.truth()) {
                    Some(true) => Grad::On,
                    Some(false) => Grad::Off,
                    None => Grad::Unknown,
                };
                if call.is_statement {
                    self.frame.grad = grad;
                }
                Value::from_kind(Kind::GradContext(grad))
            }
            (_, "autocast") => {
                let enabled = call.keyword("enabled").map(|argument| argument.value.truth());
                let to = call
                    .keyword("dtype")
                    .or_else(|| {
                        call.argument(1, "dtype")
                            .filter(|argument| matches!(argument.value.kind, Kind::DType(_)))
                    })
                    .map(|argument| match argument.value.kind {
                        Kind::DType(dtype) => Some(dtype),
                        _ => None,
                    });
                let is_on_cpu = path.contains(".cpu.")
                    || call.argument(0, "device_type").is_some_and(|kind| kind.value.text() == Some("cpu"));
                let default = if is_on_cpu { DType::BFloat16 } else { DType::Half };
                match enabled {
                    Some(Some(false)) => Value::default(),
                    _ => Value::from_kind(Kind::Autocast(to.unwrap_or(Some(default)))),
                }
            }
            (_, "clip_grad_norm_" | "clip_grad_value_" | "clip_grad_norm" | "clip_grads_with_norm_") => {
                let parameters =
                    call.arguments.first().map_or("", |argument| self.slice(argument.value_span));
                let weights =
                    call.arguments.first().map_or_else(Weights::default, |first| first.value.weights.clone());
                self.op(OpKind::Clip, call.span, parameters, weights);
                Value::from_kind(Kind::Number)
            }
            ("torch.autograd.grad", _) => {
                let reach = self.reach(inputs, &[]);
                self.op(OpKind::AutogradGrad, call.span, "", reach);
                Value { graph: inputs.clone().with_unknown(), ..Value::from_kind(Kind::Unknown) }
            }
            ("torch.autograd.backward", _) => {
                self.backward(
                    call,
                    call.arguments.first().map(|argument| (argument.value.clone(), argument.value_span)),
                    false,
                );
                Value::from_kind(Kind::None)
            }
            ("functools.partial", _) => {
                let (of, held) = call.arguments.split_first()?;
                if of.starred || of.name.is_some() || matches!(of.value.kind, Kind::Partial(_)) {
                    return None;
                }
                let partial = Partial { of: of.value.clone(), arguments: held.to_vec() };
                Value::from_kind(Kind::Partial(Arc::new(partial)))
            }
            // A random value has no graph, and differs each time.
            (_, "randint" | "choice" | "uniform" | "randrange" | "random" | "sample" | "integers")
                if path.starts_with("random.") || path.starts_with("numpy.random.") =>
            {
                Value::from_kind(Kind::Number).with_flags(Flags::RANDOM)
            }
            ("torch.device", _) => {
                let name = call.arguments.first().map(|argument| &argument.value);
                let device = name.map_or(Device::Unknown, device_of);
                Value::from_kind(Kind::Device(if device == Device::Unknown { Device::Named } else { device }))
            }
            ("builtins.str" | "builtins.repr", _) => {
                match call.arguments.first().map(|argument| &argument.value.kind) {
                    Some(Kind::Exception(id)) => Value::from_kind(Kind::ExceptionText(*id)),
                    _ => Value::from_kind(Kind::Number),
                }
            }
            ("builtins.sum" | "builtins.max" | "builtins.min", _) => {
                let first = call.arguments.first()?;
                Value {
                    graph: first.value.graph.clone(),
                    device: first.value.device,
                    ..Value::from_kind(Kind::Unknown)
                }
                .with_flags(first.value.flags.intersection(Flags::SCALAR))
            }
            ("builtins.next", _) => {
                let of = &call.arguments.first()?.value;
                match of.kind {
                    Kind::Loader(id) => Value { loader: id, ..Value::unknown() }.with_flags(Flags::BATCH),
                    _ => Value { loader: of.loader, ..Value::unknown() },
                }
            }
            // Before PyTorch 0.4, a tensor was wrapped to have a graph.
            ("torch.autograd.Variable", _) if call.arguments.len() == 1 => {
                call.arguments.first()?.value.clone()
            }
            ("builtins.iter", _) => call.arguments.first()?.value.clone(),
            ("collections.namedtuple", _) => Value::from_kind(Kind::Path("builtins.namedtuple()".into())),
            ("builtins.namedtuple()", _) if !call.is_open() => {
                let parts: Vec<Value> =
                    call.arguments.iter().map(|argument| argument.value.clone()).collect();
                Value { graph: inputs.clone(), ..Value::from_kind(Kind::Tuple(parts.into())) }
            }
            (_, name) if path.starts_with("torch.") && super::method_names::has_no_gradient(name) => {
                let device = call.arguments.first().map_or(Device::Unknown, |first| first.value.device);
                Value::tensor(Graph::none()).with_device(device)
            }
            // Apex returns its arguments, changed in place.
            ("apex.amp.initialize", _) => {
                let given: Vec<Value> = call
                    .arguments
                    .iter()
                    .take_while(|argument| argument.name.is_none() && !argument.starred)
                    .filter(|argument| !argument.value.weights.is_known() || argument.value.is_object())
                    .map(|argument| argument.value.clone())
                    .collect();
                match <[Value; 1]>::try_from(given) {
                    Ok([model]) => model,
                    Err(given) => Value::from_kind(Kind::Tuple(given.into())),
                }
            }
            // Apex; its result is differentiated instead of the loss.
            (_, "scale_loss") => call.arguments.first()?.value.clone(),
            (_, "tqdm" | "track") => call.arguments.first()?.value.clone(),
            ("torch.stack" | "torch.cat" | "torch.vstack" | "torch.hstack" | "torch.concat", _) => {
                let first = call.arguments.first()?;
                let device = match &first.value.kind {
                    // Tensors are joined on one device.
                    Kind::Tuple(parts) => {
                        let mut devices = parts.iter().map(|part| part.device);
                        devices.find(|device| *device != Device::Unknown).unwrap_or_default()
                    }
                    _ => match first.value.elements() {
                        Some(item) if first.value.device == Device::Unknown => item.device,
                        _ => first.value.device,
                    },
                };
                let mut value = Value::tensor(first.value.graph.clone()).with_device(device);
                if self.frame.grad == Grad::Off {
                    value.graph = Graph::none();
                    value = value.with_flags(Flags::NO_GRAD_BUILT);
                }
                value
            }
            _ => return None,
        };
        Some(value)
    }

    /// Object that a class makes, if it is of this project and no model.
    fn object_of(&mut self, class: &Kind) -> Option<Value> {
        match class {
            Kind::Class(id) if !self.facts.class(*id).is_module => Some(Value::from_kind(Kind::Object(*id))),
            Kind::Path(path) => {
                let class = self.imported_class(path)?;
                (!class.is_module).then(|| Value::from_kind(Kind::Imported(path.clone())))
            }
            _ => None,
        }
    }

    pub(super) fn call_known(&mut self, call: &Call, path: &str, known: CallResult, inputs: &Graph) -> Value {
        match known {
            CallResult::Made(Kind::Criterion { which, .. }, flags) => {
                let sums =
                    call.keyword("reduction").and_then(|argument| argument.value.text()) == Some("sum");
                Value::from_kind(Kind::Criterion { which, sums }).with_flags(flags)
            }
            CallResult::Made(Kind::Container { .. }, flags) => {
                let bounded =
                    call.keyword("maxlen").is_some() || (path.ends_with("deque") && call.arguments.len() > 1);
                let graph =
                    call.arguments.first().map_or(Graph::none(), |argument| argument.value.graph.clone());
                let weights = Self::kept_weights(path, &call.arguments);
                let mut made = Value {
                    graph,
                    weights,
                    ..Value::from_kind(Kind::Container { bounded }).with_flags(flags)
                };
                let first = call.arguments.first().map(|first| &first.value);
                for named in call.arguments.iter().filter(|argument| argument.name.is_some()) {
                    made.add_item(&named.value);
                    made.graph = made.graph.union(&named.value.graph);
                    made.flags = made.flags.union(super::model_call::scalar_with_graph(&named.value));
                }
                match (path, first) {
                    ("collections.defaultdict", Some(class)) => {
                        if let Some(item) = self.object_of(&class.kind) {
                            made.add_item(&item);
                        }
                    }
                    (_, Some(first)) if first.items.is_some() => made.items.clone_from(&first.items),
                    _ => {}
                }
                made
            }
            CallResult::Made(Kind::Module, flags) => {
                let norm = call.arguments.iter().any(|argument| argument.value.is(Flags::BATCH_NORM));
                let device =
                    call.keyword("device").map_or(Device::Unknown, |argument| device_of(&argument.value));
                let flags = if norm { flags.union(Flags::BATCH_NORM) } else { flags };
                // The result of `Sequential` is that of its last layer.
                let last = call.arguments.last().filter(|_| path == "torch.nn.Sequential");
                let flags = flags
                    .union(last.map_or(Flags::NONE, |last| last.value.flags.intersection(LAST_OPERATIONS)));
                Value {
                    weights: self.made_weights(call),
                    ..Value::from_kind(Kind::Module).with_device(device).with_flags(flags)
                }
            }
            CallResult::Made(kind, flags) => {
                let unknown = matches!(kind, Kind::Unknown);
                let mut value = Value::from_kind(kind).with_flags(flags);
                if matches!(value.kind, Kind::Optimizer) {
                    let held = call.argument(0, "params").or_else(|| call.keyword("parameters"));
                    value.weights = held.map_or_else(Weights::default, |held| held.value.weights.clone());
                }
                if unknown { Value { graph: inputs.clone().with_unknown(), ..value } } else { value }
            }
            CallResult::Created => {
                let device =
                    call.keyword("device").map_or(Device::Cpu, |argument| device_of(&argument.value));
                let trains = call
                    .keyword("requires_grad")
                    .is_some_and(|argument| argument.value.truth() != Some(false));
                let graph = if trains { Graph::unknown() } else { Graph::none() };
                let first = call.arguments.first().map(|first| &first.value);
                let is_read = first.is_some_and(|first| {
                    first.is(Flags::READ) || first.elements().is_some_and(|item| item.is(Flags::READ))
                });
                let flags = if is_read { Flags::READ } else { Flags::NONE };
                Value::tensor(graph).with_device(device).with_flags(flags)
            }
            CallResult::Tensor(flags) => {
                let mut value = Value::tensor(inputs.clone()).with_flags(flags);
                value.device =
                    call.arguments.first().map_or(Device::Unknown, |argument| argument.value.device);
                for flag in
                    [Flags::DIVIDED, Flags::OUTPUT, Flags::OPAQUE, Flags::DETACHED, Flags::NO_GRAD_BUILT]
                {
                    if call.arguments.first().is_some_and(|argument| argument.value.is(flag)) {
                        value = value.with_flags(flag);
                    }
                }
                let scalar = call.arguments.first().is_some_and(|first| first.value.is(Flags::SCALAR));
                let last = path.rsplit('.').next().unwrap_or(path);
                if ["torch.mean", "torch.sum"].contains(&path)
                    || scalar && super::library_calls::is_elementwise(last)
                {
                    value = value.with_flags(Flags::SCALAR);
                }
                if self.frame.grad == Grad::Off && !value.graph.is_none() {
                    value.graph = Graph::none();
                    value = value.with_flags(Flags::NO_GRAD_BUILT);
                }
                value
            }
            CallResult::Loss => self.call_loss(call, false, inputs),
            CallResult::Same(flags) => {
                let Some(first) = call.arguments.first() else { return Value::unknown() };
                let mut value = first.value.clone().with_flags(flags);
                if value.is_unknown() && !flags.has(Flags::NONE) || flags.has(Flags::DISTRIBUTED) {
                    value.kind = Kind::Module;
                }
                if path == "copy.deepcopy" {
                    // A copy has its own graph, and is not an alias.
                    if value.weights.is_known() || value.is_module() {
                        value.weights = self.made_weights(&Call { arguments: Vec::new(), ..call.clone() });
                    }
                    if matches!(value.kind, Kind::StateDict) {
                        value.kind = Kind::Container { bounded: true };
                        value.flags = value.flags.union(Flags::WEIGHTS.union(Flags::COPIED));
                    }
                    if value.is_unknown() {
                        value.graph = value.graph.with_unknown();
                    }
                }
                value
            }
            // `int(random.uniform(…))`
            CallResult::Number if path.starts_with("builtins.") => {
                let drawn = call.arguments.first().is_some_and(|argument| argument.value.is(Flags::RANDOM));
                let batches = path == "builtins.len"
                    && call.arguments.first().is_some_and(|of| matches!(of.value.kind, Kind::Loader(_)));
                let flags = if batches { Flags::LENGTH } else { Flags::NONE };
                let flags = if drawn { flags.union(Flags::RANDOM) } else { flags };
                Value::from_kind(Kind::Number).with_flags(flags)
            }
            CallResult::Number => Value::from_kind(Kind::Number),
            CallResult::Loader => {
                let next = self.loaders_at.len() as u32;
                let id = *self.loaders_at.entry(call.span.start).or_insert(next);
                Value::from_kind(Kind::Loader(Some(LoaderId(id))))
            }
            CallResult::Scaler => {
                let next = self.scalers_at.len() as u32;
                let id = *self.scalers_at.entry(call.span.start).or_insert(next);
                Value::from_kind(Kind::Scaler(Some(ScalerId(id))))
            }
        }
    }
}
