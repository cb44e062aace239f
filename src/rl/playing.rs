//! State of environments inside a compiled program: it is carried through loops, takes actions from
//! a closure, and yields transitions for a replay buffer.

use crate::envs::{Handle, XlaPool};
use crate::random::Key;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::{constant, where_, zeros, zeros_like};
use crate::trace::{DType, Tensor};
use crate::tree::{self, Tree};

use super::EpisodeStats;
use super::frames::FrameTransition;
use super::images::Images;
use super::replay::{Transition, concatenate_steps};

/// State of N environments with vector observations between steps.
#[derive(Debug, Tree)]
pub struct Playing<T> {
    /// Environment handle. Passing it on orders the calls, as EnvPool's handle does.
    pub handle: Handle<T>,
    /// `f32[N, obs_size]`: last observations.
    pub obs: T,
    /// Number of timesteps of all environments so far, `i32[]`.
    pub step: T,
    /// PRNG key.
    pub key: Key<T>,
}

impl Playing<Tensor> {
    /// Resets the environments.
    #[track_caller]
    pub fn start(envs: &XlaPool, handle: Handle<Tensor>, key: Key<Tensor>) -> Playing<Tensor> {
        let (handle, first) = envs.reset(handle);
        Playing { handle, obs: first.obs.to(DType::F32), step: constant(0i32), key }
    }

    /// Steps each environment once; returns N transitions.
    #[track_caller]
    fn turn(
        self,
        envs: &XlaPool,
        act: &impl Fn(Tensor, Tensor, Key<Tensor>) -> (Tensor, Key<Tensor>),
    ) -> (Playing<Tensor>, Transition<Tensor>, EpisodeStats<Tensor>) {
        let Playing { handle, obs, step, key } = self;
        let (action, key) = act(obs, step, key);
        let (handle, told) = envs.step(handle, action);
        // Where an episode ended, `obs` is the first observation of the next one.
        let last = told.final_obs.expect("the pool was asked for it").to(DType::F32);
        let next = told.obs.to(DType::F32);
        let transition = Transition {
            obs,
            action,
            reward: told.reward,
            next_obs: where_(told.done().expand_dims(-1).broadcast_to(last.shape()), last, next),
            terminated: told.terminated.to(DType::F32),
        };
        let step = step + obs.dim(0) as i32;
        (Playing { handle, obs: next, step, key }, transition, EpisodeStats::of(&told))
    }

    /// Steps each environment `turns` times in a compiled loop: `act` returns actions for
    /// observations `f32[N, obs_size]` at a timestep `i32[]`, and the key that it has advanced.
    /// Returns the transitions, `turns * N` rows, and the episode statistics, `[turns, N]`. The
    /// pool must be configured to return final observations.
    #[track_caller]
    pub fn turns(
        self,
        envs: &XlaPool,
        turns: usize,
        act: impl Fn(Tensor, Tensor, Key<Tensor>) -> (Tensor, Key<Tensor>),
    ) -> (Playing<Tensor>, Transition<Tensor>, EpisodeStats<Tensor>) {
        let turn = |playing: Playing<Tensor>, ()| {
            let (playing, transition, games) = playing.turn(envs, &act);
            (playing, (transition, games))
        };
        let turns = ScanOptions::length(turns);
        let (playing, (transitions, games)) = scan_with(turn, self, (), turns);
        let rows = tree::map(transitions, |x: Tensor| {
            x.reshape([&[x.dim(0) * x.dim(1)], &x.shape()[2..]].concat())
        });
        (playing, rows, games)
    }

    /// Like [`turns`](Playing::turns), but unrolled instead of in a loop: faster for few steps.
    #[track_caller]
    pub fn unrolled(
        self,
        envs: &XlaPool,
        turns: usize,
        act: impl Fn(Tensor, Tensor, Key<Tensor>) -> (Tensor, Key<Tensor>),
    ) -> (Playing<Tensor>, Transition<Tensor>, EpisodeStats<Tensor>) {
        let (mut playing, mut rows, mut games) = (self, Vec::new(), Vec::new());
        for _ in 0..turns {
            let (next, row, told) = playing.turn(envs, &act);
            rows.push(row);
            games.push(told);
            playing = next;
        }
        let games =
            tree::map(concatenate_steps(&games), |x: Tensor| x.reshape([turns, x.dim(0) / turns]));
        (playing, concatenate_steps(&rows), games)
    }
}

/// State of N environments with image observations between steps.
#[derive(Debug, Tree)]
pub struct PlayingImages<T> {
    /// Environment handle. Passing it on orders the calls, as EnvPool's handle does.
    pub handle: Handle<T>,
    /// `[N, ..]`: last observations.
    pub obs: T,
    /// `i32[N]`: steps since the episode began, up to 255.
    pub age: T,
    /// Number of timesteps of all environments so far, `i32[]`.
    pub step: T,
    /// PRNG key.
    pub key: Key<T>,
}

impl PlayingImages<Tensor> {
    /// Resets the environments.
    #[track_caller]
    pub fn start(
        envs: &XlaPool,
        handle: Handle<Tensor>,
        key: Key<Tensor>,
    ) -> PlayingImages<Tensor> {
        let (handle, first) = envs.reset(handle);
        let age = zeros([first.obs.dim(0)], DType::I32);
        PlayingImages { handle, obs: first.obs, age, step: constant(0i32), key }
    }

    /// Like [`Playing::turns`], but returns the data that a buffer of frames stores of each step,
    /// `[turns, N, ..]`.
    #[track_caller]
    pub fn turns(
        self,
        envs: &XlaPool,
        images: Images,
        turns: usize,
        act: impl Fn(Tensor, Tensor, Key<Tensor>) -> (Tensor, Key<Tensor>),
    ) -> (PlayingImages<Tensor>, FrameTransition<Tensor>, EpisodeStats<Tensor>) {
        let turn = |playing: PlayingImages<Tensor>, ()| {
            let PlayingImages { handle, obs, age, step, key } = playing;
            let (action, key) = act(obs, step, key);
            let (handle, told) = envs.step(handle, action);
            let seen = FrameTransition {
                frame: images.newest(obs),
                age,
                action,
                reward: told.reward,
                terminated: told.terminated,
                truncated: told.truncated,
            };
            let age = where_(told.first, zeros_like(age), (age + 1).minimum(255));
            let games = EpisodeStats::of(&told);
            let step = step + obs.dim(0) as i32;
            (PlayingImages { handle, obs: told.obs, age, step, key }, (seen, games))
        };
        let turns = ScanOptions::length(turns);
        let (playing, (seen, games)) = scan_with(turn, self, (), turns);
        (playing, seen, games)
    }
}
