//! The operations that nearly all of a snapshot consists of, carried out on what is in the buffer.
//!
//! [`Machine::step`](super::Machine) knows all operations and says what is wrong with them. This loop knows
//! the frequent ones, and leaves every one to it that is not whole or has anything wrong with it.

use std::io::Read;

use super::heap::{Heap, Object, Shape, Value};
use super::machine::{Machine, long_of_eight};
use super::memo::Memo;
use super::op;
use super::repeats::{Body, Repeats};

/// The bytes of the longest of the common operations, `LONG1` with eight bytes of number; texts are longer,
/// and looked at by themselves.
const LONGEST_COMMON: usize = 10;

/// How many bytes are looked at most at once: each makes one value at most.
const MOST_AT_ONCE: usize = 1 << 16;

impl<R: Read, S: Shape> Machine<'_, R, S> {
    /// Carries out the common operations as long as they are whole in the buffer and nothing is wrong with
    /// them. The first that is not so is left for [`Self::step`]. Returns about how many values it made,
    /// and one for the step that follows.
    pub(super) fn common_steps(&mut self) -> usize {
        let Self { input, stack, memo, marks, heap, limits, shape, repeats } = self;
        let bytes = input.buffered();
        let bytes = &bytes[..bytes.len().min(MOST_AT_ONCE)];
        let mut at = 0;
        let mut kept = 0;
        let before = stack.len() + memo.len();
        // Where in the stack the topmost mark is.
        let mut floor = marks.last().copied().unwrap_or(0);
        while let Some([operation, rest @ ..]) = bytes[at..].first_chunk::<LONGEST_COMMON>() {
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
                    // What the shape keeps of it, or the heap, is no more than there was on the stack.
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
                    // As Python begins each that is not empty.
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
        // Containers that were filled are no longer on the stack, and what they hold is.
        1 + (stack.len() + memo.len()).saturating_sub(before).max(at / 8) + kept
    }
}

/// The topmost value above the topmost mark, if it is a container, and what has become of that.
fn top_container(stack: &[Value], floor: usize, heap: &Heap) -> Option<(Value, Object)> {
    let top = *stack.get(floor..)?.last()?;
    Some((top, heap.object(top)?))
}

/// What the pairs of a dict are read from and go to.
struct Parts<'a> {
    /// Not read yet.
    bytes: &'a [u8],
    stack: &'a mut Vec<Value>,
    memo: &'a mut Memo,
    heap: &'a mut Heap,
    repeats: &'a mut Repeats,
}

impl<'a> Parts<'a> {
    /// Reads an empty dict's pairs, from behind its mark, and puts them into it. Where that comes to no end,
    /// there are the mark and the pairs so far instead, as the operations leave them that were carried
    /// out. Returns how many bytes these have.
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

    /// Puts keys and values on the stack, as long as the keys are from the memo and the values are plain, or
    /// lists that the shape keeps: such are events and frames. Gives what comes behind the dict's last
    /// operation, where it came to that.
    ///
    /// It does nothing that the loop over operations would not do. But keys and values take turns here, and
    /// of each there are few kinds.
    fn pairs(&mut self, shape: &mut impl Shape) -> Option<&'a [u8]> {
        loop {
            if let [op::SETITEMS, rest @ ..] = self.bytes {
                return Some(rest);
            }
            self.recall()?;
            self.value(shape)?;
        }
    }

    /// A value from the memo.
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
        let (value, length) = match *self.bytes.first_chunk::<LONGEST_COMMON>()? {
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

    /// Puts a value on the stack that has been read from so many bytes, and into the memo where that is asked
    /// for next.
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

/// Where the mark below the topmost one is, if what lies right below that is the container that is asked for.
fn filled(stack: &[Value], marks: &[usize], heap: &Heap, container: Object) -> Option<usize> {
    let (floor, below) = match *marks {
        [.., below, floor] => (floor, below),
        [floor] => (floor, 0),
        [] => return None,
    };
    let value = *stack.get(floor.checked_sub(1)?)?;
    (floor > below && heap.object(value) == Some(container)).then_some(below)
}

/// A list of things that were there before, from its mark to the operation that fills it, where the shape
/// keeps such lists: they go there at once, without a stop on the stack. Three quarters of a snapshot are
/// stacks of frames like this. Returns how many bytes that takes; nothing where it is something else, or goes
/// on beyond these bytes, and then nothing was done.
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
    let body = Body::at(bytes);
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
