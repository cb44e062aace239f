//! Choice between recurrent cells.

use std::fmt;

use crate::nn::linear_rnn::{Lru, MinGru};
use crate::nn::recurrent::{GruCell, LstmCell, reset_carry};
use crate::random::Key;
use crate::trace::control::scan;
use crate::trace::tensor::{fail_op, op};
use crate::trace::{Tensor, ops};
use crate::tree::Tree;

/// Kind of a [`RecurrentCell`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "rl", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum RnnKind {
    /// Long short-term memory.
    Lstm,
    /// Gated recurrent unit.
    Gru,
    /// Minimal GRU, whose update takes all steps in parallel.
    #[cfg_attr(feature = "rl", value(name = "mingru"))]
    MinGru,
    /// Linear recurrent unit, whose update takes all steps in parallel.
    Lru,
}

impl RnnKind {
    /// Returns the number of parts of the state.
    pub fn num_states(self) -> usize {
        match self {
            RnnKind::Lstm | RnnKind::Lru => 2,
            RnnKind::Gru | RnnKind::MinGru => 1,
        }
    }
}

impl fmt::Display for RnnKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RnnKind::Lstm => "lstm",
            RnnKind::Gru => "gru",
            RnnKind::MinGru => "mingru",
            RnnKind::Lru => "lru",
        })
    }
}

/// State of a [`RecurrentCell`].
#[derive(Debug, Clone, Copy, Tree)]
#[tree(transparent)]
pub enum RecurrentState<T> {
    /// `[*batch, size]`: h of a GRU or minGRU.
    One(T),
    /// `[*batch, size]` each: c and h of an LSTM; real and imaginary part of an LRU.
    Two((T, T)),
}

impl RecurrentState<Tensor> {
    /// Returns the parts of the state as one tensor, `[states, *batch, size]`.
    #[op("RecurrentState::stack")]
    pub fn stack(self) -> Tensor {
        match self {
            RecurrentState::One(h) => h.expand_dims(0),
            RecurrentState::Two((a, b)) => ops::stack(&[a, b], 0),
        }
    }

    /// Returns the state whose parts are `stacked: [states, *batch, size]`, of which there are one or
    /// two.
    #[op("RecurrentState::unstack")]
    pub fn unstack(stacked: Tensor) -> RecurrentState<Tensor> {
        let part = |i| stacked.index_axis(0, i);
        match stacked.dim(0) {
            1 => RecurrentState::One(part(0)),
            2 => RecurrentState::Two((part(0), part(1))),
            _ => fail_op("RecurrentState", format!("has 1 or 2 parts, not {}", stacked.ty())),
        }
    }

    #[track_caller]
    fn one(self) -> Tensor {
        match self {
            RecurrentState::One(h) => h,
            RecurrentState::Two(_) => fail_op("RecurrentCell", "the state is that of another kind"),
        }
    }

    #[track_caller]
    fn two(self) -> (Tensor, Tensor) {
        match self {
            RecurrentState::Two(both) => both,
            RecurrentState::One(_) => fail_op("RecurrentCell", "the state is that of another kind"),
        }
    }
}

/// Recurrent cell, with a choice of its kind.
#[derive(Debug, Clone, Tree)]
#[tree(transparent)]
pub enum RecurrentCell<T> {
    /// Long short-term memory; the output is h.
    Lstm(LstmCell<T>),
    /// Gated recurrent unit; the output is h.
    Gru(GruCell<T>),
    /// Minimal GRU, with GELU on its outputs.
    MinGru(MinGru<T>),
    /// Linear recurrent unit, with GELU on its outputs, as the paper's blocks have it.
    Lru(Lru<T>),
}

impl RecurrentCell<Tensor> {
    /// Initializes a cell with `size` outputs by the `init` of its type.
    #[op("RecurrentCell::init")]
    pub fn init(
        kind: RnnKind,
        key: Key<Tensor>,
        inputs: usize,
        size: usize,
    ) -> RecurrentCell<Tensor> {
        match kind {
            RnnKind::Lstm => RecurrentCell::Lstm(LstmCell::init(key, inputs, size)),
            RnnKind::Gru => RecurrentCell::Gru(GruCell::init(key, inputs, size)),
            RnnKind::MinGru => RecurrentCell::MinGru(MinGru::init(key, inputs, size)),
            RnnKind::Lru => RecurrentCell::Lru(Lru::init(key, inputs, size)),
        }
    }

    /// Computes the part of a step that does not depend on the state, for many steps at once. Maps
    /// `x: [.., inputs]` to `[.., features]`, the argument of the other methods.
    #[op("RecurrentCell::project")]
    pub fn project(&self, x: Tensor) -> Tensor {
        match self {
            RecurrentCell::Lstm(cell) => cell.project(x),
            RecurrentCell::Gru(cell) => cell.project(x),
            RecurrentCell::MinGru(cell) => cell.project(x),
            RecurrentCell::Lru(cell) => cell.project(x),
        }
    }

    /// Computes the rest of a step: returns the next state and the output `[batch, size]` for
    /// `projected: [batch, features]` and the state.
    #[op("RecurrentCell::advance")]
    pub fn advance(
        &self,
        projected: Tensor,
        state: RecurrentState<Tensor>,
    ) -> (RecurrentState<Tensor>, Tensor) {
        let with_output = |h| (RecurrentState::One(h), h);
        match self {
            RecurrentCell::Lstm(cell) => {
                let (c, h) = cell.advance(projected, state.two());
                (RecurrentState::Two((c, h)), h)
            }
            RecurrentCell::Gru(cell) => with_output(cell.advance(projected, state.one())),
            RecurrentCell::MinGru(cell) => {
                let h = cell.advance(projected, state.one());
                (RecurrentState::One(h), h.gelu())
            }
            RecurrentCell::Lru(cell) => {
                let (state, y) = cell.advance(projected, state.two());
                (RecurrentState::Two(state), y.gelu())
            }
        }
    }

    /// Takes T steps: returns the outputs `[T, batch, size]` for `projected: [T, batch, features]`
    /// and the state before them. The state is reset before each step where
    /// `episode_starts: [T, batch]` is true or not 0. LSTM and GRU take the steps in a loop, minGRU
    /// and LRU in parallel.
    #[op("RecurrentCell::unroll")]
    pub fn unroll(
        &self,
        projected: Tensor,
        episode_starts: Option<Tensor>,
        state: RecurrentState<Tensor>,
    ) -> Tensor {
        match self {
            RecurrentCell::MinGru(cell) => {
                cell.scan(projected, episode_starts, state.one()).1.gelu()
            }
            RecurrentCell::Lru(cell) => cell.scan(projected, episode_starts, state.two()).1.gelu(),
            RecurrentCell::Lstm(_) | RecurrentCell::Gru(_) => {
                let step = |state, (x, start): (Tensor, Option<Tensor>)| match start {
                    Some(start) => self.advance(x, reset_carry(start, state)),
                    None => self.advance(x, state),
                };
                scan(step, state, (projected, episode_starts)).1
            }
        }
    }

    /// Returns the state before the first step: zeros for `batch` sequences.
    #[op("RecurrentCell::start")]
    pub fn start(&self, batch: usize) -> RecurrentState<Tensor> {
        match self {
            RecurrentCell::Lstm(cell) => RecurrentState::Two(cell.start(batch)),
            RecurrentCell::Gru(cell) => RecurrentState::One(cell.start(batch)),
            RecurrentCell::MinGru(cell) => RecurrentState::One(cell.start(batch)),
            RecurrentCell::Lru(cell) => RecurrentState::Two(cell.start(batch)),
        }
    }
}
