//! Modes of the automatic reset, which [`slot`](crate::envs::pool::slot) carries out.

/// Mode of the automatic reset: the step in which an environment starts its next episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Autoreset {
    /// In the step that ended the episode: its row has the reward and the flags of the end, and the
    /// first observation of the next episode. The last observation is
    /// [`Batch::final_obs`](crate::envs::Batch::final_obs). CleanRL's scripts expect this mode (gymnasium
    /// up to 0.29).
    #[default]
    SameStep,
    /// In the step after the end, which ignores its action and has reward 0, no flags and
    /// [`Batch::first`](crate::envs::Batch::first). EnvPool and gymnasium from 1.0 use this mode. Each
    /// episode costs one step that must not be learned from.
    NextStep,
    /// Never: a step after the end is an error until
    /// [`EnvPool::send_reset`](crate::envs::EnvPool::send_reset).
    Disabled,
}
