//! Labels of the current thread's work: the stack of module calls, and the module of a backward node.
//!
//! Everything here is thread-local, of fixed size and without destructors, so that it can be used from the
//! allocator at any time, including thread exit.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum depth of module calls; deeper ones are labelled with the innermost that fits.
const MAX_DEPTH: usize = 64;

/// Number of threads that have been numbered so far.
static THREADS: AtomicU32 = AtomicU32::new(0);

/// Open module calls of a thread.
struct Stack {
    modules: [u32; MAX_DEPTH],
    depth: usize,
}

impl Stack {
    fn enter(&mut self, module: u32) {
        if let Some(slot) = self.modules.get_mut(self.depth) {
            *slot = module;
        }
        self.depth += 1;
    }

    /// Innermost open call, if any.
    fn top(&self) -> Option<u32> {
        let last = self.depth.checked_sub(1)?;
        Some(self.modules[last.min(MAX_DEPTH - 1)])
    }

    fn exit(&mut self) -> Option<u32> {
        let top = self.top()?;
        self.depth -= 1;
        Some(top)
    }
}

thread_local! {
    static STACK: RefCell<Stack> = const { RefCell::new(Stack { modules: [0; MAX_DEPTH], depth: 0 }) };
    /// Module of the backward node that runs here, and the phase change from which it counts.
    static NODE: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// Number of this thread, from 1.
pub fn thread() -> u32 {
    THREAD.with(|number| {
        if number.get() == 0 {
            number.set(THREADS.fetch_add(1, Ordering::Relaxed) + 1);
        }
        number.get()
    })
}

/// Begins a module's call on this thread.
pub fn enter(module: u32) {
    STACK.with(|stack| stack.borrow_mut().enter(module));
}

/// Ends the innermost module call of this thread and returns its module.
pub fn exit() -> Option<u32> {
    STACK.with(|stack| stack.borrow_mut().exit())
}

/// Number of module calls that are open on this thread.
pub fn depth() -> usize {
    STACK.with(|stack| stack.borrow().depth)
}

/// Sets the module of the backward node that runs on this thread, until the phase changes.
pub fn set_node(module: u32, phase_changes: u32) {
    NODE.with(|node| node.set((module, phase_changes)));
}

/// Innermost module that this thread works for; 0 for none.
pub fn module(phase_changes: u32) -> u32 {
    STACK.with(|stack| stack.borrow().top()).unwrap_or_else(|| {
        let (module, since) = NODE.with(Cell::get);
        if since == phase_changes { module } else { 0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_nest_and_a_node_counts_only_outside_them() {
        assert_eq!((module(7), depth(), exit()), (0, 0, None));
        set_node(3, 7);
        assert_eq!(module(7), 3);
        assert_eq!(module(8), 0, "a phase change makes the node's label void");
        enter(10);
        enter(11);
        assert_eq!((module(7), depth()), (11, 2));
        assert_eq!(exit(), Some(11));
        assert_eq!(module(7), 10);
        assert_eq!(exit(), Some(10));
        assert_eq!(module(7), 3);
    }

    #[test]
    fn nesting_beyond_the_stack_is_survived_and_unwinds() {
        (0..100).for_each(enter);
        assert_eq!((module(0), depth()), (63, 100));
        for left in (0..100).rev() {
            assert_eq!(exit(), Some(left.min(63)));
        }
        assert_eq!(depth(), 0);
    }

    #[test]
    fn threads_have_numbers_of_their_own() {
        let mine = thread();
        assert_eq!(thread(), mine);
        let other = std::thread::spawn(thread).join().unwrap();
        assert_ne!(mine, other);
    }
}
