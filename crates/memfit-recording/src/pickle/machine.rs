//! Stack machine that executes a pickle's operations.

use std::io::Read;

use memfit_vocabulary::acts;

use super::heap::{Heap, Object, Shape, Value};
use super::input::Input;
use super::memo::Memo;
use super::repeats::Repeats;
use super::{PickleError, PickleErrorKind, PickleLimits, op};

/// Initial capacity of the stack in values.
const INITIAL_STACK: usize = 256;

/// Approximate number of values made between two checks of the memory in use.
const VALUES_BETWEEN_CHECKS: usize = 1 << 16;

/// Machine that reads one pickle.
pub(crate) struct Machine<'shape, R, S> {
    pub(super) input: Input<R>,
    pub(super) shape: &'shape mut S,
    pub(super) limits: PickleLimits,
    pub(super) heap: Heap,
    pub(super) stack: Vec<Value>,
    /// Stack indices of the open marks.
    pub(super) marks: Vec<usize>,
    pub(super) memo: Memo,
    pub(super) repeats: Repeats,
}

/// Length of a text from which memory is checked at once.
const LONG_TEXT_BYTES: u64 = 1 << 10;

type Done = Result<(), PickleErrorKind>;

impl<'shape, R: Read, S: Shape> Machine<'shape, R, S> {
    pub(crate) fn new(reader: R, shape: &'shape mut S, limits: PickleLimits) -> Self {
        Self {
            input: Input::new(reader),
            shape,
            limits,
            heap: Heap::with_capacity(4 * INITIAL_STACK),
            stack: Vec::with_capacity(INITIAL_STACK),
            marks: Vec::with_capacity(INITIAL_STACK / 8),
            memo: Memo::with_capacity(4 * INITIAL_STACK),
            repeats: Repeats::default(),
        }
    }

    /// Reads the pickle. After an error, returns the values built so far with the error.
    pub(crate) fn run(mut self) -> (Option<Value>, Heap, Option<PickleError>) {
        match self.execute() {
            Ok(value) => (Some(value), self.heap, None),
            Err(error) => {
                self.close_all();
                (self.stack.first().copied(), self.heap, Some(error))
            }
        }
    }

    fn execute(&mut self) -> Result<Value, PickleError> {
        let mut offset = 0;
        self.begin().map_err(|kind| PickleError { offset, kind })?;
        let mut left = VALUES_BETWEEN_CHECKS;
        loop {
            let made = self.common_steps();
            offset = self.input.offset();
            let step = if made >= left {
                left = VALUES_BETWEEN_CHECKS;
                self.check_memory().and_then(|()| self.step())
            } else {
                left -= made;
                self.step()
            };
            match step {
                Ok(None) => {}
                Ok(Some(value)) => return Ok(value),
                Err(kind) => return Err(PickleError { offset, kind }),
            }
        }
    }

    fn begin(&mut self) -> Done {
        let not_a_pickle = |error| match error {
            PickleErrorKind::CutOff => PickleErrorKind::NotAPickle,
            other => other,
        };
        if self.input.byte().map_err(not_a_pickle)? != op::PROTO {
            return Err(PickleErrorKind::NotAPickle);
        }
        match self.input.byte().map_err(not_a_pickle)? {
            2..=5 => Ok(()),
            later @ 6..=15 if self.input.byte().is_ok() => Err(PickleErrorKind::Protocol(later)),
            _ => Err(PickleErrorKind::NotAPickle),
        }
    }

    /// Executes one operation. Returns the result after the last.
    #[inline]
    fn step(&mut self) -> Result<Option<Value>, PickleErrorKind> {
        let operation = self.input.byte()?;
        match operation {
            op::BINGET => {
                let index = u32::from(self.input.byte()?);
                self.recall(index)?;
            }
            op::LONG_BINGET => {
                let index = u32::from_le_bytes(self.input.array()?);
                self.recall(index)?;
            }
            op::MEMOIZE => self.memoize(self.memo.len() as u32)?,
            op::BINPUT => {
                let index = u32::from(self.input.byte()?);
                self.memoize(index)?;
            }
            op::LONG_BINPUT => {
                let index = u32::from_le_bytes(self.input.array()?);
                self.memoize(index)?;
            }
            op::BININT1 => {
                let number = self.input.byte()?;
                self.stack.push(Value::Int(i64::from(number)));
            }
            op::BININT2 => {
                let number = u16::from_le_bytes(self.input.array()?);
                self.stack.push(Value::Int(i64::from(number)));
            }
            op::BININT => {
                let number = i32::from_le_bytes(self.input.array()?);
                self.stack.push(Value::Int(i64::from(number)));
            }
            op::LONG1 => {
                let length = usize::from(self.input.byte()?);
                let number = decode_integer(self.input.bytes(length)?);
                self.stack.push(number);
            }
            op::MARK => self.mark()?,
            op::SETITEMS => self.set_items("SETITEMS")?,
            op::APPENDS => self.append_items()?,
            op::SETITEM => self.set_item()?,
            op::APPEND => self.append_item()?,
            op::EMPTY_DICT => self.push_object(Object::EmptyDict),
            op::EMPTY_LIST => self.push_object(Object::EmptyList),
            op::EMPTY_TUPLE => self.tuple(0, "EMPTY_TUPLE")?,
            op::TUPLE1 => self.tuple(1, "TUPLE1")?,
            op::TUPLE2 => self.tuple(2, "TUPLE2")?,
            op::TUPLE3 => self.tuple(3, "TUPLE3")?,
            op::TUPLE => {
                let from = self.marks.pop().ok_or(PickleErrorKind::StackEmpty("TUPLE"))?;
                self.tuple(self.stack.len() - from, "TUPLE")?;
            }
            op::SHORT_BINUNICODE => {
                let length = u64::from(self.input.byte()?);
                self.text(length)?;
            }
            op::BINUNICODE => {
                let length = u64::from(u32::from_le_bytes(self.input.array()?));
                self.text(length)?;
            }
            op::NONE => self.stack.push(Value::None),
            op::NEWTRUE => self.stack.push(Value::True),
            op::NEWFALSE => self.stack.push(Value::False),
            op::BINFLOAT => {
                let number = f64::from_be_bytes(self.input.array()?);
                self.stack.push(Value::Float(number));
            }
            op::FRAME => {
                self.input.array::<8>()?;
            }
            op::STOP => return self.stack.pop().map(Some).ok_or(PickleErrorKind::StackEmpty("STOP")),
            _ => self.rare(operation)?,
        }
        Ok(None)
    }

    #[cold]
    fn rare(&mut self, operation: u8) -> Done {
        match operation {
            op::BINUNICODE8 => {
                let length = u64::from_le_bytes(self.input.array()?);
                self.text(length)
            }
            op::LONG4 => {
                let length = u64::from(u32::from_le_bytes(self.input.array()?));
                self.check_length(length)?;
                let number = decode_integer(self.input.bytes(length as usize)?);
                self.stack.push(number);
                Ok(())
            }
            op::POP => {
                // In Python, this operation can also remove a mark.
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                    return Ok(());
                }
                self.stack.pop().map(drop).ok_or(PickleErrorKind::StackEmpty("POP"))
            }
            op::POP_MARK => {
                let from = self.marks.pop().ok_or(PickleErrorKind::StackEmpty("POP_MARK"))?;
                self.stack.truncate(from);
                Ok(())
            }
            op::DUP => {
                let top = self.top("DUP")?;
                self.stack.push(top);
                Ok(())
            }
            op::PROTO => self.input.byte().map(drop),
            _ if op::runs_code(operation) => Err(self.refuse(operation)),
            _ => Err(PickleErrorKind::UnknownOperation(operation)),
        }
    }

    /// Error for an operation that would run code, with the name of the object if the operation has one.
    fn refuse(&mut self, operation: u8) -> PickleErrorKind {
        let name = match operation {
            op::GLOBAL | op::INST => self.line().zip(self.line()),
            op::STACK_GLOBAL => {
                let text = |value: &Value| value.as_text().map(|id| clipped(self.shape.text_of(id)));
                let mut top = self.stack.iter().rev();
                let attribute = top.next().and_then(text);
                top.next().and_then(text).zip(attribute)
            }
            _ => None,
        };
        let name = name.map_or_else(String::new, |(module, attribute)| format!(" of `{module}.{attribute}`"));
        PickleErrorKind::Refused { operation: op::name(operation).unwrap_or("?"), name }
    }

    /// Reads a line of text, the argument format of protocol 0.
    fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        while line.len() < 256 {
            match self.input.byte().ok()? {
                b'\n' => return Some(clipped(&String::from_utf8_lossy(&line))),
                byte => line.push(byte),
            }
        }
        None
    }

    fn recall(&mut self, index: u32) -> Done {
        let value = self.memo.get(index as usize).ok_or(PickleErrorKind::NotInMemo(index))?;
        self.stack.push(value);
        Ok(())
    }

    fn memoize(&mut self, index: u32) -> Done {
        let value = self.top("MEMOIZE")?;
        let (place, count) = (index as usize, self.memo.len());
        if place < count {
            self.memo.set(place, value);
            self.repeats.forget();
        } else if place == count {
            self.memo.push(value);
        } else if place == count + 1 {
            // Some writers count memo entries from one.
            self.memo.push(Value::None);
            self.memo.push(value);
        } else {
            return Err(PickleErrorKind::MemoSkips(index));
        }
        Ok(())
    }

    /// Returns the topmost value above the last mark.
    fn top(&self, operation: &'static str) -> Result<Value, PickleErrorKind> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack[floor..].last().copied().ok_or(PickleErrorKind::StackEmpty(operation))
    }

    fn mark(&mut self) -> Done {
        if self.marks.len() >= self.limits.depth {
            return Err(PickleErrorKind::TooDeep(self.limits.depth));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    fn push_object(&mut self, object: Object) {
        let value = self.heap.add(object);
        self.stack.push(value);
    }

    /// Returns the container below the last mark, and the index of its first element.
    fn container(&mut self, operation: &'static str) -> Result<(Value, usize), PickleErrorKind> {
        let from = self.marks.pop().ok_or(PickleErrorKind::StackEmpty(operation))?;
        let floor = self.marks.last().copied().unwrap_or(0);
        if from <= floor {
            return Err(PickleErrorKind::StackEmpty(operation));
        }
        Ok((self.stack[from - 1], from))
    }

    fn append_items(&mut self) -> Done {
        let (list, from) = self.container("APPENDS")?;
        let extended = self.heap.extend(list, &self.stack[from..], self.shape);
        self.stack.truncate(from);
        // The shape copies a stored list whenever it grows, so memory is checked at each growth.
        self.check_memory()?;
        is_list(extended, "APPENDS")
    }

    fn append_item(&mut self) -> Done {
        self.above_mark(2, "APPEND")?;
        let from = self.stack.len() - 1;
        let extended = self.heap.extend(self.stack[from - 1], &self.stack[from..], self.shape);
        self.stack.truncate(from);
        self.check_memory()?;
        is_list(extended, "APPEND")
    }

    fn set_items(&mut self, operation: &'static str) -> Done {
        let (dict, from) = self.container(operation)?;
        if !(self.stack.len() - from).is_multiple_of(2) {
            return Err(PickleErrorKind::StackEmpty(operation));
        }
        let set = self.heap.set_items(dict, &self.stack[from..], self.shape);
        self.stack.truncate(from);
        is_dict(set, operation)
    }

    fn set_item(&mut self) -> Done {
        self.above_mark(3, "SETITEM")?;
        let from = self.stack.len() - 2;
        let set = self.heap.set_items(self.stack[from - 1], &self.stack[from..], self.shape);
        self.stack.truncate(from);
        is_dict(set, "SETITEM")
    }

    fn tuple(&mut self, count: usize, operation: &'static str) -> Done {
        self.above_mark(count, operation)?;
        let from = self.stack.len() - count;
        let tuple = self.heap.add_tuple(&self.stack[from..]);
        self.stack.truncate(from);
        self.stack.push(tuple);
        Ok(())
    }

    fn above_mark(&self, count: usize, operation: &'static str) -> Done {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() < floor + count { Err(PickleErrorKind::StackEmpty(operation)) } else { Ok(()) }
    }

    fn text(&mut self, length: u64) -> Done {
        self.check_length(length)?;
        let bytes = self.input.bytes(length as usize)?;
        let text = match str::from_utf8(bytes) {
            Ok(text) => self.shape.text(text),
            // Python writes lone surrogates of file names like this.
            Err(_) if bytes.contains(&0xed) => self.shape.text(&String::from_utf8_lossy(bytes)),
            Err(_) => return Err(PickleErrorKind::NotUtf8),
        };
        self.stack.push(Value::Text(u64::from(text)));
        // Long texts are rare, but soon exceed everything else.
        if length >= LONG_TEXT_BYTES { self.check_memory() } else { Ok(()) }
    }

    const fn check_length(&self, found: u64) -> Done {
        let limit = self.limits.text;
        if found > limit { Err(PickleErrorKind::TextTooLong { found, limit }) } else { Ok(()) }
    }

    fn check_memory(&self) -> Done {
        let values = self.stack.len() * size_of::<Value>() + self.memo.memory() + self.repeats.memory();
        let bytes = self.heap.memory() + self.shape.memory() + values as u64;
        let limit = self.limits.memory_after(self.input.offset());
        if bytes > limit { Err(PickleErrorKind::TooLarge(limit)) } else { Ok(()) }
    }

    /// Adds all remaining values to the containers that they belong to, innermost first.
    fn close_all(&mut self) {
        loop {
            let floor = self.marks.pop().unwrap_or(0);
            self.close_unmarked(floor);
            if floor == 0 {
                break;
            }
            let container = self.stack[floor - 1];
            if !self.heap.extend(container, &self.stack[floor..], self.shape) {
                let whole = (self.stack.len() - floor) / 2 * 2;
                self.heap.set_items(container, &self.stack[floor..floor + whole], self.shape);
            }
            self.stack.truncate(floor);
        }
    }

    /// Adds a container right above an empty one to it, as its only element: Python writes no mark for a
    /// single element.
    fn close_unmarked(&mut self, floor: usize) {
        while let [.., list, element] = self.stack[floor..]
            && self.heap.object(list) == Some(Object::EmptyList)
            && self.heap.object(element).is_some()
        {
            self.heap.extend(list, &[element], self.shape);
            self.stack.pop();
        }
        while let [.., dict, key @ Value::Text(_), value] = self.stack[floor..]
            && self.heap.object(dict) == Some(Object::EmptyDict)
        {
            self.heap.set_items(dict, &[key, value], self.shape);
            self.stack.truncate(self.stack.len() - 2);
        }
    }
}

const fn is_list(is: bool, operation: &'static str) -> Done {
    if is { Ok(()) } else { Err(PickleErrorKind::WrongType { operation, needs: "a list" }) }
}

const fn is_dict(is: bool, operation: &'static str) -> Done {
    if is {
        Ok(())
    } else {
        Err(PickleErrorKind::WrongType { operation, needs: "a dict that is not complete yet" })
    }
}

/// Decodes a little-endian two's complement integer from the first `length` bytes, at most eight.
pub(super) fn long_of_eight(length: u8, bytes: &[u8]) -> i64 {
    let Some(bytes) = bytes.first_chunk() else { return 0 };
    // The sign is in the highest byte of the number.
    let unused = 64 - 8 * u32::from(length.min(8));
    let number = u64::from_le_bytes(*bytes).checked_shl(unused).unwrap_or(0).cast_signed();
    number.checked_shr(unused).unwrap_or(0)
}

/// Decodes a little-endian two's complement integer.
fn decode_integer(bytes: &[u8]) -> Value {
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let fill = if negative { 0xff } else { 0 };
    let (low, high) = bytes.split_at(bytes.len().min(8));
    let mut number = [fill; 8];
    number[..low.len()].copy_from_slice(low);
    if high.iter().any(|byte| *byte != fill) {
        return Value::Huge;
    }
    let signed = i64::from_le_bytes(number);
    match (negative, signed < 0) {
        (true, true) | (false, false) => Value::Int(signed),
        (false, true) => Value::Unsigned(signed.cast_unsigned()),
        (true, false) => Value::Huge,
    }
}

/// Shortens a text for a message and removes control characters.
fn clipped(text: &str) -> String {
    text.chars().take(80).map(|character| if acts(character) { '�' } else { character }).collect()
}
