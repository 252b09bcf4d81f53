//! CUPTI, as far as PyTorch's profiler uses it: everything can be subscribed to and enabled, and nothing is
//! recorded.
//!
//! A profile has a complete CPU side; its device side is empty, which a note reports.

use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use memfit_vocabulary::Remark;

use super::entry::{Fails, Handle, Kind, Out, Ptr, entry_points};
use memfit_abi::handles::Objects;
use memfit_cuda::card;

/// The part of `CUptiResult` that is returned here.
mod status {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const INVALID_PARAMETER: i32 = 1;
    pub(super) const MAX_LIMIT_REACHED: i32 = 12;
    pub(super) const QUEUE_EMPTY: i32 = 18;
    pub(super) const NOT_SUPPORTED: i32 = 27;
    pub(super) const UNKNOWN: i32 = 999;
}

/// State of a subscription.
struct Subscriber;

impl Kind for Subscriber {
    fn objects() -> &'static Objects<Self> {
        static OBJECTS: Objects<Subscriber> = Objects::new(18);
        &OBJECTS
    }
}

/// Set while there is a subscriber; CUPTI allows one at a time.
static SUBSCRIBED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// External correlation ids of the calling thread, each with its kind.
    static CORRELATIONS: RefCell<Vec<(i32, u64)>> = const { RefCell::new(Vec::new()) };
}

/// Nanoseconds since the epoch, CUPTI's default clock.
fn timestamp() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos() as u64)
}

/// Accepts a request to enable activity, and adds a remark.
fn enable() -> i32 {
    card::remark(Remark::Cupti);
    status::SUCCESS
}

/// Writes a result.
fn write_result<T>(target: Out<T>, value: T) -> i32 {
    if target.write(value) { status::SUCCESS } else { status::INVALID_PARAMETER }
}

fn subscribe(subscriber: Out<Handle<Subscriber>>) -> i32 {
    if subscriber.is_null() {
        return status::INVALID_PARAMETER;
    }
    if SUBSCRIBED.swap(true, Relaxed) {
        return status::MAX_LIMIT_REACHED;
    }
    subscriber.set(Handle::new(Subscriber));
    status::SUCCESS
}

entry_points! {
    Fails(status::UNKNOWN);

    /// Subscribes to callbacks, which never come.
    fn cuptiSubscribe(subscriber: Out<Handle<Subscriber>>, _callback: Ptr, _data: Ptr) {
        subscribe(subscriber)
    }

    /// Does the same with parameters.
    fn cuptiSubscribe_v2(subscriber: Out<Handle<Subscriber>>, _callback: Ptr, _data: Ptr, _parameters: Ptr) {
        subscribe(subscriber)
    }

    /// Ends a subscription.
    fn cuptiUnsubscribe(subscriber: Handle<Subscriber>) {
        if !subscriber.destroy() {
            return status::INVALID_PARAMETER;
        }
        SUBSCRIBED.store(false, Relaxed);
        status::SUCCESS
    }

    /// Enables a callback.
    fn cuptiEnableCallback(_enable: u32, subscriber: Handle<Subscriber>, _domain: i32, _id: u32) {
        if subscriber.get().is_some() { status::SUCCESS } else { status::INVALID_PARAMETER }
    }

    /// Enables a domain's callbacks.
    fn cuptiEnableDomain(_enable: u32, subscriber: Handle<Subscriber>, _domain: i32) {
        if subscriber.get().is_some() { status::SUCCESS } else { status::INVALID_PARAMETER }
    }

    /// Enables all callbacks.
    fn cuptiEnableAllDomains(_enable: u32, subscriber: Handle<Subscriber>) {
        if subscriber.get().is_some() { status::SUCCESS } else { status::INVALID_PARAMETER }
    }

    /// Enables a kind of activity.
    fn cuptiActivityEnable(_kind: i32) { enable() }

    /// Enables a kind of activity for a context.
    fn cuptiActivityEnableContext(_context: Ptr, _kind: i32) { enable() }

    /// Enables the activity of one driver call.
    fn cuptiActivityEnableDriverApi(_id: u32, _enable: u8) { enable() }

    /// Enables the activity of one runtime call.
    fn cuptiActivityEnableRuntimeApi(_id: u32, _enable: u8) { enable() }

    /// Selects whether to record device timestamps of events.
    fn cuptiActivityEnableCudaEventDeviceTimestamps(_enable: u8) { enable() }

    /// Selects whether to record latencies.
    fn cuptiActivityEnableLatencyTimestamps(_enable: u8) { enable() }

    /// Selects whether to record launch attributes.
    fn cuptiActivityEnableLaunchAttributes(_enable: u8) { enable() }

    /// Selects whether to record all synchronisations.
    fn cuptiActivityEnableAllSyncRecords(_enable: u8) { enable() }

    /// Disables a kind of activity.
    fn cuptiActivityDisable(_kind: i32) { status::SUCCESS }

    /// Disables a kind of activity for a context.
    fn cuptiActivityDisableContext(_context: Ptr, _kind: i32) { status::SUCCESS }

    /// Registers the functions that would provide buffers; they are never called.
    fn cuptiActivityRegisterCallbacks(request: Ptr, complete: Ptr) {
        if request.is_null() || complete.is_null() { status::INVALID_PARAMETER } else { status::SUCCESS }
    }

    /// Registers the function that would provide timestamps; it is never called.
    fn cuptiActivityRegisterTimestampCallback(_callback: Ptr) { status::SUCCESS }

    /// Flushes recorded activity, of which there is none.
    fn cuptiActivityFlushAll(_flag: u32) { status::SUCCESS }

    /// Flushes a stream's recorded activity, of which there is none.
    fn cuptiActivityFlush(_context: Ptr, _stream: u32, _flag: u32) { status::SUCCESS }

    /// Sets the flush period.
    fn cuptiActivityFlushPeriod(_milliseconds: u32) { status::SUCCESS }

    /// Returns the next record of a buffer, of which there is none.
    fn cuptiActivityGetNextRecord(_buffer: Ptr, _size: usize, record: Out<usize>) {
        if record.write(0) { status::MAX_LIMIT_REACHED } else { status::INVALID_PARAMETER }
    }

    /// Returns the number of lost records: 0.
    fn cuptiActivityGetNumDroppedRecords(_context: Ptr, _stream: u32, dropped: Out<usize>) {
        write_result(dropped, 0)
    }

    /// Sets an attribute of the recording.
    fn cuptiActivitySetAttribute(_attribute: i32, size: Ptr, value: Ptr) {
        if size.is_null() || value.is_null() { status::INVALID_PARAMETER } else { status::SUCCESS }
    }

    /// Pushes an external correlation id.
    fn cuptiActivityPushExternalCorrelationId(kind: i32, id: u64) {
        CORRELATIONS.with_borrow_mut(|stack| stack.push((kind, id)));
        status::SUCCESS
    }

    /// Pops the last external correlation id of a kind.
    fn cuptiActivityPopExternalCorrelationId(kind: i32, last: Out<u64>) {
        let popped = CORRELATIONS.with_borrow_mut(|stack| {
            let index = stack.iter().rposition(|(each, _)| *each == kind)?;
            Some(stack.remove(index).1)
        });
        let Some(id) = popped else { return status::QUEUE_EMPTY };
        last.set(id);
        status::SUCCESS
    }

    /// Returns the time.
    fn cuptiGetTimestamp(time: Out<u64>) { write_result(time, timestamp()) }

    /// Returns the ordinal of a context's device: the current one.
    fn cuptiGetDeviceId(_context: Ptr, id: Out<u32>) { write_result(id, card::current_ordinal() as u32) }

    /// Returns the id of a context: there is one per device.
    fn cuptiGetContextId(_context: Ptr, id: Out<u32>) { write_result(id, card::current_ordinal() as u32 + 1) }

    /// Ends the recording and the subscription.
    fn cuptiFinalize() {
        SUBSCRIBED.store(false, Relaxed);
        status::SUCCESS
    }

    /// Returns the interface version of the loaded CUDA release.
    fn cuptiGetVersion(version: Out<u32>) { write_result(version, api_version(card::runtime_version())) }

    /// Returns the name of a result.
    fn cuptiGetResultString(code: i32, text: Out<*const c_char>) { write_result(text, name(code).as_ptr()) }

    /// Returns a message for a result.
    fn cuptiGetErrorMessage(code: i32, text: Out<*const c_char>) { write_result(text, name(code).as_ptr()) }
}

/// `CUPTI_API_VERSION` of a CUDA release: a counter up to 12, derived from the release's numbers since 13.
///
/// The real library cannot be queried: without the driver that it expects, it recurses until the stack
/// overflows.
fn api_version(runtime: i32) -> u32 {
    match runtime {
        13_000.. => (runtime / 1000 * 10_000 + runtime % 1000 / 10 * 100) as u32,
        12_090.. => 28,
        12_080.. => 26,
        12_060.. => 24,
        12_050.. => 23,
        12_040.. => 22,
        12_030.. => 21,
        12_020.. => 20,
        _ => 18,
    }
}

/// Names of the results returned here, and one for all others.
fn name(code: i32) -> &'static CStr {
    match code {
        status::SUCCESS => c"CUPTI_SUCCESS",
        status::INVALID_PARAMETER => c"CUPTI_ERROR_INVALID_PARAMETER",
        status::MAX_LIMIT_REACHED => c"CUPTI_ERROR_MAX_LIMIT_REACHED",
        status::QUEUE_EMPTY => c"CUPTI_ERROR_QUEUE_EMPTY",
        status::NOT_SUPPORTED => c"CUPTI_ERROR_NOT_SUPPORTED",
        _ => c"CUPTI_ERROR_UNKNOWN",
    }
}
