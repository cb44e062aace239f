//! Videos of an environment while it is stepped.

use super::env::Frame;

/// Receiver of the frames of one environment, as `gymnasium.wrappers.RecordVideo`.
///
/// A game that is filmed gives its first frame and one frame after each step. The methods are called
/// by the thread that steps the environment.
pub trait Camera: Send {
    /// Starts a game, and returns true if its frames are wanted.
    fn begin(&mut self) -> bool;

    /// Takes a frame of a game that is wanted.
    fn frame(&mut self, frame: Frame);

    /// Ends a game that is wanted: it is over, or was abandoned.
    fn end(&mut self);
}
