//! One Atari game as an environment: its steps and the start of its episodes.

use sha2::{Digest, Sha256};

use super::ale::Ale;
use super::cartridge;
use super::colors::Colors;
use super::games::{FULL, Game, Lives};
use super::options::{AtariOptions, AtariStart};
use super::picture::Picture;
use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome};
use crate::error::{Error, Result};
use crate::spaces::Space;
use crate::timeline;

/// Number of bytes of the checksum at the end of a saved state.
const SUM: usize = 32;

const NOOP: i32 = 0;
const FIRE: i32 = 1;

pub(super) struct Console {
    game: &'static Game,
    options: AtariOptions,
    ale: Ale,
    actions: &'static [i32],
    picture: Picture,
    /// Last two screens of a step, as pixel values.
    screens: [Vec<u8>; 2],
    /// Frames of an observation, as a ring buffer.
    stack: Vec<u8>,
    /// Index of the newest frame in the ring.
    newest: usize,
    /// Last action of the console, which a sticky action repeats.
    last_action: i32,
    lives: i32,
    /// Number of frames since the game's reset, including those of the reset.
    frames: u32,
    colors: &'static Colors,
    /// Screen of a restored state, which the emulator has not drawn; cleared by the next frame.
    restored: Option<Vec<u8>>,
}

/// Result of holding an action.
struct Held {
    reward: i32,
    /// True if the action was held for all its frames.
    whole: bool,
}

impl Console {
    pub(super) fn new(game: &'static Game, options: AtariOptions) -> Result<Console> {
        let rom = cartridge::rom(game)?;
        let mut ale = Ale::new(game, &rom, options.mode, options.difficulty)?;
        ale.reset_game();
        let colors: &'static Colors = ale.colors(game)?;
        let picture = Picture::new(game, &options, colors);
        let pixels = game.width() * game.height;
        Ok(Console {
            actions: if options.full_action_space { FULL } else { game.actions },
            screens: [vec![0; pixels], vec![0; pixels]],
            stack: vec![0; options.stack_num * picture.bytes()],
            newest: 0,
            last_action: NOOP,
            lives: 0,
            frames: 0,
            colors,
            restored: None,
            game,
            options,
            ale,
            picture,
        })
    }

    /// Emulates one frame.
    fn frame(&mut self, action: i32, rng: &mut EnvRng) -> i32 {
        let sticky = f64::from(self.options.repeat_action_probability);
        // No random number is drawn if there is no choice.
        if sticky == 0.0 || rng.uniform(0.0, 1.0) >= sticky {
            self.last_action = action;
        }
        self.restored = None;
        self.frames = self.frames.saturating_add(1);
        let _span = timeline::span("emulate");
        self.ale.act(self.last_action)
    }

    /// Holds an action for the frames of a step, and keeps the last two screens.
    fn hold(&mut self, action: i32, rng: &mut EnvRng) -> Held {
        let frames = self.options.frame_skip;
        let mut reward = 0;
        for k in 0..frames {
            reward += self.frame(action, rng);
            let over = self.ale.game_over();
            if over || k + 2 >= frames {
                self.screens.swap(0, 1);
                self.ale.screen(&mut self.screens[1]);
            }
            if over {
                return Held { reward, whole: k + 1 == frames };
            }
        }
        Held { reward, whole: true }
    }

    /// Starts a game with a random number of frames without an action; `fires` is true if a frame
    /// of fire follows, which counts as one of them.
    fn start_game(&mut self, rng: &mut EnvRng, fires: bool) {
        self.ale.reset_game();
        self.last_action = NOOP;
        let noops = self.draw_noops(rng, fires);
        // The library's reset has emulated some of them. At least one frame is needed to draw the
        // screen.
        let frames = noops.saturating_sub(self.game.ahead).max(u32::from(!fires));
        for _ in 0..frames {
            self.noop(rng);
        }
        // Frames that are part of the kept state count too.
        self.frames = noops;
    }

    fn draw_noops(&self, rng: &mut EnvRng, fires: bool) -> u32 {
        match self.options.noop_max {
            0 => 0,
            max => 1 + rng.below(max.into()) as u32 - u32::from(fires),
        }
    }

    /// Emulates one frame without an action before an episode. Returns true if it started another
    /// game.
    fn noop(&mut self, rng: &mut EnvRng) -> bool {
        self.frame(NOOP, rng);
        let over = self.ale.game_over();
        if over {
            self.ale.reset_game();
        }
        over
    }

    fn fires(&self) -> bool {
        self.options.use_fire_reset && self.actions.contains(&FIRE)
    }

    /// Returns the number of lives left, as ale-py counts them.
    fn count_lives(&self) -> i32 {
        match self.game.lives {
            Lives::Counted(more) => self.ale.lives() + more,
            Lives::WhilePlaying => i32::from(!self.ale.game_over()),
        }
    }

    /// Draws the newest frame from the last screen, or from the last two.
    fn see(&mut self, two: bool) {
        self.newest = (self.newest + 1) % self.options.stack_num;
        let bytes = self.picture.bytes();
        let frame = &mut self.stack[self.newest * bytes..][..bytes];
        let [before, last] = &self.screens;
        self.picture.draw(two.then_some(&before[..]), last, frame);
    }

    /// Copies the newest frame to all frames.
    fn fill(&mut self) {
        let bytes = self.picture.bytes();
        for k in 0..self.options.stack_num {
            let newest = self.newest * bytes;
            self.stack.copy_within(newest..newest + bytes, k * bytes);
        }
    }

    /// Writes the frames to `obs`, oldest first.
    fn write(&self, obs: ObsMut<'_>) {
        let (newer, older) = self.stack.split_at((self.newest + 1) * self.picture.bytes());
        let (first, last) = obs.0.split_at_mut(older.len());
        first.copy_from_slice(older);
        last.copy_from_slice(newer);
    }

    /// Draws the first observation from the current screen.
    fn first_frame(&mut self) {
        self.ale.screen(&mut self.screens[1]);
        self.see(false);
    }

    /// Returns the current screen.
    fn screen(&self) -> Vec<u8> {
        self.restored.clone().unwrap_or_else(|| {
            let mut pixels = vec![0; self.screens[1].len()];
            self.ale.screen(&mut pixels);
            pixels
        })
    }

    /// Returns a checksum of a saved state, its game and its settings.
    fn checksum(&self, state: &[u8]) -> [u8; SUM] {
        let mut hash = Sha256::new();
        hash.update(format!("{} {:?} with frames", self.game.id, self.options));
        hash.update(state);
        hash.finalize().into()
    }

    /// Ends a reset as EnvPool does.
    fn fire_once(&mut self, rng: &mut EnvRng) {
        if self.fires() {
            self.frame(FIRE, rng);
        }
        self.first_frame();
    }

    /// Ends a reset as gymnasium's wrappers do, with two steps of fire.
    fn fire_twice(&mut self, rng: &mut EnvRng) {
        self.lives = self.count_lives();
        for index in [1, 2] {
            if !self.fires() || self.actions.len() < 3 {
                continue;
            }
            let held = self.hold(self.actions[index], rng);
            self.see(held.whole && self.options.frame_skip > 1);
            let lives = self.count_lives();
            let lost = self.options.episodic_life && (1..self.lives).contains(&lives);
            self.lives = lives;
            if self.ale.game_over() {
                self.start_game(rng, false);
                self.first_frame();
            } else if lost {
                self.noop_step(rng);
            }
        }
        self.fill();
    }

    /// Takes a step without an action, after a lost life.
    fn noop_step(&mut self, rng: &mut EnvRng) {
        let held = self.hold(NOOP, rng);
        self.see(held.whole && self.options.frame_skip > 1);
    }
}

impl Env for Console {
    fn spec(&self) -> EnvSpec {
        let planes = if self.options.gray_scale { 1 } else { 3 };
        let AtariOptions { stack_num, img_height, img_width, .. } = self.options;
        EnvSpec {
            id: self.game.id.into(),
            observation: Space::image([stack_num * planes, img_height, img_width]),
            action: Space::Discrete { n: self.actions.len() },
            max_episode_steps: Some(self.options.max_episode_steps),
            reward_threshold: None,
        }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        match self.options.start {
            AtariStart::EnvPool => {
                let fires = self.fires();
                self.start_game(rng, fires);
                self.fire_once(rng);
                self.fill();
            }
            AtariStart::Gymnasium => {
                self.start_game(rng, false);
                self.first_frame();
                self.fire_twice(rng);
            }
        }
        self.lives = self.count_lives();
        self.write(obs);
        Ok(())
    }

    fn next_episode(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        match self.options.start {
            AtariStart::EnvPool => {
                let fires = self.fires();
                let mut another = false;
                for _ in 0..self.draw_noops(rng, fires) {
                    another |= self.noop(rng);
                }
                self.fire_once(rng);
                if another {
                    self.fill();
                }
            }
            AtariStart::Gymnasium => {
                self.noop_step(rng);
                self.fire_twice(rng);
            }
        }
        self.lives = self.count_lives();
        self.write(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let held = self.hold(self.actions[action.discrete()], rng);
        self.see(held.whole && self.options.frame_skip > 1);
        self.write(obs);
        let lives = self.count_lives();
        let life_lost = lives < self.lives;
        self.lives = lives;
        let game_over = self.ale.game_over();
        let game_reward = f64::from(held.reward);
        let reward =
            if self.options.reward_clip { f64::from(held.reward.signum()) } else { game_reward };
        Ok(StepOutcome {
            reward,
            terminated: game_over || (self.options.episodic_life && life_lost && lives > 0),
            truncated: false,
            life_lost,
            game_reward,
            game_over,
            zero_discount: self.options.zero_discount_on_life_loss && life_lost,
        })
    }

    /// The number of frames, as in the statistics of CleanRL's scripts, whose wrapper is next to
    /// the emulator; EnvPool's users count steps.
    fn episode_length(&self) -> Option<u32> {
        (self.options.start == AtariStart::Gymnasium).then_some(self.frames)
    }

    fn render(&mut self) -> Option<Frame> {
        let color = |pixel| self.colors.rgb[usize::from(pixel)];
        let rgb = self.screen().into_iter().flat_map(color).collect();
        Some(Frame { height: self.game.height, width: self.game.width(), fps: Frame::FPS, rgb })
    }

    fn save(&self) -> Result<Vec<u8>> {
        let frames = self.frames.cast_signed();
        let numbers = [self.newest as i32, self.last_action, self.lives, frames];
        let mut state = Vec::new();
        state.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        state.extend_from_slice(&self.stack);
        state.extend_from_slice(&self.screen());
        state.extend_from_slice(&self.ale.save());
        let sum = self.checksum(&state);
        state.extend_from_slice(&sum);
        Ok(state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        // The library ends the process when it reads bytes that it did not write.
        let refused = || {
            let problem = "this is no state that was saved of this game with these settings";
            Error::Env(format!("{}: {problem}", self.game.id))
        };
        let (state, sum) = state.split_last_chunk::<SUM>().ok_or_else(refused)?;
        if self.checksum(state) != *sum {
            return Err(refused());
        }
        // The checksum detects damage only: anybody can compute it.
        let (numbers, state) = state.split_first_chunk::<16>().ok_or_else(refused)?;
        let (stack, state) = state.split_at_checked(self.stack.len()).ok_or_else(refused)?;
        let (screen, console) =
            state.split_at_checked(self.screens[1].len()).ok_or_else(refused)?;
        let [newest, last_action, lives, frames] = *numbers.as_chunks::<4>().0 else {
            return Err(refused());
        };
        let newest = usize::try_from(i32::from_le_bytes(newest)).map_err(|_| refused())?;
        let last_action = i32::from_le_bytes(last_action);
        if newest >= self.options.stack_num || !FULL.contains(&last_action) {
            return Err(refused());
        }
        self.newest = newest;
        (self.last_action, self.lives) = (last_action, i32::from_le_bytes(lives));
        self.frames = u32::from_le_bytes(frames);
        self.stack.copy_from_slice(stack);
        self.restored = Some(screen.into());
        self.ale.restore(console);
        Ok(())
    }
}
