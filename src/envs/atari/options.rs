//! Settings of an Atari environment.

use super::games::Game;
use crate::error::{Error, Result};

/// Options of an Atari environment. The default is EnvPool's.
///
/// The fields have EnvPool's names and meanings.
#[derive(Debug, Clone, PartialEq)]
pub struct AtariOptions {
    /// Number of frames in an observation.
    pub stack_num: usize,
    /// Number of frames that an action is held for; the observation is the maximum of the last two.
    pub frame_skip: u32,
    /// Maximum number of frames without an action at the start of an episode, which has 1 to this
    /// many; 0 for none.
    pub noop_max: u32,
    /// Number of rows of a frame.
    pub img_height: usize,
    /// Number of columns of a frame.
    pub img_width: usize,
    /// True if frames are gray; otherwise each frame has three planes: red, green, blue.
    pub gray_scale: bool,
    /// True if frames are resized by the mean over areas (OpenCV's `INTER_AREA`); otherwise
    /// linearly between pixels (`INTER_LINEAR`).
    pub use_inter_area_resize: bool,
    /// True if a lost life ends the episode; the game continues in the next episode.
    pub episodic_life: bool,
    /// True if the agent's reward is the sign of the game's reward.
    pub reward_clip: bool,
    /// True if the fire button is pressed after a reset, in games that have one.
    pub use_fire_reset: bool,
    /// True if the actions are all 18 of a joystick, instead of only those that the game
    /// distinguishes.
    pub full_action_space: bool,
    /// Probability of a sticky action in each frame: the console repeats the action of the previous
    /// frame (Machado et al.: Revisiting the Arcade Learning Environment, JAIR 2018).
    pub repeat_action_probability: f32,
    /// True if a lost life has discount 0 without ending the episode.
    pub zero_discount_on_life_loss: bool,
    /// Mode of the game, numbered as in ale-py; -1 for its own.
    pub mode: i32,
    /// Difficulty of the game; -1 for its own.
    pub difficulty: i32,
    /// Number of steps after which a game is truncated, counted over all its lives.
    pub max_episode_steps: u32,
    /// Start of an episode.
    pub start: AtariStart,
}

/// Start of an episode, apart from the number of no-ops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtariStart {
    /// As in EnvPool: no-ops and one frame of fire, also after a lost life. The first frame is the
    /// last of those, and a lost life keeps the older frames of the stack.
    #[default]
    EnvPool,
    /// As in the wrappers of gymnasium and CleanRL: no-ops only before a game; after a lost life
    /// one step without an action. Then, in games with fire, a step of action 1 and a step of
    /// action 2. All frames of the stack are the first one.
    Gymnasium,
}

impl Default for AtariOptions {
    fn default() -> AtariOptions {
        AtariOptions::envpool()
    }
}

impl AtariOptions {
    /// Returns EnvPool's defaults.
    pub fn envpool() -> AtariOptions {
        AtariOptions {
            stack_num: 4,
            frame_skip: 4,
            noop_max: 30,
            img_height: 84,
            img_width: 84,
            gray_scale: true,
            use_inter_area_resize: true,
            episodic_life: false,
            reward_clip: false,
            use_fire_reset: true,
            full_action_space: false,
            repeat_action_probability: 0.0,
            zero_discount_on_life_loss: false,
            mode: -1,
            difficulty: -1,
            max_episode_steps: 27_000,
            start: AtariStart::EnvPool,
        }
    }

    /// Returns the settings of IMPALA (Espeholt et al., ICML 2018) as EnvPool's users have them:
    /// lives as episodes, clipped rewards, the game's own actions, up to 30 no-ops.
    pub fn espeholt() -> AtariOptions {
        AtariOptions { episodic_life: true, reward_clip: true, ..AtariOptions::envpool() }
    }

    /// Returns the settings that Machado et al. recommend, as Cleanba has them: the full game as
    /// the episode, sticky actions, all 18 actions, no random no-ops, at most 108,000 frames; the
    /// agent's reward is clipped.
    pub fn machado() -> AtariOptions {
        AtariOptions {
            noop_max: 1,
            reward_clip: true,
            full_action_space: true,
            repeat_action_probability: 0.25,
            ..AtariOptions::envpool()
        }
    }

    /// Returns the settings of the wrappers of CleanRL's scripts around gymnasium's
    /// `NoFrameskip-v4` games: lives as episodes, clipped rewards, starts as
    /// [`AtariStart::Gymnasium`].
    pub fn gymnasium() -> AtariOptions {
        AtariOptions {
            episodic_life: true,
            reward_clip: true,
            start: AtariStart::Gymnasium,
            ..AtariOptions::envpool()
        }
    }

    pub(super) fn check(&self, game: &Game) -> Result<()> {
        let problem = |problem: String| Err(Error::Config(format!("{}: {problem}", game.id)));
        let positive = [
            ("stack_num", self.stack_num),
            ("frame_skip", self.frame_skip as usize),
            ("img_height", self.img_height),
            ("img_width", self.img_width),
            ("max_episode_steps", self.max_episode_steps as usize),
        ];
        for (name, value) in positive {
            if value == 0 {
                return problem(format!("{name} must be at least 1"));
            }
        }
        for (name, value) in [("img_height", self.img_height), ("img_width", self.img_width)] {
            if value > 1024 {
                return problem(format!("{name} is {value}, expected at most 1024"));
            }
        }
        let chance = self.repeat_action_probability;
        if !(0.0..=1.0).contains(&chance) {
            return problem(format!("repeat_action_probability is {chance}, expected 0 to 1"));
        }
        Ok(())
    }
}
