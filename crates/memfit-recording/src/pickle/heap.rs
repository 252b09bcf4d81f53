//! What a pickle makes: values, containers, and the rows that dicts became.

/// A value on the stack. What a kind holds has eight bytes, always: so a value is moved as two words, and
/// read back as they were written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    True,
    False,
    Int(i64),
    /// A number that only fits without a sign.
    Unsigned(u64),
    /// A number of more than 64 bits.
    Huge,
    Float(f64),
    /// The number that the shape gave a text.
    Text(u64),
    /// The number of a container.
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

    /// The value as a text's number.
    pub(crate) const fn as_text(self) -> Option<u32> {
        match self {
            Self::Text(id) => Some(id as u32),
            _ => None,
        }
    }
}

/// Which of a shape's tables a row is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowKind(pub(crate) u8);

/// A row of one of a shape's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) kind: RowKind,
    pub(crate) index: u32,
}

/// What has become of a container.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Object {
    EmptyList,
    EmptyDict,
    /// Its place among the lists.
    List(u32),
    Dict(u32),
    Tuple(u32),
    /// A dict that became a row.
    Row(RowKind, u32),
    /// A list of consecutive rows of one table: its place among the runs.
    Run(u32),
    /// A list of rows that the shape keeps itself, under a number.
    Kept(u32),
}

/// Consecutive rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) kind: RowKind,
    pub(crate) start: u32,
    pub(crate) length: u32,
}

/// Whoever knows what the data means.
pub(crate) trait Shape {
    /// Gives a text its number, the same for the same text.
    fn text(&mut self, text: &str) -> u32;

    /// The number of a text that was seen lately, by its bytes, where that is known at a glance.
    fn text_seen(&self, bytes: &[u8]) -> Option<u32>;

    /// The text with a number.
    fn text_of(&self, id: u32) -> &str;

    /// Is shown the pairs of a new dict, keys and values in turn, and may make it a row.
    fn dict(&mut self, pairs: &[Value], heap: &Heap) -> Option<Row>;

    /// Whether lists of rows of a table are kept by the shape, and not as runs.
    fn keeps(&self, kind: RowKind) -> bool;

    /// Keeps a list: the one that was kept under `before`, if any, with more rows.
    fn keep(&mut self, before: Option<u32>, rows: &[u32]) -> u32;

    /// Roughly how many bytes the shape holds.
    fn memory(&self) -> u64;
}

/// All containers.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    objects: Vec<Object>,
    /// Elements of lists, and of dicts: keys and values in turn.
    lists: Vec<Vec<Value>>,
    /// Where the elements of each tuple begin and end among `tupled`.
    tuples: Vec<(u32, u32)>,
    /// Elements of all tuples.
    tupled: Vec<Value>,
    runs: Vec<Run>,
    /// Elements of all lists.
    elements: usize,
    /// Used again and again for the rows of a list.
    rows: Vec<u32>,
}

impl Heap {
    pub(super) fn with_room(objects: usize) -> Self {
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

    /// The row that a dict became.
    pub(crate) fn row(&self, value: Value) -> Option<Row> {
        match self.object(value)? {
            Object::Row(kind, index) => Some(Row { kind, index }),
            _ => None,
        }
    }

    /// The rows of a list, if it is one of rows of one table.
    pub(crate) fn run(&self, value: Value) -> Option<Run> {
        match self.object(value)? {
            Object::Run(run) => Some(self.runs[run as usize]),
            _ => None,
        }
    }

    /// The elements of a list or tuple of anything.
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

    /// Whether a value is a list or a tuple, of whatever.
    pub(crate) fn is_list(&self, value: Value) -> bool {
        matches!(
            self.object(value),
            Some(Object::EmptyList | Object::List(_) | Object::Tuple(_) | Object::Run(_) | Object::Kept(_))
        )
    }

    /// The pairs of a dict that became no row.
    pub(crate) fn pairs(&self, value: Value) -> impl Iterator<Item = (Value, Value)> {
        let pairs = match self.object(value) {
            Some(Object::Dict(dict)) => &self.lists[dict as usize][..],
            _ => &[],
        };
        pairs.chunks_exact(2).map(|pair| (pair[0], pair[1]))
    }

    /// Adds elements to a list. Says whether `list` is one.
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

    /// Adds pairs to a dict. Says whether `dict` is one that can still grow.
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

    /// Begins to collect rows for [`Self::keep_rows`].
    pub(super) fn begin_rows(&mut self) {
        self.rows.clear();
    }

    /// Collects a row. Says whether the value is one, and of the same table as those before it.
    #[inline]
    pub(super) fn collect_row(&mut self, value: Value, kind: &mut Option<RowKind>) -> bool {
        let Some(Object::Row(own, index)) = self.object(value) else { return false };
        self.rows.push(index);
        *kind.get_or_insert(own) == own
    }

    /// Makes an empty list one of the rows that were collected, if the shape keeps such lists: under which
    /// number it did.
    pub(super) fn keep_rows(&mut self, list: Value, kind: RowKind, shape: &mut impl Shape) -> Option<u32> {
        if self.object(list)? != Object::EmptyList || !shape.keeps(kind) {
            return None;
        }
        let kept = shape.keep(None, &self.rows);
        self.keep_again(list, kept).then_some(kept)
    }

    /// Makes an empty list one that the shape keeps already. Says whether it was one.
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

    /// The table that all elements are rows of, if there is one; the rows themselves are then in `self.rows`.
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

    /// Roughly how many bytes this holds.
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
