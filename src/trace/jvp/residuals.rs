//! Choice of the values that a loop saves for its derivative.
//!
//! The linear loop names the values it needs: the residuals. Not all of them have to be saved in
//! every iteration. A value that elementwise arithmetic makes of other saved values costs less to
//! compute again than to write and read: the derivative `y (1 - y)` of a sigmoid beside `y`, a mask
//! beside the tensor that was compared, a repeated vector beside the vector.

use std::collections::{HashMap, HashSet};

use crate::error::Loc;
use crate::trace::graph::eliminate_dead_code;
use crate::trace::program::{Program, Var};
use crate::trace::tensor::{FrameKind, inline, trace_frame};
use crate::trace::types::TensorType;

/// No residual is computed again by more equations than this.
const MAX_RECOMPUTED_EQUATIONS: usize = 16;

/// No search for the price of a residual looks at more equations than this. A value used twice is
/// looked at twice, so that without a limit a chain of such values would take exponential time.
const MAX_VISITS: usize = 256;

struct Chooser<'a> {
    known: &'a Program,
    /// The equation that makes each variable.
    made_by: HashMap<Var, usize>,
    /// Flags of the values that cost nothing: constant over the iterations, or stacked already.
    free: &'a [bool],
    /// Values saved so far.
    kept: HashSet<Var>,
}

/// Cost of a value: bytes to save, the variables saved, and the number of equations that make it
/// from them.
struct Price {
    bytes: usize,
    leaves: Vec<Var>,
    equations: usize,
}

impl Chooser<'_> {
    /// The cheaper of saving `var` and of making it again. Takes from `visits` the number of
    /// equations looked at; when none are left, values are saved.
    fn price(&self, var: Var, visits: &mut usize) -> Price {
        if self.free[var.index()] || self.kept.contains(&var) {
            return Price { bytes: 0, leaves: vec![var], equations: 0 };
        }
        let bytes = self.known.ty(var).bytes();
        match self.again(var, visits) {
            Some(price) if price.bytes < bytes => price,
            _ => Price { bytes, leaves: vec![var], equations: 0 },
        }
    }

    /// Making `var` by its equation, if that is cheap.
    fn again(&self, var: Var, visits: &mut usize) -> Option<Price> {
        let equation = &self.known.equations[*self.made_by.get(&var)?];
        if !equation.op.facts().cheap {
            return None;
        }
        *visits = visits.checked_sub(1)?;
        let mut all = Price { bytes: 0, leaves: vec![], equations: 1 };
        let mut operands = equation.inputs.to_vec();
        operands.sort_unstable();
        operands.dedup();
        for operand in operands {
            let price = self.price(operand, visits);
            all.bytes += price.bytes;
            all.equations += price.equations;
            all.leaves.extend(price.leaves);
            if all.equations > MAX_RECOMPUTED_EQUATIONS {
                return None;
            }
        }
        Some(all)
    }
}

/// Chooses the values to save instead of `residuals`, which are variables of `known`; `free` marks
/// those that cost nothing. Every residual can be computed again from the values returned.
fn choose(known: &Program, residuals: &[Var], free: &[bool]) -> HashSet<Var> {
    let made_by = known
        .equations
        .iter()
        .enumerate()
        .flat_map(|(i, equation)| equation.outputs.iter().map(move |&var| (var, i)))
        .collect();
    let kept = residuals.iter().copied().filter(|var| !free[var.index()]).collect();
    let mut chooser = Chooser { known, made_by, free, kept };
    // Later ones are made of earlier ones.
    let mut order: Vec<Var> = chooser.kept.iter().copied().collect();
    order.sort_unstable_by_key(|var| std::cmp::Reverse(chooser.made_by.get(var).copied()));
    for var in order {
        chooser.kept.remove(&var);
        match chooser.again(var, &mut { MAX_VISITS }) {
            Some(price) if price.bytes < known.ty(var).bytes() => {
                let saved = price.leaves.into_iter().filter(|leaf| !free[leaf.index()]);
                chooser.kept.extend(saved);
            }
            _ => {
                chooser.kept.insert(var);
            }
        }
    }
    chooser.kept
}

/// Returns the residuals of a loop's body to save instead of the last outputs of `known`; and
/// `linear` with those as its last inputs, from which it computes the others.
pub(super) fn thin_out(
    known: &Program,
    linear: &Program,
    num_residuals: usize,
    free: &[bool],
    at: Loc,
) -> (Vec<Var>, Program) {
    let residuals = &known.outputs[known.outputs.len() - num_residuals..];
    let kept = choose(known, residuals, free);
    let provided = |var: &Var| kept.contains(var) || free[var.index()];
    // Backwards from the residuals to the saved values.
    let mut needed: HashSet<Var> = residuals.iter().copied().collect();
    let mut equations = Vec::new();
    for equation in known.equations.iter().rev() {
        if equation.outputs.iter().any(|var| needed.contains(var) && !provided(var)) {
            needed.extend(&equation.inputs);
            equations.push(equation.clone());
        }
    }
    equations.reverse();
    let mut inputs: Vec<Var> = needed.into_iter().filter(provided).collect();
    inputs.sort_unstable();
    let again = Program {
        inputs: inputs.clone(),
        equations,
        outputs: residuals.to_vec(),
        types: known.types.clone(),
    };

    let num_tangents = linear.inputs.len() - num_residuals;
    let types: Vec<TensorType> = linear
        .input_types()
        .take(num_tangents)
        .chain(inputs.iter().map(|&var| known.ty(var)))
        .cloned()
        .collect();
    let (traced, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
        let (tangents, provided) = args.split_at(num_tangents);
        let residuals = inline(&again, provided);
        let operands: Vec<_> = tangents.iter().copied().chain(residuals).collect();
        (inline(linear, &operands), ())
    });
    (inputs, eliminate_dead_code(traced.program))
}
