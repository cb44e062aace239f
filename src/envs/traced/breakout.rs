//! `MinAtar/Breakout-v1` and `-v0`; see [`crate::envs::minatar`] for a description.

use super::board::{LAST, SIZE, cell};
use super::{TracedEnv, TracedStep, never};
use crate::envs::env::spec::EnvSpec;
use crate::random::{self, Key};
use crate::trace::ops::{constant, full, stack, where_};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// Rows that are full of bricks at the start; no other row ever has one.
const BRICK_ROWS: std::ops::Range<usize> = 1..4;

/// Breakout: keep a ball in play and break bricks with it.
#[derive(Debug, Clone)]
pub struct Breakout {
    spec: EnvSpec,
    /// Number of columns by which each action moves the paddle.
    moves: &'static [i32],
    /// Probability that a step repeats the previous move instead of the requested one.
    sticky_action_prob: f64,
}

/// State of [`Breakout`].
#[derive(Debug, Clone, Tree)]
pub struct BreakoutState<T> {
    /// `i32[]`: column of the paddle.
    pub paddle: T,
    /// `i32[]` each: column and row of the ball.
    pub ball: [T; 2],
    /// Column and row of the ball one frame before.
    pub last_ball: [T; 2],
    /// `i32[]` each: columns and rows per frame, 1 or -1.
    pub velocity: [T; 2],
    /// `bool[3,10]`: the three rows of bricks.
    pub bricks: T,
    /// `bool[]`: true if the ball was in a brick in the last frame; then it breaks none in this
    /// one.
    pub strike: T,
    /// `i32[]`: number of columns by which the paddle was moved last.
    pub last_move: T,
}

impl Breakout {
    /// Makes `MinAtar/Breakout-v1`: no-op, left, right.
    pub fn v1() -> Breakout {
        Breakout::new("MinAtar/Breakout-v1", &[0, -1, 1])
    }

    /// Makes `MinAtar/Breakout-v0`: all six actions of MinAtar.
    pub fn v0() -> Breakout {
        Breakout::new("MinAtar/Breakout-v0", &[0, -1, 0, 1, 0, 0])
    }

    fn new(id: &str, moves: &'static [i32]) -> Breakout {
        let spec = crate::envs::registry::spec(id).expect("the pool has it");
        Breakout { spec, moves, sticky_action_prob: 0.1 }
    }

    /// Returns the environment with another probability of sticky actions.
    pub fn with_sticky_action_prob(self, sticky_action_prob: f64) -> Breakout {
        Breakout { sticky_action_prob, ..self }
    }

    /// Returns the number of columns by which `action` (i32) moves the paddle.
    #[track_caller]
    pub fn move_of(&self, action: Tensor) -> Tensor {
        let mut columns = constant(0i32);
        for (i, &by) in self.moves.iter().enumerate() {
            if by != 0 {
                columns = where_(action.eq(i as i32), by, columns);
            }
        }
        columns
    }

    /// Computes one frame in which the paddle is moved by `columns`: the rules without randomness.
    #[track_caller]
    pub fn play(
        &self,
        state: BreakoutState<Tensor>,
        columns: Tensor,
    ) -> TracedStep<Tensor, BreakoutState<Tensor>> {
        let BreakoutState { paddle, ball: [old_x, old_y], velocity: [vx, vy], .. } = state;
        let (bricks, strike) = (state.bricks, state.strike);
        let paddle = (paddle + columns).clip(0, LAST);

        let (x, y) = (old_x + vx, old_y + vy);
        let vx = where_(x.lt(0) | x.gt(LAST), -vx, vx);
        let x = x.clip(0, LAST);
        // Bounce off the ceiling.
        let vy = where_(y.lt(0), 1, vy);
        let y = y.maximum(0);
        // Hit a brick. The ceiling's row has none, nor has the paddle's.
        let here = cell(x, y, BRICK_ROWS);
        let in_brick = (here & bricks).any(..);
        let broken = in_brick & !strike;
        let bricks = bricks & !(here & broken);
        // Reach the paddle's row.
        let bottom = y.eq(LAST);
        let cleared = bottom & !bricks.any(..);
        let bricks = bricks | cleared;
        let met = bottom & old_x.eq(paddle);
        // If the ball hits the edge of the paddle, it is sent back in the direction that it came
        // from.
        let edge = bottom & !old_x.eq(paddle) & x.eq(paddle);
        let back = broken | met | edge;

        let next = BreakoutState {
            paddle,
            ball: [x, where_(back, old_y, y)],
            last_ball: [old_x, old_y],
            velocity: [where_(edge, -vx, vx), where_(back, -vy, vy)],
            bricks,
            strike: in_brick,
            last_move: columns,
        };
        TracedStep {
            obs: next.observe(),
            reward: broken.to(DType::F32),
            terminated: bottom & !met & !edge,
            truncated: never(),
            state: next,
        }
    }
}

impl BreakoutState<Tensor> {
    /// Returns the observation, `bool[10,10,4]`: paddle, ball, trail, brick.
    #[track_caller]
    fn observe(&self) -> Tensor {
        let ([x, y], [last_x, last_y]) = (self.ball, self.last_ball);
        let channels = [
            cell(self.paddle, constant(LAST), 0..SIZE),
            cell(x, y, 0..SIZE),
            cell(last_x, last_y, 0..SIZE),
            self.bricks.pad_with(
                &[BRICK_ROWS.start as i64, 0],
                &[(SIZE - BRICK_ROWS.end) as i64, 0],
                &[0, 0],
                constant(false),
            ),
        ];
        stack(&channels, -1)
    }
}

impl TracedEnv for Breakout {
    type State = BreakoutState<Tensor>;

    fn spec(&self) -> EnvSpec {
        self.spec.clone()
    }

    #[track_caller]
    fn reset(&self, key: Key<Tensor>) -> (BreakoutState<Tensor>, Tensor) {
        let left = random::bernoulli(key, 0.5, []);
        let ball = [where_(left, 0, constant(LAST)), constant(3i32)];
        let state = BreakoutState {
            paddle: constant(4i32),
            ball,
            last_ball: ball,
            velocity: [where_(left, 1, constant(-1i32)), constant(1i32)],
            bricks: full([BRICK_ROWS.len(), SIZE], 1.0, DType::Bool),
            strike: constant(false),
            last_move: constant(0i32),
        };
        let obs = state.observe();
        (state, obs)
    }

    #[track_caller]
    fn step(
        &self,
        state: BreakoutState<Tensor>,
        action: Tensor,
        key: Key<Tensor>,
    ) -> TracedStep<Tensor, BreakoutState<Tensor>> {
        let sticky = random::bernoulli(key, self.sticky_action_prob, []);
        let columns = where_(sticky, state.last_move, self.move_of(action));
        self.play(state, columns)
    }
}
