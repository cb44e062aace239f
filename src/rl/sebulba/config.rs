//! [`UpdateConfig`], the part of the settings that actors and the learner share.

/// Hyperparameters of an update.
#[derive(Debug, Clone, Copy)]
pub struct UpdateConfig {
    /// Number of steps of a rollout.
    pub num_steps: usize,
    /// Number of gradient steps of an update.
    pub gradient_steps: usize,
    /// Timestep at which learning starts: updates that end before it take no gradient steps.
    pub learning_starts: u64,
    /// Initial learning rate.
    pub learning_rate: f64,
    /// If true, the learning rate decreases to 0, linearly in the number of updates.
    pub anneal_lr: bool,
    /// Discount factor for bootstrapping where a time limit truncates an episode; `None` ends the
    /// return there.
    pub bootstrap_truncated: Option<f64>,
}
