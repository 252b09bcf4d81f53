//! Evaluation of expressions to abstract values.

use std::sync::Arc;

use ruff_python_ast::{Comprehension, Expr, Number, Operator, UnaryOp};

use super::definitions::dotted;
use super::env::{mark, merge, take};
use super::{MAX_DEPTH, Walker, span};
use crate::facts::{CounterBinding, IterableKind};
use crate::facts::{DType, Device, Flags, Grad, Graph, Kind, Named, Value, Weights};

impl<'a> Walker<'a> {
    pub(super) fn eval(&mut self, expression: &'a Expr) -> Value {
        if self.depth > MAX_DEPTH {
            return Value::unknown();
        }
        self.depth += 1;
        let value = self.eval_inner(expression);
        self.depth -= 1;
        value
    }

    fn eval_inner(&mut self, expression: &'a Expr) -> Value {
        match expression {
            Expr::Name(name) => self.lookup(name.id.as_str()).0,
            Expr::Attribute(node) => self.attribute_value(expression, node),
            Expr::Call(node) => self.call(node, false),
            Expr::Subscript(node) => self.subscript(node),
            Expr::BinOp(node) => {
                let left = self.eval(&node.left);
                let right = self.eval(&node.right);
                let right = self.with_option_flags(node.op, &node.right, right);
                let result = self.arithmetic(node.op, &left, &right).divided_in(span(node));
                if matches!(node.op, Operator::Div) && is_byte_range(&node.right) {
                    return result
                        .with_flags(left.flags.intersection(Flags::WIDENED.union(Flags::BATCH)))
                        .with_flags(Flags::BYTES);
                }
                result
            }
            Expr::UnaryOp(node) if matches!(node.op, UnaryOp::Not) => self.evaluate_test(expression),
            Expr::UnaryOp(node) => {
                let value = self.eval(&node.operand);
                match (node.op, &value.kind) {
                    (UnaryOp::USub, Kind::Int(number)) => {
                        Value::from_kind(number.checked_neg().map_or(Kind::Number, Kind::Int))
                    }
                    _ => value,
                }
            }
            Expr::BoolOp(_) | Expr::Compare(_) => self.evaluate_test(expression),
            Expr::If(node) => {
                self.condition(&node.test);
                let since = mark(&self.frame.env, &self.graphs);
                let body = self.eval(&node.body);
                let first = take(&mut self.frame.env, &mut self.graphs, since);
                let since = mark(&self.frame.env, &self.graphs);
                let orelse = self.eval(&node.orelse);
                let second = take(&mut self.frame.env, &mut self.graphs, since);
                merge(&mut self.frame.env, &mut self.graphs, &[first, second]);
                // "cuda" if there is one, else "cpu": a GPU is assumed, since memory matters there.
                match (body.text(), orelse.text()) {
                    (Some(a), Some(b)) if a.starts_with("cuda") && b == "cpu" => body,
                    (Some(a), Some(b)) if b.starts_with("cuda") && a == "cpu" => orelse,
                    _ => body.either(&orelse),
                }
            }
            Expr::Named(node) => {
                let value = self.eval(&node.value);
                self.assign(&node.target, value.clone(), Some(&node.value), span(node));
                value
            }
            Expr::NumberLiteral(node) => Value::from_kind(match &node.value {
                Number::Int(number) => number.as_i64().map_or(Kind::Number, Kind::Int),
                _ => Kind::Number,
            }),
            Expr::StringLiteral(node) => Value::from_kind(Kind::Str(node.value.to_str().into())),
            Expr::BooleanLiteral(node) => Value::from_kind(Kind::Bool(node.value)),
            Expr::NoneLiteral(_) => Value::from_kind(Kind::None),
            Expr::List(node) => self.container(&node.elts),
            Expr::Set(node) => self.container(&node.elts),
            Expr::Tuple(node) => {
                let parts: Vec<Value> = node.elts.iter().map(|part| self.eval(part)).collect();
                let graph = parts.iter().fold(Graph::none(), |graph, part| graph.union(&part.graph));
                if parts.len() > 16 {
                    return Value { graph, ..Value::from_kind(Kind::Unknown) };
                }
                Value { graph, ..Value::from_kind(Kind::Tuple(Arc::from(parts))) }
            }
            Expr::Dict(node) => {
                let mut graph = Graph::none();
                let (mut weights, mut flags) = (Weights::default(), Flags::NONE);
                let mut dict = Value::from_kind(Kind::Container { bounded: false });
                let mut named: Option<Vec<(Arc<str>, Value)>> = Some(Vec::new());
                for item in &node.items {
                    let key = item.key.as_ref().map(|key| self.eval(key));
                    let value = self.eval(&item.value);
                    match (&mut named, key.as_ref().map(|key| &key.kind)) {
                        (Some(named), Some(Kind::Str(key))) => named.push((key.clone(), value.clone())),
                        _ => named = None,
                    }
                    dict.add_item(&value);
                    graph = graph.union(&value.graph);
                    flags = flags.union(value.flags.intersection(Flags::OUTPUT));
                    flags = flags.union(super::model_call::scalar_with_graph(&value));
                    weights = weights.union(&value.weights);
                    let is_group = key.is_some_and(|key| key.text() == Some("params"));
                    if is_group && !value.weights.is_known() {
                        weights = weights.with_unknown_owners();
                    }
                }
                Value { graph, flags, weights, named: named.and_then(Named::new), ..dict }
            }
            Expr::ListComp(node) => self.comprehension(&node.generators, &[&node.elt]),
            Expr::SetComp(node) => self.comprehension(&node.generators, &[&node.elt]),
            Expr::Generator(node) => self.comprehension(&node.generators, &[&node.elt]),
            Expr::DictComp(node) => match &node.key {
                Some(key) => self.comprehension(&node.generators, &[key, &node.value]),
                None => self.comprehension(&node.generators, &[&node.value]),
            },
            Expr::Starred(node) => self.eval(&node.value),
            Expr::Await(node) => self.eval(&node.value),
            Expr::Yield(node) => {
                self.frame.yields = true;
                if let Some(value) = &node.value {
                    self.eval(value);
                    self.escape(value);
                }
                Value::unknown()
            }
            Expr::YieldFrom(node) => {
                self.frame.yields = true;
                self.eval(&node.value);
                self.escape(&node.value);
                Value::unknown()
            }
            Expr::FString(_) | Expr::TString(_) | Expr::BytesLiteral(_) => Value::from_kind(Kind::Number),
            Expr::Slice(node) => {
                for part in node.lower.iter().chain(&node.upper).chain(&node.step) {
                    self.eval(part);
                }
                Value::from_kind(Kind::None)
            }
            _ => Value::unknown(),
        }
    }

    /// Marks a divisor that is named as the size of a batch.
    pub(super) fn with_option_flags(&self, op: Operator, expression: &Expr, value: Value) -> Value {
        match dotted(expression, self.text).filter(|_| matches!(op, Operator::Div)) {
            Some(name) => value.with_flags(flags_of_divisor(name)),
            None => value,
        }
    }

    fn evaluate_test(&mut self, expression: &'a Expr) -> Value {
        let found = self.condition(expression);
        if found.counted.is_some() || found.message.is_some() {
            return Value::from_kind(Kind::Test(found));
        }
        Value::from_kind(Kind::Number)
    }

    fn container(&mut self, parts: &'a [Expr]) -> Value {
        let mut graph = Graph::none();
        let mut weights = Weights::default();
        let mut list = Value::from_kind(Kind::Container { bounded: false });
        for part in parts {
            let value = self.eval(part);
            list.add_item(&value);
            graph = graph.union(&value.graph);
            weights = weights.union(&value.weights);
        }
        Value { graph, weights, ..list }
    }

    fn comprehension(&mut self, generators: &'a [Comprehension], parts: &[&'a Expr]) -> Value {
        let since = mark(&self.frame.env, &self.graphs);
        for generator in generators {
            let iterated = self.eval(&generator.iter);
            let (_, element, _) = self.iteration(&generator.iter, &iterated);
            let mut names = Vec::new();
            super::bindings::collect_names(&generator.target, &mut names);
            for (index, name) in names.iter().enumerate() {
                let value = match &element.kind {
                    Kind::Tuple(parts) if parts.len() == names.len() => parts[index].clone(),
                    Kind::Tuple(_) => Value::unknown(),
                    _ => element.clone(),
                };
                let looped = self.frame.looped;
                let how = CounterBinding::Elsewhere;
                let binding = super::env::Binding { value, looped, outer: looped, how };
                self.frame.env.set(name, binding);
            }
            for test in &generator.ifs {
                self.condition(test);
            }
        }
        // The keys of a dictionary have no graph.
        let mut last = Value::default();
        for part in parts {
            last = self.eval(part);
        }
        let graph = last.graph.clone();
        // The comprehension's names are local; its effects on graphs stay.
        let mut delta = take(&mut self.frame.env, &mut self.graphs, since);
        delta.forget_names();
        merge(&mut self.frame.env, &mut self.graphs, &[delta]);
        let flags = last.flags.intersection(Flags::WEIGHTS.union(Flags::COPIED));
        // `{name: [] for name in names}` grows in its lists.
        let is_of_lists = matches!(last.kind, Kind::Container { bounded: false }) && last.items.is_none();
        let mut made = Value {
            graph,
            device: last.device,
            flags,
            weights: last.weights.clone(),
            ..Value::from_kind(Kind::Container { bounded: !is_of_lists })
        };
        made.add_item(&last);
        made
    }

    /// Value of an attribute.
    fn attribute_value(&mut self, expression: &'a Expr, node: &'a ruff_python_ast::ExprAttribute) -> Value {
        if let Some(name) = dotted(expression, self.text) {
            if let Some(binding) = self.frame.env.get(name) {
                return binding.value.clone();
            }
            if name.starts_with("self.") {
                let (value, _) = self.lookup(name);
                if !value.is_unknown() {
                    return value;
                }
                // `self.model.module` is the model that is wrapped.
                let whole = name.strip_suffix(".module").map(|whole| self.lookup(whole).0);
                if let Some(whole) = whole.filter(Value::is_module) {
                    return whole;
                }
                return self.definitions.suggested(name);
            }
        }
        let owner = self.eval(&node.value);
        let attribute = node.attr.id.as_str();
        self.facts.reads_gradients |= attribute == "grad";
        match &owner.kind {
            Kind::Path(path) => self.member(path, attribute),
            Kind::Tensor | Kind::Unknown if attribute == "data" => {
                Value { kind: Kind::Tensor, graph: Graph::none(), ..owner }.with_flags(Flags::DETACHED)
            }
            Kind::Tensor | Kind::Unknown
                if ["shape", "ndim", "dtype", "requires_grad"].contains(&attribute) =>
            {
                Value::from_kind(Kind::Number)
            }
            Kind::Tensor | Kind::Unknown if attribute == "device" => {
                Value::from_kind(Kind::Device(if owner.device == Device::Unknown {
                    Device::Named
                } else {
                    owner.device
                }))
            }
            Kind::Tensor if attribute == "grad" => Value::tensor(Graph::none()).with_device(owner.device),
            Kind::Tensor if attribute == "loss" => {
                Value { kind: Kind::Tensor, ..owner }.with_flags(Flags::SCALAR)
            }
            Kind::Tensor => Value { kind: Kind::Tensor, ..owner }.without(Flags::SCALAR),
            Kind::Module if attribute == "module" => owner,
            Kind::Module => {
                let mut part = self.definitions.suggested(attribute);
                part.device = owner.device;
                part.weights = self.part_weights(&owner.weights, attribute);
                part
            }
            Kind::Exception(id) if attribute == "args" => Value::from_kind(Kind::ExceptionText(*id)),
            Kind::Undefined | Kind::Unknown => {
                let suggested = self.definitions.suggested(attribute);
                if suggested.is_unknown() {
                    let mut value = Value::unknown();
                    value.loader = owner.loader;
                    value.flags = owner.flags.intersection(Flags::BATCH);
                    value.device = owner.device;
                    return value;
                }
                suggested
            }
            _ => {
                let suggested = self.definitions.suggested(attribute);
                if suggested.is_unknown() { Value::unknown() } else { suggested }
            }
        }
    }

    fn member(&mut self, path: &str, attribute: &str) -> Value {
        imported_value(self.names.member(path, attribute))
    }

    /// Arithmetic: joins graphs and records divisions.
    pub(super) fn arithmetic(&mut self, op: Operator, left: &Value, right: &Value) -> Value {
        if let (Kind::Int(a), Kind::Int(b)) = (&left.kind, &right.kind) {
            let result = match op {
                Operator::Add => a.checked_add(*b),
                Operator::Sub => a.checked_sub(*b),
                Operator::Mult => a.checked_mul(*b),
                Operator::FloorDiv if *b != 0 => a.checked_div_euclid(*b),
                Operator::Mod if *b != 0 => a.checked_rem_euclid(*b),
                _ => None,
            };
            return Value::from_kind(result.map_or(Kind::Number, Kind::Int));
        }
        if matches!(left.kind, Kind::Container { .. }) && matches!(op, Operator::Add | Operator::Mult) {
            return Value {
                graph: left.graph.union(&right.graph),
                weights: left.weights.union(&right.weights),
                ..Value::from_kind(Kind::Container { bounded: true })
            };
        }
        let number = |value: &Value| matches!(value.kind, Kind::Int(_) | Kind::Number | Kind::Bool(_));
        if number(left) && number(right) {
            let drawn = left.is(Flags::RANDOM) || right.is(Flags::RANDOM);
            return Value::from_kind(Kind::Number).with_flags(if drawn {
                Flags::RANDOM
            } else {
                Flags::NONE
            });
        }
        let tensor = matches!(left.kind, Kind::Tensor) || matches!(right.kind, Kind::Tensor);
        let mut flags = Flags::NONE;
        let both = |flag: Flags| left.is(flag) && right.is(flag);
        let one =
            |flag: Flags| (left.is(flag) && !tensor_like(right)) || (right.is(flag) && !tensor_like(left));
        for flag in [Flags::SCALAR, Flags::NO_GRAD_BUILT, Flags::DETACHED] {
            if both(flag) || one(flag) {
                flags = flags.union(flag);
            }
        }
        // A factor or divisor of unknown kind is usually an option.
        let option =
            |value: &Value| value.is_unknown() && !value.graph.is_certain() && !value.is(Flags::BATCH);
        if matches!(op, Operator::Div | Operator::Mult)
            && (left.is(Flags::SCALAR) && option(right) || right.is(Flags::SCALAR) && option(left))
        {
            flags = flags.union(Flags::SCALAR);
        }
        for flag in [Flags::DIVIDED, Flags::OPAQUE, Flags::OUTPUT, Flags::SUMMED] {
            if left.is(flag) || right.is(flag) {
                flags = flags.union(flag);
            }
        }
        match op {
            Operator::Div => flags = flags.union(Flags::DIVIDED),
            // A weight may be `1 / k`.
            Operator::Mult => {
                let factor = if tensor_like(left) { right } else { left };
                if !matches!(factor.kind, Kind::Int(_)) {
                    flags = flags.union(Flags::OPAQUE);
                }
                // A mean times the number of samples is their sum.
                if factor.is(Flags::SAMPLES) {
                    flags = flags.union(Flags::SUMMED);
                }
            }
            _ => {}
        }
        let mut graph = left.graph.union(&right.graph);
        if self.frame.grad == Grad::Off {
            if !graph.is_none() || flags.has(Flags::NO_GRAD_BUILT) {
                flags = flags.union(Flags::NO_GRAD_BUILT);
            }
            graph = Graph::none();
        }
        let device = if left.device == Device::Unknown { right.device } else { left.device };
        let kind = if tensor { Kind::Tensor } else { Kind::Unknown };
        let divisor = if matches!(op, Operator::Div) { left.divided_by(right) } else { None };
        Value { kind, graph, device, flags, divisor, ..Value::default() }
    }

    /// Kind of an iterable, the value that each iteration binds, and the start value of `enumerate`.
    pub(super) fn iteration(
        &mut self,
        expression: &'a Expr,
        value: &Value,
    ) -> (IterableKind, Value, Option<Option<i64>>) {
        if self.depth > MAX_DEPTH {
            return (IterableKind::Other, Value::unknown(), None);
        }
        self.depth += 1;
        let mut found = self.iteration_inner(expression, value);
        self.depth -= 1;
        // One of several: a parameter of a model, a model of a list.
        if !found.1.weights.is_known() && value.weights.is_known() {
            found.1.weights = value.weights.clone();
        }
        found
    }

    fn iteration_inner(
        &mut self,
        expression: &'a Expr,
        value: &Value,
    ) -> (IterableKind, Value, Option<Option<i64>>) {
        if let Expr::Name(name) = expression
            && let Some(source) = self.frame.iterables.get(name.id.as_str()).copied()
        {
            let inner = self.evaluate_silently(source);
            return self.iteration(source, &inner);
        }
        if let Expr::Call(call) = expression {
            let path = self.interned_name(&call.func).unwrap_or_default();
            let last = path.rsplit('.').next().unwrap_or(&path);
            let first = call.arguments.args.first();
            match last {
                "enumerate" => {
                    let Some(first) = first else { return (IterableKind::Other, Value::unknown(), None) };
                    let inner = self.evaluate_silently(first);
                    let (over, element, _) = self.iteration(first, &inner);
                    let start = call
                        .arguments
                        .keywords
                        .iter()
                        .find(|keyword| keyword.arg.as_ref().is_some_and(|arg| arg.id.as_str() == "start"))
                        .map(|keyword| &keyword.value)
                        .or_else(|| call.arguments.args.get(1));
                    let start = match start {
                        None => Some(0),
                        Some(start) => self.evaluate_silently(start).int(),
                    };
                    let pair = Value {
                        graph: element.graph.clone(),
                        ..Value::from_kind(Kind::Tuple(Arc::from(vec![
                            Value::from_kind(Kind::Number),
                            element,
                        ])))
                    };
                    return (over, pair, Some(start));
                }
                "tqdm" | "trange" | "track" | "reversed" | "islice" | "iter" | "progress_bar"
                | "log_every" | "notebook_tqdm" => {
                    let Some(first) = first else { return (IterableKind::Other, Value::unknown(), None) };
                    if last == "trange" {
                        return (
                            IterableKind::Range(self.evaluate_silently(first).int()),
                            Value::from_kind(Kind::Number),
                            None,
                        );
                    }
                    let inner = self.evaluate_silently(first);
                    let (over, element, index) = self.iteration(first, &inner);
                    let over = if last == "islice" { IterableKind::Other } else { over };
                    return (over, element, index);
                }
                "zip" => {
                    let mut over = IterableKind::Other;
                    let mut parts = Vec::new();
                    for argument in &call.arguments.args {
                        let inner = self.evaluate_silently(argument);
                        let (found, element, _) = self.iteration(argument, &inner);
                        if matches!(over, IterableKind::Other) {
                            over = found;
                        }
                        parts.push(element);
                    }
                    return (over, Value::from_kind(Kind::Tuple(Arc::from(parts))), None);
                }
                "range" => {
                    let ints: Vec<Option<i64>> = call
                        .arguments
                        .args
                        .iter()
                        .map(|argument| self.evaluate_silently(argument).int())
                        .collect();
                    let rounds = match ints.as_slice() {
                        [Some(end)] => Some((*end).max(0)),
                        [Some(start), Some(end)] => Some((end - start).max(0)),
                        [Some(start), Some(end), Some(step)] if *step > 0 => {
                            Some(((end - start).max(0) + step - 1) / step)
                        }
                        _ => None,
                    };
                    return (IterableKind::Range(rounds), Value::from_kind(Kind::Number), None);
                }
                "cycle" | "count" | "repeat" if path.starts_with("itertools") || first.is_some() => {
                    return (IterableKind::Endless, Value::unknown(), None);
                }
                _ => {}
            }
        }
        match &value.kind {
            Kind::Loader(id) => {
                let mut element =
                    Value::from_kind(Kind::Tensor).with_flags(Flags::BATCH).with_device(Device::Cpu);
                element.kind = Kind::Unknown;
                element.loader = *id;
                (IterableKind::Loader(*id), element, None)
            }
            Kind::Tuple(parts) => (IterableKind::Literal(parts.len()), Value::unknown(), None),
            _ if value.is(Flags::WEIGHTS) => {
                (IterableKind::Other, self.one_of_weights(expression, value), None)
            }
            Kind::Container { .. } => {
                let over = match expression {
                    Expr::List(list) => IterableKind::Literal(list.elts.len()),
                    _ => IterableKind::Other,
                };
                if let Some(item) = value.item() {
                    return (over, item, None);
                }
                // The pairs of a dictionary that the function was given.
                if let Some(pair) = value.elements().filter(|pair| is_pair(pair)) {
                    return (over, pair.clone(), None);
                }
                let graph = if value.items.is_some() { value.element_graph() } else { value.graph.clone() };
                let mut element = Value { graph, device: value.device, ..Value::default() };
                if !element.graph.is_none() {
                    element.kind = Kind::Tensor;
                }
                (over, element, None)
            }
            // The outputs of a model, or the rows of one.
            Kind::Tensor if !value.graph.is_none() => {
                let flags = value.flags.intersection(Flags::OUTPUT.union(Flags::GIVEN));
                let element = Value { graph: value.graph.clone(), device: value.device, ..Value::default() };
                (IterableKind::Other, Value { kind: Kind::Tensor, ..element }.with_flags(flags), None)
            }
            _ => {
                let mut element = Value::unknown();
                element.graph = value.graph.clone();
                element.loader = value.loader;
                (IterableKind::Other, element, None)
            }
        }
    }

    /// Evaluates an expression again without recording facts.
    pub(super) fn evaluate_silently(&mut self, expression: &'a Expr) -> Value {
        self.frame.silent += 1;
        let since = mark(&self.frame.env, &self.graphs);
        let value = self.eval(expression);
        take(&mut self.frame.env, &mut self.graphs, since);
        self.frame.silent -= 1;
        value
    }
}

/// Value of an imported object, by its full name.
pub(super) fn imported_value(path: Arc<str>) -> Value {
    let kind = match &*path {
        "torch.float16" | "torch.half" => Kind::DType(DType::Half),
        "torch.bfloat16" => Kind::DType(DType::BFloat16),
        "torch.float32" | "torch.float" => Kind::DType(DType::Float),
        "torch.float64" | "torch.double" | "torch.long" | "torch.int64" | "torch.int32" | "torch.int"
        | "torch.uint8" | "torch.bool" => Kind::DType(DType::Other),
        _ => Kind::Path(path),
    };
    Value::from_kind(kind)
}

/// [`Flags::BATCH_SIZE`] for an option such as `args.train_batch_size`.
pub(super) fn flags_of_divisor(name: &str) -> Flags {
    let last = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_size = last == "batch_size" || last.ends_with("_batch_size") || last == "batchsize";
    if is_size { Flags::BATCH_SIZE } else { Flags::NONE }
}

/// Returns `true` for `255`, the divisor that normalises bytes.
fn is_byte_range(expression: &Expr) -> bool {
    match expression {
        Expr::NumberLiteral(node) => match &node.value {
            Number::Int(number) => number.as_i64() == Some(255),
            Number::Float(number) => (*number - 255.0).abs() < f64::EPSILON,
            Number::Complex { .. } => false,
        },
        _ => false,
    }
}

/// Returns `true` for a key and its value.
fn is_pair(value: &Value) -> bool {
    matches!(&value.kind, Kind::Tuple(parts) if parts.len() == 2 && parts[0].kind == Kind::Number)
}

fn tensor_like(value: &Value) -> bool {
    matches!(value.kind, Kind::Tensor) || !value.graph.is_none()
}
