//! Values built by a pickle: plain values, containers, and the rows that dicts were converted to.

/// Value on the stack. Every payload has eight bytes, so that a value is copied as two words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    True,
    False,
    Int(i64),
    /// Integer that only fits without a sign.
    Unsigned(u64),
    /// Integer of more than 64 bits.
    Huge,
    Float(f64),
    /// Id that the shape assigned to a text.
    Text(u64),
    /// Index of a container.
    Object(u64),
}

impl Value {
    /// The value as a count or an address.
    pub(crate) const fn as_u64(self) -> Option<u64> {
        match self {
            Self::Int(number) if number >= 0 => Some(number as u64),
            Self::Unsigned(number) => Some(number),
            _ => None,
        }
    }

    /// The value as a text id.
    pub(crate) const fn as_text(self) -> Option<u32> {
        match self {
            Self::Text(id) => Some(id as u32),
            _ => None,
        }
    }
}

/// Table of a shape that a row belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowKind(pub(crate) u8);

/// Row of one of a shape's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) kind: RowKind,
    pub(crate) index: u32,
}

/// Representation of a container.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Object {
    EmptyList,
    EmptyDict,
    /// Index of the list.
    List(u32),
    Dict(u32),
    Tuple(u32),
    /// A dict that was converted to a row.
    Row(RowKind, u32),
    /// A list of consecutive rows of one table, as the index of the run.
    Run(u32),
    /// A list of rows that the shape stores itself, under an id.
    Kept(u32),
}

/// Consecutive rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) kind: RowKind,
    pub(crate) start: u32,
    pub(crate) length: u32,
}

/// Interpreter of the data: converts dicts to rows and interns texts.
pub(crate) trait Shape {
    /// Interns a text; equal texts get the same id.
    fn text(&mut self, text: &str) -> u32;

    /// Looks up a recently seen text by its bytes. Returns `None` if the fast lookup does not find it.
    fn text_seen(&self, bytes: &[u8]) -> Option<u32>;

    /// Text with an id.
    fn text_of(&self, id: u32) -> &str;

    /// Receives the pairs of a new dict, keys and values in turn, and may convert it to a row.
    fn dict(&mut self, pairs: &[Value], heap: &Heap) -> Option<Row>;

    /// Returns `true` if the shape stores lists of a table's rows itself, instead of as runs.
    fn keeps(&self, kind: RowKind) -> bool;

    /// Stores a list: the one stored under `before`, if any, extended by rows. Returns its id.
    fn keep(&mut self, before: Option<u32>, rows: &[u32]) -> u32;

    /// Approximate memory of the shape in bytes.
    fn memory(&self) -> u64;
}

/// All containers.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    objects: Vec<Object>,
    /// Elements of lists and dicts. A dict has keys and values in turn.
    lists: Vec<Vec<Value>>,
    /// Range of each tuple's elements in `tupled`.
    tuples: Vec<(u32, u32)>,
    /// Elements of all tuples.
    tupled: Vec<Value>,
    runs: Vec<Run>,
    /// Total number of list elements.
    elements: usize,
    /// Scratch buffer for the rows of a list.
    rows: Vec<u32>,
}

impl Heap {
    pub(super) fn with_capacity(objects: usize) -> Self {
        Self { objects: Vec::with_capacity(objects), ..Self::default() }
    }

    #[inline]
    pub(crate) fn add(&mut self, object: Object) -> Value {
        self.objects.push(object);
        Value::Object((self.objects.len() - 1) as u64)
    }

    pub(crate) fn add_tuple(&mut self, elements: &[Value]) -> Value {
        let start = self.tupled.len() as u32;
        self.tupled.extend_from_slice(elements);
        self.tuples.push((start, self.tupled.len() as u32));
        self.add(Object::Tuple(self.tuples.len() as u32 - 1))
    }

    pub(crate) fn object(&self, value: Value) -> Option<Object> {
        match value {
            Value::Object(id) => self.objects.get(id as usize).copied(),
            _ => None,
        }
    }

    /// Returns the row that a dict was converted to.
    pub(crate) fn row(&self, value: Value) -> Option<Row> {
        match self.object(value)? {
            Object::Row(kind, index) => Some(Row { kind, index }),
            _ => None,
        }
    }

    /// Returns the rows of a list if all are of one table and consecutive.
    pub(crate) fn run(&self, value: Value) -> Option<Run> {
        match self.object(value)? {
            Object::Run(run) => Some(self.runs[run as usize]),
            _ => None,
        }
    }

    /// Elements of a list or tuple.
    pub(crate) fn elements(&self, value: Value) -> &[Value] {
        match self.object(value) {
            Some(Object::List(list)) => &self.lists[list as usize],
            Some(Object::Tuple(tuple)) => {
                let (start, end) = self.tuples[tuple as usize];
                &self.tupled[start as usize..end as usize]
            }
            _ => &[],
        }
    }

    /// Returns `true` if a value is a list or a tuple of any kind.
    pub(crate) fn is_list(&self, value: Value) -> bool {
        matches!(
            self.object(value),
            Some(Object::EmptyList | Object::List(_) | Object::Tuple(_) | Object::Run(_) | Object::Kept(_))
        )
    }

    /// Pairs of a dict that was not converted to a row.
    pub(crate) fn pairs(&self, value: Value) -> impl Iterator<Item = (Value, Value)> {
        let pairs = match self.object(value) {
            Some(Object::Dict(dict)) => &self.lists[dict as usize][..],
            _ => &[],
        };
        pairs.chunks_exact(2).map(|pair| (pair[0], pair[1]))
    }

    /// Appends elements to a list. Returns `false` if `list` is not one.
    pub(super) fn extend(&mut self, list: Value, elements: &[Value], shape: &mut impl Shape) -> bool {
        let Value::Object(id) = list else { return false };
        let before = self.objects[id as usize];
        if elements.is_empty() {
            return matches!(before, Object::EmptyList | Object::List(_) | Object::Run(_) | Object::Kept(_));
        }
        let after = match before {
            Object::EmptyList => match self.rows_of(elements) {
                Some(kind) if shape.keeps(kind) => Object::Kept(shape.keep(None, &self.rows)),
                Some(kind) => self.add_run(kind, elements),
                None => self.add_list(elements),
            },
            Object::Kept(kept) => match self.rows_of(elements) {
                Some(kind) if shape.keeps(kind) => Object::Kept(shape.keep(Some(kept), &self.rows)),
                _ => return false,
            },
            Object::Run(run) => {
                let Run { kind, start, length } = self.runs[run as usize];
                let goes_on = self.rows_of(elements) == Some(kind) && is_run(&self.rows, start + length);
                if goes_on {
                    self.runs[run as usize].length += elements.len() as u32;
                    before
                } else {
                    let mut all: Vec<Value> =
                        (start..start + length).map(|index| self.add(Object::Row(kind, index))).collect();
                    all.extend_from_slice(elements);
                    self.add_list(&all)
                }
            }
            Object::List(place) => {
                self.elements += elements.len();
                self.lists[place as usize].extend_from_slice(elements);
                before
            }
            _ => return false,
        };
        self.objects[id as usize] = after;
        true
    }

    /// Adds pairs to a dict. Returns `false` if `dict` is not one or was already converted to a row.
    pub(super) fn set_items(&mut self, dict: Value, pairs: &[Value], shape: &mut impl Shape) -> bool {
        let Value::Object(id) = dict else { return false };
        match self.objects[id as usize] {
            Object::EmptyDict if pairs.is_empty() => {}
            Object::EmptyDict => {
                self.objects[id as usize] = if let Some(row) = shape.dict(pairs, self) {
                    Object::Row(row.kind, row.index)
                } else {
                    let Object::List(place) = self.add_list(pairs) else { return false };
                    Object::Dict(place)
                };
            }
            Object::Dict(place) => {
                self.elements += pairs.len();
                self.lists[place as usize].extend_from_slice(pairs);
            }
            _ => return false,
        }
        true
    }

    /// Clears the rows collected for [`Self::keep_rows`].
    pub(super) fn begin_rows(&mut self) {
        self.rows.clear();
    }

    /// Collects a row. Returns `false` if the value is not a row or belongs to another table than those
    /// before it.
    #[inline]
    pub(super) fn collect_row(&mut self, value: Value, kind: &mut Option<RowKind>) -> bool {
        let Some(Object::Row(own, index)) = self.object(value) else { return false };
        self.rows.push(index);
        *kind.get_or_insert(own) == own
    }

    /// Converts an empty list to the collected rows if the shape stores such lists. Returns the id.
    pub(super) fn keep_rows(&mut self, list: Value, kind: RowKind, shape: &mut impl Shape) -> Option<u32> {
        if self.object(list)? != Object::EmptyList || !shape.keeps(kind) {
            return None;
        }
        let kept = shape.keep(None, &self.rows);
        self.keep_again(list, kept).then_some(kept)
    }

    /// Converts an empty list to one that the shape already stores. Returns `false` if it is not an empty
    /// list.
    pub(super) fn keep_again(&mut self, list: Value, kept: u32) -> bool {
        let Value::Object(id) = list else { return false };
        let empty = self.objects[id as usize] == Object::EmptyList;
        if empty {
            self.objects[id as usize] = Object::Kept(kept);
        }
        empty
    }

    fn add_list(&mut self, elements: &[Value]) -> Object {
        self.elements += elements.len();
        self.lists.push(elements.to_vec());
        Object::List(self.lists.len() as u32 - 1)
    }

    fn add_run(&mut self, kind: RowKind, elements: &[Value]) -> Object {
        let Some(&start) = self.rows.first() else { return Object::EmptyList };
        if !is_run(&self.rows, start) {
            return self.add_list(elements);
        }
        self.runs.push(Run { kind, start, length: self.rows.len() as u32 });
        Object::Run(self.runs.len() as u32 - 1)
    }

    /// Returns the table that all elements are rows of, if there is one; the rows themselves are then in
    /// `self.rows`.
    fn rows_of(&mut self, elements: &[Value]) -> Option<RowKind> {
        self.rows.clear();
        let kind = self.row(*elements.first()?)?.kind;
        let objects = &self.objects;
        let mut same = true;
        self.rows.extend(elements.iter().map(|element| {
            if let Value::Object(id) = *element
                && let Object::Row(other, index) = objects[id as usize]
                && other == kind
            {
                return index;
            }
            same = false;
            0
        }));
        same.then_some(kind)
    }

    /// Approximate memory in bytes.
    pub(super) fn memory(&self) -> u64 {
        let bytes = self.objects.len() * size_of::<Object>()
            + self.elements * size_of::<Value>()
            + self.lists.len() * size_of::<Vec<Value>>()
            + self.tuples.len() * size_of::<(u32, u32)>()
            + self.tupled.len() * size_of::<Value>()
            + self.runs.len() * size_of::<Run>();
        bytes as u64
    }
}

fn is_run(rows: &[u32], start: u32) -> bool {
    rows.iter().zip(start..).all(|(row, expected)| *row == expected)
}
