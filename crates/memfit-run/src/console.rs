//! Interface through which a run talks to the user.

use std::fmt::Debug;

/// Receives remarks, the script's output and progress while a run lasts.
pub trait Console: Debug {
    /// Shows a line of information besides the result.
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
