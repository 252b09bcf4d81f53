//! Fast path for the operations that make up most of a snapshot, executed directly on the buffer.
//!
//! [`Machine::step`](super::Machine) handles all operations and reports their errors. This loop handles the
//! frequent ones, and leaves an operation that is incomplete or invalid to `step`.

use std::io::Read;

use super::heap::{Heap, Object, Shape, Value};
use super::machine::{Machine, long_of_eight};
use super::memo::Memo;
use super::op;
use super::repeats::{Body, Repeats};

/// Bytes of the longest common operation, `LONG1` with an eight-byte number. Texts may be longer and are
/// checked separately.
const MAX_COMMON_BYTES: usize = 10;

/// Maximum number of bytes processed in one call. Each byte makes at most one value.
const MAX_CHUNK_BYTES: usize = 1 << 16;

impl<R: Read, S: Shape> Machine<'_, R, S> {
    /// Executes common operations while they are complete in the buffer and valid. The first other operation
    /// is left for [`Self::step`]. Returns the approximate number of values made, plus one for the step that
    /// follows.
    pub(super) fn common_steps(&mut self) -> usize {
        let Self { input, stack, memo, marks, heap, limits, shape, repeats } = self;
        let bytes = input.buffered();
        let bytes = &bytes[..bytes.len().min(MAX_CHUNK_BYTES)];
        let mut at = 0;
        let mut kept = 0;
        let before = stack.len() + memo.len();
        // Stack index of the topmost mark.
        let mut floor = marks.last().copied().unwrap_or(0);
        while let Some([operation, rest @ ..]) = bytes[at..].first_chunk::<MAX_COMMON_BYTES>() {
            at += match *operation {
                op::BINGET => match memo.get(usize::from(rest[0])) {
                    Some(value) => {
                        stack.push(value);
                        2
                    }
                    None => break,
                },
                op::LONG_BINGET => {
                    let index = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
                    match memo.get(index as usize) {
                        Some(value) => {
                            stack.push(value);
                            5
                        }
                        None => break,
                    }
                }
                op::MEMOIZE if stack.len() > floor => {
                    memo.push(stack[stack.len() - 1]);
                    1
                }
                op::LONG1 if rest[0] <= 8 => {
                    stack.push(Value::Int(long_of_eight(rest[0], &rest[1..])));
                    2 + usize::from(rest[0])
                }
                op::BININT1 => {
                    stack.push(Value::Int(i64::from(rest[0])));
                    2
                }
                op::BININT2 => {
                    stack.push(Value::Int(i64::from(u16::from_le_bytes([rest[0], rest[1]]))));
                    3
                }
                op::BININT => {
                    let number = i32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
                    stack.push(Value::Int(i64::from(number)));
                    5
                }
                op::MARK if marks.len() + 1 < limits.depth => match top_container(stack, floor, heap) {
                    Some((list, Object::EmptyList)) => {
                        if let Some(length) = kept_list(&bytes[at..], list, memo, heap, *shape, repeats) {
                            kept += length;
                            length
                        } else {
                            floor = stack.len();
                            marks.push(floor);
                            1
                        }
                    }
                    Some((dict, Object::EmptyDict)) => {
                        let parts = Parts { bytes: &bytes[at + 1..], stack, memo, heap, repeats };
                        let length = parts.dict(dict, marks, &mut floor, *shape);
                        kept += length;
                        1 + length
                    }
                    _ => {
                        floor = stack.len();
                        marks.push(floor);
                        1
                    }
                },
                op::SETITEMS => {
                    let Some(below) = filled(stack, marks, heap, Object::EmptyDict) else { break };
                    if !(stack.len() - floor).is_multiple_of(2)
                        || !heap.set_items(stack[floor - 1], &stack[floor..], *shape)
                    {
                        break;
                    }
                    stack.truncate(floor);
                    marks.pop();
                    floor = below;
                    1
                }
                op::APPENDS => {
                    let Some(below) = filled(stack, marks, heap, Object::EmptyList) else { break };
                    // The shape or the heap keeps at most as many values as were on the stack.
                    kept += stack.len() - floor;
                    if !heap.extend(stack[floor - 1], &stack[floor..], *shape) {
                        break;
                    }
                    stack.truncate(floor);
                    marks.pop();
                    floor = below;
                    1
                }
                op::EMPTY_LIST => {
                    stack.push(heap.add(Object::EmptyList));
                    1
                }
                op::EMPTY_DICT => {
                    let dict = heap.add(Object::EmptyDict);
                    stack.push(dict);
                    // Python's encoding of a non-empty container.
                    if [rest[0], rest[1]] == [op::MEMOIZE, op::MARK] && marks.len() + 1 < limits.depth {
                        memo.push(dict);
                        let parts = Parts { bytes: &bytes[at + 3..], stack, memo, heap, repeats };
                        let length = parts.dict(dict, marks, &mut floor, *shape);
                        kept += length;
                        3 + length
                    } else {
                        1
                    }
                }
                op::SHORT_BINUNICODE => {
                    let length = 2 + usize::from(rest[0]);
                    let Some(text) = bytes.get(at + 2..at + length) else { break };
                    let id = match shape.text_seen(text) {
                        Some(id) => id,
                        None => match str::from_utf8(text) {
                            Ok(text) => shape.text(text),
                            Err(_) => break,
                        },
                    };
                    stack.push(Value::Text(u64::from(id)));
                    length
                }
                op::TUPLE2 if stack.len() >= floor + 2 => {
                    let from = stack.len() - 2;
                    let tuple = heap.add_tuple(&stack[from..]);
                    stack.truncate(from);
                    stack.push(tuple);
                    1
                }
                op::NEWTRUE => {
                    stack.push(Value::True);
                    1
                }
                op::NEWFALSE => {
                    stack.push(Value::False);
                    1
                }
                op::NONE => {
                    stack.push(Value::None);
                    1
                }
                _ => break,
            };
        }
        input.consume(at);
        // Containers that were filled have left the stack, but their elements are still held.
        1 + (stack.len() + memo.len()).saturating_sub(before).max(at / 8) + kept
    }
}

/// Returns the topmost value above the topmost mark if it is a container, with its object.
fn top_container(stack: &[Value], floor: usize, heap: &Heap) -> Option<(Value, Object)> {
    let top = *stack.get(floor..)?.last()?;
    Some((top, heap.object(top)?))
}

/// Source and targets of a dict's pairs.
struct Parts<'a> {
    /// Unread bytes.
    bytes: &'a [u8],
    stack: &'a mut Vec<Value>,
    memo: &'a mut Memo,
    heap: &'a mut Heap,
    repeats: &'a mut Repeats,
}

impl<'a> Parts<'a> {
    /// Reads the pairs of an empty dict, starting after its mark, and adds them to it. If the end is not
    /// reached, the stack holds the mark and the pairs read so far, as after the single operations. Returns
    /// the number of bytes consumed.
    fn dict(
        mut self,
        dict: Value,
        marks: &mut Vec<usize>,
        floor: &mut usize,
        shape: &mut impl Shape,
    ) -> usize {
        let (before, from) = (self.bytes.len(), self.stack.len());
        match self.pairs(shape) {
            Some(rest) if self.heap.set_items(dict, &self.stack[from..], shape) => {
                self.stack.truncate(from);
                before - rest.len()
            }
            _ => {
                *floor = from;
                marks.push(from);
                before - self.bytes.len()
            }
        }
    }

    /// Pushes keys and values as long as keys come from the memo and values are plain, or lists that the
    /// shape keeps; events and frames look like this. Returns the bytes after the dict's last operation if
    /// that was reached.
    ///
    /// The effect is that of the loop over single operations. It is faster since keys and values alternate
    /// and there are few kinds of each.
    fn pairs(&mut self, shape: &mut impl Shape) -> Option<&'a [u8]> {
        loop {
            if let [op::SETITEMS, rest @ ..] = self.bytes {
                return Some(rest);
            }
            self.recall()?;
            self.value(shape)?;
        }
    }

    /// Pushes a value from the memo.
    #[inline]
    fn recall(&mut self) -> Option<()> {
        let (index, rest) = match *self.bytes {
            [op::BINGET, index, ref rest @ ..] => (usize::from(index), rest),
            [op::LONG_BINGET, a, b, c, d, ref rest @ ..] => (u32::from_le_bytes([a, b, c, d]) as usize, rest),
            _ => return None,
        };
        self.stack.push(self.memo.get(index)?);
        self.bytes = rest;
        Some(())
    }

    #[inline]
    fn value(&mut self, shape: &mut impl Shape) -> Option<()> {
        let (value, length) = match *self.bytes.first_chunk::<MAX_COMMON_BYTES>()? {
            [op::BINGET | op::LONG_BINGET, ..] => return self.recall(),
            [op::LONG1, length @ ..=8, ref number @ ..] => {
                (Value::Int(long_of_eight(length, number)), 2 + usize::from(length))
            }
            [op::BININT1, number, ..] => (Value::Int(i64::from(number)), 2),
            [op::BININT2, a, b, ..] => (Value::Int(i64::from(u16::from_le_bytes([a, b]))), 3),
            [op::BININT, a, b, c, d, ..] => (Value::Int(i64::from(i32::from_le_bytes([a, b, c, d]))), 5),
            [op::NEWFALSE, ..] => (Value::False, 1),
            [op::NEWTRUE, ..] => (Value::True, 1),
            [op::SHORT_BINUNICODE, length, ..] => {
                let length = usize::from(length);
                let text = shape.text_seen(self.bytes.get(2..2 + length)?)?;
                self.push_memoized(Value::Text(u64::from(text)), 2 + length);
                return Some(());
            }
            [op::EMPTY_LIST, op::MEMOIZE, op::MARK, ..] => {
                let list = self.heap.add(Object::EmptyList);
                self.push_memoized(list, 1);
                let length = kept_list(self.bytes, list, self.memo, self.heap, shape, self.repeats)?;
                self.bytes = &self.bytes[length..];
                return Some(());
            }
            _ => return None,
        };
        self.stack.push(value);
        self.bytes = &self.bytes[length..];
        Some(())
    }

    /// Pushes a value read from `length` bytes, and stores it in the memo if the next operation asks for it.
    #[inline]
    fn push_memoized(&mut self, value: Value, length: usize) {
        self.stack.push(value);
        self.bytes = &self.bytes[length..];
        if let [op::MEMOIZE, rest @ ..] = self.bytes {
            self.memo.push(value);
            self.bytes = rest;
        }
    }
}

/// Returns the position of the second mark from the top if the value right below it is `container`.
fn filled(stack: &[Value], marks: &[usize], heap: &Heap, container: Object) -> Option<usize> {
    let (floor, below) = match *marks {
        [.., below, floor] => (floor, below),
        [floor] => (floor, 0),
        [] => return None,
    };
    let value = *stack.get(floor.checked_sub(1)?)?;
    (floor > below && heap.object(value) == Some(container)).then_some(below)
}

/// Reads a list of memoized rows, from its mark to the operation that fills it, directly into the shape,
/// without the stack. Three quarters of a snapshot are stacks of frames in this form. Returns the number of
/// bytes consumed. If the list has another form or exceeds the buffer, returns `None` and changes nothing.
fn kept_list(
    bytes: &[u8],
    list: Value,
    memo: &Memo,
    heap: &mut Heap,
    shape: &mut impl Shape,
    repeats: &mut Repeats,
) -> Option<usize> {
    if !matches!(bytes.get(1), Some(&(op::BINGET | op::LONG_BINGET))) {
        return None;
    }
    if let Some((length, kept)) = repeats.guess(bytes) {
        return heap.keep_again(list, kept).then_some(length);
    }
    let body = Body::parse(bytes);
    if let Some(body) = body
        && let Some(kept) = repeats.get(body)
    {
        return heap.keep_again(list, kept).then_some(body.bytes.len());
    }
    let mut kind = None;
    let mut rest = bytes.get(1..)?;
    heap.begin_rows();
    loop {
        let index;
        (index, rest) = match *rest {
            [op::LONG_BINGET, a, b, c, d, ref behind @ ..] => {
                (u32::from_le_bytes([a, b, c, d]) as usize, behind)
            }
            [op::BINGET, index, ref behind @ ..] => (usize::from(index), behind),
            [op::APPENDS, ref behind @ ..] => {
                let kept = heap.keep_rows(list, kind?, shape)?;
                if let Some(body) = body {
                    repeats.remember(body, kept);
                }
                return Some(bytes.len() - behind.len());
            }
            _ => return None,
        };
        if !heap.collect_row(memo.get(index)?, &mut kind) {
            return None;
        }
    }
}
