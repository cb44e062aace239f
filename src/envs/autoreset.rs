//! When the next episode starts.

/// When an environment whose episode ended starts the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Autoreset {
    /// In the step that ended the episode: its row has the reward and the flags of the end, and the
    /// first observation of the next episode. The last one is [`Batch::final_obs`](super::Batch::final_obs). This is what
    /// CleanRL's scripts expect (gymnasium up to 0.29).
    #[default]
    SameStep,
    /// In the step after, which ignores its action and has reward 0, no flags and
    /// [`Batch::first`](super::Batch::first). So do EnvPool and gymnasium from 1.0. Each episode costs one step that
    /// must not be learned from.
    NextStep,
    /// Never: a step after the end is an error until [`EnvPool::send_reset`](super::EnvPool::send_reset).
    Disabled,
}
