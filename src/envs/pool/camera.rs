//! Videos of an environment while it is stepped.

use crate::envs::env::Frame;
use crate::error::Error;

/// Receiver of the frames of one environment, as `gymnasium.wrappers.RecordVideo`.
///
/// The camera gets the first frame of an episode that is filmed, and one frame after each step. The
/// methods are called by the thread that steps the environment. An Atari episode is a whole game, with
/// all of its lives.
pub trait Camera: Send {
    /// Starts an episode. Returns true if the camera takes its frames.
    fn begin(&mut self) -> bool;

    /// Takes a frame of the episode.
    fn frame(&mut self, frame: Frame);

    /// Ends the episode, which is over or was abandoned.
    fn end(&mut self);

    /// Ends the episode because the environment could not be rendered. No further method is called.
    fn fail(&mut self, _error: Error) {
        self.end();
    }
}
