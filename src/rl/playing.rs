//! Environments inside a compiled program, between two steps: they are carried through its loops, act
//! by a closure, and leave rows for a replay buffer.

use crate::envs::{Handle, XlaPool};
use crate::random::Key;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::{constant, where_, zeros, zeros_like};
use crate::trace::{DType, Tensor, TensorType};
use crate::tree::{self, Tree};

use super::Games;
use super::frames::Seen;
use super::images::Images;
use super::replay::joined;

/// One step of one environment whose observations are vectors.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Transition<T> {
    /// `f32[obs_size]`
    pub obs: T,
    /// `i32[]` or `f32[A]`
    pub action: T,
    /// `f32[]`
    pub reward: T,
    /// `f32[obs_size]`: what followed, also where an episode ended there.
    pub next_obs: T,
    /// `f32[]`: 1 where the episode ended by the rules of the task.
    pub terminated: T,
}

impl Transition<TensorType> {
    /// The types of a transition with observations of `obs_size` numbers, for a
    /// [`Replay`](super::replay::Replay).
    pub fn types(obs_size: usize, action: TensorType) -> Transition<TensorType> {
        let obs = TensorType::new(DType::F32, [obs_size]);
        let number = TensorType::scalar(DType::F32);
        Transition {
            obs: obs.clone(),
            action,
            reward: number.clone(),
            next_obs: obs,
            terminated: number,
        }
    }
}

/// N environments whose observations are vectors, between two steps.
#[derive(Debug, Tree)]
pub struct Playing<T> {
    /// The right to step them.
    pub handle: Handle<T>,
    /// `f32[N, obs_size]`
    pub obs: T,
    /// Timesteps of all so far, `i32[]`.
    pub step: T,
    /// The randomness to come.
    pub key: Key<T>,
}

impl Playing<Tensor> {
    /// Their first observations.
    #[track_caller]
    pub fn start(envs: &XlaPool, handle: Handle<Tensor>, key: Key<Tensor>) -> Playing<Tensor> {
        let (handle, first) = envs.reset(handle);
        Playing { handle, obs: first.obs.to(DType::F32), step: constant(0i32), key }
    }

    /// One step of each: what came of it, N rows.
    #[track_caller]
    fn turn(
        self,
        envs: &XlaPool,
        act: &impl Fn(Tensor, Tensor, Key<Tensor>) -> (Tensor, Key<Tensor>),
    ) -> (Playing<Tensor>, Transition<Tensor>, Games<Tensor>) {
        let Playing { handle, obs, step, key } = self;
        let (action, key) = act(obs, step, key);
        let (handle, told) = envs.step(handle, action);
        // Where an episode ended, `obs` is already the next one's.
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
        (Playing { handle, obs: next, step, key }, transition, Games::of(&told))
    }

    /// `turns` steps of each, in a loop: `act` gives actions for observations `f32[N, obs_size]`, at a
    /// timestep `i32[]`, and takes of a key what it needs. What came of them, `turns * N` rows, and the
    /// games, `[turns, N]`. The pool must have been asked for last observations.
    #[track_caller]
    pub fn turns(
        self,
        envs: &XlaPool,
        turns: usize,
        act: impl Fn(Tensor, Tensor, Key<Tensor>) -> (Tensor, Key<Tensor>),
    ) -> (Playing<Tensor>, Transition<Tensor>, Games<Tensor>) {
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

    /// [`turns`](Playing::turns) one after the other in the program, without a loop: faster for few.
    #[track_caller]
    pub fn unrolled(
        self,
        envs: &XlaPool,
        turns: usize,
        act: impl Fn(Tensor, Tensor, Key<Tensor>) -> (Tensor, Key<Tensor>),
    ) -> (Playing<Tensor>, Transition<Tensor>, Games<Tensor>) {
        let (mut playing, mut rows, mut games) = (self, Vec::new(), Vec::new());
        for _ in 0..turns {
            let (next, row, told) = playing.turn(envs, &act);
            rows.push(row);
            games.push(told);
            playing = next;
        }
        let games = tree::map(joined(&games), |x: Tensor| x.reshape([turns, x.dim(0) / turns]));
        (playing, joined(&rows), games)
    }
}

/// N environments whose observations are images, between two steps.
#[derive(Debug, Tree)]
pub struct PlayingImages<T> {
    /// The right to step them.
    pub handle: Handle<T>,
    /// `[N, ..]`
    pub obs: T,
    /// `i32[N]`: steps since the episode began, up to 255.
    pub age: T,
    /// Timesteps of all so far, `i32[]`.
    pub step: T,
    /// The randomness to come.
    pub key: Key<T>,
}

impl PlayingImages<Tensor> {
    /// Their first observations.
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

    /// As [`Playing::turns`], with what a buffer of frames keeps of each step, `[turns, N, ..]`.
    #[track_caller]
    pub fn turns(
        self,
        envs: &XlaPool,
        images: Images,
        turns: usize,
        act: impl Fn(Tensor, Tensor, Key<Tensor>) -> (Tensor, Key<Tensor>),
    ) -> (PlayingImages<Tensor>, Seen<Tensor>, Games<Tensor>) {
        let turn = |playing: PlayingImages<Tensor>, ()| {
            let PlayingImages { handle, obs, age, step, key } = playing;
            let (action, key) = act(obs, step, key);
            let (handle, told) = envs.step(handle, action);
            let seen = Seen {
                frame: images.newest(obs),
                age,
                action,
                reward: told.reward,
                terminated: told.terminated,
                truncated: told.truncated,
            };
            let age = where_(told.first, zeros_like(age), (age + 1).minimum(255));
            let games = Games::of(&told);
            let step = step + obs.dim(0) as i32;
            (PlayingImages { handle, obs: told.obs, age, step, key }, (seen, games))
        };
        let turns = ScanOptions::length(turns);
        let (playing, (seen, games)) = scan_with(turn, self, (), turns);
        (playing, seen, games)
    }
}
