//! Interface through which a run talks to the user.

use std::fmt::Debug;

/// Receives remarks, the script's output and progress during a run. Several runs may use it at once.
pub trait Console: Debug + Sync {
    /// Shows a line of additional information.
    fn remark(&self, text: &str);

    /// Shows bytes that the script printed, unchanged.
    fn script_output(&self, bytes: &[u8]);

    /// Starts a progress line.
    fn progress(&self) -> Box<dyn Progress>;
}

/// A single line that is redrawn in place and removed when dropped.
pub trait Progress: Debug {
    /// Returns `true` if drawing has any effect; callers may skip composing the text otherwise.
    fn is_shown(&self) -> bool;

    /// Replaces the line.
    fn draw(&mut self, text: &str);

    /// Removes the line until the next [`draw`](Self::draw).
    fn clear(&mut self);
}

/// Shows nothing. Used for concurrent runs, whose progress lines would overwrite each other.
#[derive(Debug)]
pub(crate) struct Silent;

impl Console for Silent {
    fn remark(&self, _text: &str) {}

    fn script_output(&self, _bytes: &[u8]) {}

    fn progress(&self) -> Box<dyn Progress> {
        Box::new(Self)
    }
}

impl Progress for Silent {
    fn is_shown(&self) -> bool {
        false
    }

    fn draw(&mut self, _text: &str) {}

    fn clear(&mut self) {}
}
