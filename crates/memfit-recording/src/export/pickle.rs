//! Export of snapshots as pickles: plain data in protocol 4, as PyTorch writes them, with each text, frame
//! and stack written once.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::{FrameId, SegmentBlockState, Snapshot, StackId, TextId, TraceAction, TraceEvent, TracedSettings};

/// Number of elements between two marks, the same as in CPython's pickler.
const BATCH: usize = 1000;

impl Snapshot {
    /// Writes the snapshot as a pickle that PyTorch's tools can read.
    pub fn write(&self, to: impl Write) -> io::Result<()> {
        let mut pickle = Pickle {
            to,
            snapshot: self,
            next: 0,
            texts: HashMap::new(),
            stacks: HashMap::new(),
            frames: HashMap::new(),
        };
        pickle.to.write_all(&[0x80, 4])?;
        pickle.dict(|pickle| {
            pickle.key("segments")?;
            pickle.list(0..self.segments.len(), Pickle::segment)?;
            pickle.key("device_traces")?;
            pickle.list(0..self.traces.len(), |pickle, device| {
                pickle.list(self.traces[device].clone(), |pickle, event| pickle.event(&self.events[event]))
            })?;
            pickle.key("external_annotations")?;
            pickle.list(0..self.annotations.len(), Pickle::annotation)?;
            if let Some(settings) = &self.settings {
                pickle.key("allocator_settings")?;
                pickle.settings(settings)?;
            }
            Ok(())
        })?;
        pickle.to.write_all(b".")?;
        pickle.to.flush()
    }
}

struct Pickle<'snapshot, W> {
    to: W,
    snapshot: &'snapshot Snapshot,
    /// Next free index in the pickle memo.
    next: u32,
    texts: HashMap<String, u32>,
    stacks: HashMap<StackId, u32>,
    frames: HashMap<u32, u32>,
}

impl<W: Write> Pickle<'_, W> {
    fn dict(&mut self, pairs: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.to.write_all(b"}(")?;
        pairs(self)?;
        self.to.write_all(b"u")
    }

    fn list<T>(
        &mut self,
        elements: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.to.write_all(b"]")?;
        let count = elements.len();
        for (place, element) in elements.enumerate() {
            if place % BATCH == 0 {
                self.to.write_all(b"(")?;
            }
            write(self, element)?;
            if place % BATCH == BATCH - 1 || place + 1 == count {
                self.to.write_all(b"e")?;
            }
        }
        Ok(())
    }

    fn remember(&mut self) -> io::Result<u32> {
        self.to.write_all(&[0x94])?;
        self.next += 1;
        Ok(self.next - 1)
    }

    fn recall(&mut self, number: u32) -> io::Result<()> {
        if let Ok(number) = u8::try_from(number) {
            return self.to.write_all(&[b'h', number]);
        }
        self.to.write_all(b"j")?;
        self.to.write_all(&number.to_le_bytes())
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(&number) = self.texts.get(text) {
            return self.recall(number);
        }
        if let Ok(length) = u8::try_from(text.len()) {
            self.to.write_all(&[0x8c, length])?;
        } else {
            self.to.write_all(b"X")?;
            self.to.write_all(&(text.len() as u32).to_le_bytes())?;
        }
        self.to.write_all(text.as_bytes())?;
        let number = self.remember()?;
        self.texts.insert(text.to_owned(), number);
        Ok(())
    }

    fn key(&mut self, key: &'static str) -> io::Result<()> {
        self.text(key)
    }

    fn number(&mut self, number: u64) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(number) {
            return self.to.write_all(&[b'K', byte]);
        }
        if let Ok(short) = u16::try_from(number) {
            self.to.write_all(b"M")?;
            return self.to.write_all(&short.to_le_bytes());
        }
        if let Ok(number) = i32::try_from(number) {
            self.to.write_all(b"J")?;
            return self.to.write_all(&number.to_le_bytes());
        }
        // One more byte where the highest bit would be read as a sign.
        let bytes = number.to_le_bytes();
        let length = 8 - number.leading_zeros() as usize / 8;
        let sign = bytes[length - 1] & 0x80 != 0;
        self.to.write_all(&[0x8a, length as u8 + u8::from(sign)])?;
        self.to.write_all(&bytes[..length])?;
        if sign { self.to.write_all(&[0]) } else { Ok(()) }
    }

    fn pair(&mut self, key: &'static str, number: u64) -> io::Result<()> {
        self.key(key)?;
        self.number(number)
    }

    fn boolean(&mut self, key: &'static str, value: bool) -> io::Result<()> {
        self.key(key)?;
        self.to.write_all(&[if value { 0x88 } else { 0x89 }])
    }

    fn pool(&mut self, (first, second): (u64, u64)) -> io::Result<()> {
        self.number(first)?;
        self.number(second)?;
        self.to.write_all(&[0x86])
    }

    fn stack(&mut self, stack: StackId) -> io::Result<()> {
        self.key("frames")?;
        if let Some(&number) = self.stacks.get(&stack) {
            return self.recall(number);
        }
        let stacks = &self.snapshot.stacks;
        self.to.write_all(b"]")?;
        let number = self.remember()?;
        let elements = stacks.elements_of(stack);
        for batch in elements.chunks(BATCH) {
            self.to.write_all(b"(")?;
            for frame in batch {
                self.frame(FrameId(*frame))?;
            }
            self.to.write_all(b"e")?;
        }
        self.stacks.insert(stack, number);
        Ok(())
    }

    fn frame(&mut self, id: FrameId) -> io::Result<()> {
        if let Some(&number) = self.frames.get(&id.0) {
            return self.recall(number);
        }
        let Some(frame) = self.snapshot.stacks.frames().get(id.0 as usize).copied() else {
            return self.to.write_all(b"}");
        };
        let texts = &self.snapshot.texts;
        self.to.write_all(b"}")?;
        let number = self.remember()?;
        self.to.write_all(b"(")?;
        self.key("name")?;
        self.text(texts.get(frame.name))?;
        self.key("filename")?;
        self.text(texts.get(frame.file))?;
        self.pair("line", u64::from(frame.line))?;
        self.to.write_all(b"u")?;
        self.frames.insert(id.0, number);
        Ok(())
    }

    fn event(&mut self, event: &TraceEvent) -> io::Result<()> {
        let snapshot = self.snapshot;
        self.dict(|pickle| {
            pickle.key("action")?;
            pickle.text(event.action.name())?;
            pickle
                .pair(if event.action == TraceAction::Oom { "device_free" } else { "addr" }, event.address)?;
            pickle.pair("size", event.size)?;
            pickle.pair("stream", snapshot.streams.get(usize::from(event.stream)).copied().unwrap_or(0))?;
            if event.time_us != 0 {
                pickle.pair("time_us", event.time_us)?;
            }
            if event.metadata != TextId::NONE {
                pickle.key("user_metadata")?;
                pickle.text(snapshot.texts.get(event.metadata))?;
            }
            if let Some(pool) = event.pool_index().and_then(|pool| snapshot.pools.get(pool)) {
                pickle.key("pool_id")?;
                pickle.pool(*pool)?;
            }
            if let Some(category) = event.category {
                pickle.key("category")?;
                pickle.text(crate::snapshot::category_name(category))?;
            }
            pickle.stack(event.stack)
        })
    }

    fn segment(&mut self, place: usize) -> io::Result<()> {
        let snapshot = self.snapshot;
        let segment = &snapshot.segments[place];
        let blocks = snapshot.blocks_of(segment);
        let sum = |states: &[SegmentBlockState], of: fn(&crate::SegmentBlock) -> u64| -> u64 {
            blocks.iter().filter(|block| states.contains(&block.state)).map(of).sum()
        };
        let active = [SegmentBlockState::Allocated, SegmentBlockState::Pending];
        self.dict(|pickle| {
            pickle.pair("device", u64::from(segment.device))?;
            pickle.pair("address", segment.address)?;
            pickle.pair("total_size", segment.size)?;
            pickle.pair("allocated_size", sum(&active[..1], |block| block.size))?;
            pickle.pair("active_size", sum(&active, |block| block.size))?;
            pickle.pair("requested_size", sum(&active, |block| block.requested))?;
            pickle.pair("stream", segment.stream)?;
            pickle.key("segment_type")?;
            pickle.text(if segment.small { "small" } else { "large" })?;
            pickle.key("segment_pool_id")?;
            pickle.pool(segment.pool)?;
            pickle.boolean("is_expandable", segment.expandable)?;
            pickle.stack(StackId::NONE)?;
            pickle.key("blocks")?;
            pickle.list(blocks.iter(), |pickle, block| {
                pickle.dict(|pickle| {
                    pickle.pair("address", block.address)?;
                    pickle.pair("size", block.size)?;
                    pickle.pair("requested_size", block.requested)?;
                    pickle.key("state")?;
                    pickle.text(match block.state {
                        SegmentBlockState::Allocated => "active_allocated",
                        SegmentBlockState::Pending => "active_pending_free",
                        SegmentBlockState::Inactive => "inactive",
                    })?;
                    pickle.stack(block.stack)
                })
            })
        })
    }

    fn annotation(&mut self, place: usize) -> io::Result<()> {
        let annotation = self.snapshot.annotations[place];
        let name = self.snapshot.texts.get(annotation.name);
        self.dict(|pickle| {
            pickle.key("name")?;
            pickle.text(name)?;
            pickle.key("stage")?;
            pickle.text(if annotation.begins { "START" } else { "END" })?;
            pickle.pair("device", u64::from(annotation.device.unwrap_or(0)))?;
            pickle.pair("time_us", annotation.time_us)
        })
    }

    fn settings(&mut self, settings: &TracedSettings) -> io::Result<()> {
        self.dict(|pickle| {
            pickle.key("PYTORCH_CUDA_ALLOC_CONF")?;
            pickle.text(&settings.text)?;
            pickle.key("max_split_size")?;
            match settings.max_split_size {
                Some(size) => pickle.number(size)?,
                None => pickle.to.write_all(&[b'J', 0xff, 0xff, 0xff, 0xff])?,
            }
            pickle.key("garbage_collection_threshold")?;
            pickle.to.write_all(b"G")?;
            pickle.to.write_all(&settings.garbage_collection_threshold.to_be_bytes())?;
            pickle.boolean("expandable_segments", settings.expandable_segments)?;
            pickle.key("roundup_power2_divisions")?;
            pickle.dict(|pickle| {
                settings.roundup_power2_divisions.iter().try_for_each(|(power, divisions)| {
                    pickle.text(&power.to_string())?;
                    pickle.number(*divisions)
                })
            })
        })
    }
}
