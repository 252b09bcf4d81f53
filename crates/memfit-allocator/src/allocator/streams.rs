//! Blocks in use on several streams: they become free when the work of all these streams is done.

use crate::allocator::Allocator;
use crate::block::BlockId;
use crate::device::Device;
use crate::error::FreeError;
use crate::ids::{Address, PoolId, Stream};

impl<D: Device> Allocator<D> {
    /// `Tensor.record_stream()`. The block's own stream needs no record.
    pub fn record_stream(&mut self, address: Address, stream: Stream) -> Result<(), FreeError> {
        let id = *self.allocated.get(&address.0).ok_or(FreeError(address))?;
        if self.blocks[id].stream == stream {
            return Ok(());
        }
        self.blocks[id].used_elsewhere = true;
        self.uses.entry(id).or_default().insert(stream);
        if !self.captures.is_empty() {
            self.uses_in_captures.entry(id).or_default().insert(stream);
        }
        Ok(())
    }

    /// Completes the free of a block that waits for other streams. For replays, whose trace has the time.
    pub fn finish_pending(&mut self, address: Address) -> Result<(), FreeError> {
        let waiting = self.pending.iter().copied().find(|id| self.blocks[*id].address == address.0);
        let id = waiting.ok_or(FreeError(address))?;
        for queue in self.events.values_mut() {
            queue.retain(|(_, waiting)| *waiting != id);
        }
        self.events.retain(|_, queue| !queue.is_empty());
        self.deferred.retain(|deferred| *deferred != id);
        self.uses.remove(&id);
        self.uses_in_captures.remove(&id);
        let block = &mut self.blocks[id];
        block.events = 0;
        block.used_elsewhere = false;
        self.complete_free(id);
        Ok(())
    }

    /// Records one event on each stream that used the block.
    pub(super) fn insert_events(&mut self, id: BlockId) {
        self.blocks[id].used_elsewhere = false;
        for stream in self.uses.remove(&id).unwrap_or_default() {
            let ticket = self.device.record_event(stream);
            self.blocks[id].events += 1;
            self.events.entry(stream).or_default().push_back((ticket, id));
        }
        self.pending.insert(id);
    }

    /// Completes the frees of blocks whose events are done, stream by stream, up to the first event that is
    /// not.
    pub(super) fn process_events(&mut self) {
        self.insert_deferred_events();
        if self.events.is_empty() {
            return;
        }
        let streams: Vec<Stream> = self.events.keys().copied().collect();
        for stream in streams {
            while let Some((ticket, id)) = self.events.get(&stream).and_then(|queue| queue.front()).copied() {
                if !self.device.is_done(ticket) {
                    break;
                }
                self.drop_event(stream, id);
            }
        }
        self.events.retain(|_, queue| !queue.is_empty());
    }

    fn drop_event(&mut self, stream: Stream, id: BlockId) {
        if let Some(queue) = self.events.get_mut(&stream) {
            queue.pop_front();
        }
        self.blocks[id].events -= 1;
        if self.blocks[id].events == 0 {
            self.complete_free(id);
        }
    }

    /// Waits for all events, and completes the frees of their blocks.
    pub(super) fn synchronize_and_free_events(&mut self) {
        self.insert_deferred_events();
        self.free_events_of(|_| true);
    }

    /// Waits for the events of blocks in some pools, and completes their frees.
    pub(super) fn free_events_of(&mut self, of: impl Fn(PoolId) -> bool) {
        self.stats.num_sync_all_streams += 1;
        for (stream, queue) in std::mem::take(&mut self.events) {
            for (ticket, id) in queue {
                if of(self.pools[self.blocks[id].pool.0 as usize].owner) {
                    self.device.synchronize(ticket);
                    self.blocks[id].events -= 1;
                    if self.blocks[id].events == 0 {
                        self.complete_free(id);
                    }
                } else {
                    self.events.entry(stream).or_default().push_back((ticket, id));
                }
            }
        }
    }

    /// Records events for blocks that were freed during a capture, only on streams that used them outside of
    /// it.
    fn insert_deferred_events(&mut self) {
        for id in std::mem::take(&mut self.deferred) {
            if let (Some(in_captures), Some(uses)) =
                (self.uses_in_captures.remove(&id), self.uses.get_mut(&id))
            {
                uses.retain(|stream| !in_captures.contains(stream));
            }
            self.insert_events(id);
            if self.blocks[id].events == 0 {
                self.complete_free(id);
            }
        }
    }
}
