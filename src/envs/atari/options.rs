//! The settings of an Atari environment.

use crate::error::{Error, Result};

use super::games::Game;

/// How an Atari game is turned into an environment. The default is EnvPool's.
///
/// The fields are EnvPool's of the same names, and so are their meanings.
#[derive(Debug, Clone, PartialEq)]
pub struct AtariOptions {
    /// Frames in an observation.
    pub stack_num: usize,
    /// Frames that an action is held for; the observation is the maximum of the last two.
    pub frame_skip: u32,
    /// An episode starts with 1 to this many frames without an action; 0 for none.
    pub noop_max: u32,
    /// Rows of a frame.
    pub img_height: usize,
    /// Columns of a frame.
    pub img_width: usize,
    /// Whether frames are grey; otherwise each is three planes: red, green, blue.
    pub gray_scale: bool,
    /// Whether frames are resized by the mean over areas (OpenCV's `INTER_AREA`); otherwise
    /// linearly between pixels (`INTER_LINEAR`).
    pub use_inter_area_resize: bool,
    /// Whether a lost life ends the episode; the game goes on in the next one.
    pub episodic_life: bool,
    /// Whether the agent's reward is the sign of the game's.
    pub reward_clip: bool,
    /// Whether the fire button is pressed after a reset, in games that have one.
    pub use_fire_reset: bool,
    /// Whether there are all 18 actions of a joystick, and not only those that the game tells
    /// apart.
    pub full_action_space: bool,
    /// With this probability, in each frame, the console goes on with the action of the frame
    /// before (Machado et al.: Revisiting the Arcade Learning Environment, JAIR 2018).
    pub repeat_action_probability: f32,
    /// Whether a lost life has discount 0 without ending the episode.
    pub zero_discount_on_life_loss: bool,
    /// The game's mode, numbered as in ale-py; -1 for its own.
    pub mode: i32,
    /// The game's difficulty; -1 for its own.
    pub difficulty: i32,
    /// Steps after which a game is truncated, counted over all its lives.
    pub max_episode_steps: u32,
    /// How episodes start.
    pub start: AtariStart,
}

/// How an episode starts, beside the number of no-ops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtariStart {
    /// As EnvPool: no-ops and one frame of fire, after a lost life as well. The first frame is
    /// the last of those, and a lost life leaves the older frames of the stack.
    #[default]
    EnvPool,
    /// As the wrappers of gymnasium and CleanRL: no-ops only before a game; after a lost life one
    /// step without an action. Then, where there is fire, a step of action 1 and one of action
    /// 2. All frames of the stack are the first one.
    Gymnasium,
}

impl Default for AtariOptions {
    fn default() -> AtariOptions {
        AtariOptions::envpool()
    }
}

impl AtariOptions {
    /// EnvPool's defaults.
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

    /// The settings of IMPALA (Espeholt et al., ICML 2018) as EnvPool's users have them: lives as
    /// episodes, clipped rewards, the game's own actions, up to 30 no-ops.
    pub fn espeholt() -> AtariOptions {
        AtariOptions { episodic_life: true, reward_clip: true, ..AtariOptions::envpool() }
    }

    /// The settings that Machado et al. recommend, as Cleanba has them: the game as the episode,
    /// sticky actions, all 18 actions, no random no-ops, at most 108,000 frames; the agent's reward
    /// is clipped.
    pub fn machado() -> AtariOptions {
        AtariOptions {
            noop_max: 1,
            reward_clip: true,
            full_action_space: true,
            repeat_action_probability: 0.25,
            ..AtariOptions::envpool()
        }
    }

    /// The wrappers of CleanRL's scripts around gymnasium's `NoFrameskip-v4` games: lives as
    /// episodes, clipped rewards, starts as [`AtariStart::Gymnasium`].
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
