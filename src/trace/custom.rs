//! Functions with derivatives of their own: [`custom_jvp`] and [`custom_vjp`].

mod calls;
mod rule;

use std::panic::Location;
use std::sync::Arc;

use super::control::{captures_first, share_captures_of, types_of};
use super::op::{CustomVjpOp, Op};
use super::program::Program;
use super::tensor::{Tensor, Traced, at_line, bind, fail_op, trace_tree};
use super::types::TensorType;
use crate::tree::{self, Tree};

/// `jax.custom_jvp`: `f`, with `jvp` as its derivative. `jvp` takes arguments and their tangents,
/// and gives results and theirs. It must be linear in the tangents, and then is the derivative
/// backwards too.
///
/// The rule may call the function itself, which then has its rule in the next derivative as well,
/// as may several functions whose rules call each other. To detect such a call, a rule that makes
/// one is traced again, several times if the closures capture values. It must not differentiate or
/// batch the function, whose rule it only defines.
///
/// Leaves that are neither floats nor complex have no derivative: their tangents are zeros on the way in, and
/// ignored on the way out. Captures of the closures are constant; a captured tensor that is being
/// differentiated is an error.
///
/// ```
/// use podracer::{Array, Tensor, custom_jvp, grad, interpret};
/// // log(1 + e^x), whose derivative does not overflow.
/// let log1p_exp = |x: Tensor| {
///     custom_jvp(
///         |x: Tensor| (x.exp() + 1.0).log(),
///         |x, t| ((x.exp() + 1.0).log(), t * (1.0 - 1.0 / (1.0 + x.exp()))),
///     )(x)
/// };
/// let slope = interpret(grad(log1p_exp)).call(Array::from(100.0f32))?;
/// assert_eq!(slope.item::<f32>()?, 1.0);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn custom_jvp<A: Tree<Tensor>, B: Tree<Tensor>>(
    f: impl Fn(A) -> B,
    jvp: impl Fn(A, A) -> (B, B),
) -> impl Fn(A) -> B {
    let at = Location::caller();
    move |args: A| {
        let name = "custom_jvp";
        let (call, result) = trace_tree::<A, B>(name, at, &types_of(&args), &f);
        let outputs: Vec<TensorType> = call.program.output_types().cloned().collect();
        let outputs: Vec<&TensorType> = outputs.iter().collect();
        let rule = || {
            let types = (types_of(&args), types_of(&args));
            let (rule, dual) = trace_tree::<(A, A), (B, B)>(name, at, &types, |(x, t)| jvp(x, t));
            at_line(at, || {
                let given: Vec<&TensorType> = rule.program.output_types().collect();
                same(name, ("the rule", "result[0]"), &result, &dual.0, &outputs, &given);
                let given = given.get(outputs.len()..).unwrap_or_default();
                same(name, ("the rule", "result[1]"), &result, &dual.1, &outputs, given);
            });
            rule
        };
        let leaves = tree::leaves(&args);
        let structure = tree::structure(&args);
        let captures = size_of_val(&f) + size_of_val(&jvp) > 0;
        let site = calls::CallSite { at, structure, num_args: leaves.len(), captures };
        let (op, consts) = calls::operation(site, call, &rule);
        let operands: Vec<Tensor> = consts.into_iter().chain(leaves).collect();
        tree::replace(&result, bind(Op::CustomJvp(op), &operands, at))
    }
}

/// `jax.custom_vjp`: `f`, with a pullback of its own. `fwd` computes `f` and the residuals that the
/// pullback needs; `bwd` takes these and a cotangent of the result, and returns a cotangent of the
/// argument. The function cannot be differentiated forwards.
///
/// Leaves that are neither floats nor complex have no derivative: their cotangents are zeros on the way in, and
/// ignored on the way out. Captures of the closures are constant; a captured tensor that is being
/// differentiated is an error.
///
/// ```
/// use podracer::{Array, Tensor, custom_vjp, grad, interpret};
/// // The identity, with gradients clipped.
/// let clip = |x: Tensor| custom_vjp(|x: Tensor| x, |x| (x, ()), |(), ct| ct.clamp(-1.0, 1.0))(x);
/// let slope = interpret(grad(move |x: Tensor| clip(x) * 10.0)).call(Array::from(3.0f32))?;
/// assert_eq!(slope.item::<f32>()?, 1.0);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn custom_vjp<A: Tree<Tensor>, B: Tree<Tensor>, R: Tree<Tensor>>(
    f: impl Fn(A) -> B,
    fwd: impl Fn(A) -> (B, R),
    bwd: impl Fn(R, B) -> A,
) -> impl Fn(A) -> B {
    let at = Location::caller();
    move |args: A| {
        let name = "custom_vjp";
        let (call, result) = trace_tree::<A, B>(name, at, &types_of(&args), &f);
        let (fwd, (value, residuals)) = trace_tree::<A, (B, R)>(name, at, &types_of(&args), &fwd);
        let outputs: Vec<TensorType> = call.program.output_types().cloned().collect();
        let saved: Vec<TensorType> = fwd.program.output_types().cloned().collect();
        let outputs_of = outputs.iter().collect::<Vec<_>>();
        at_line(at, || {
            let given: Vec<&TensorType> = saved.iter().collect();
            same(name, ("fwd", "result[0]"), &result, &value, &outputs_of, &given);
        });
        let mut types = saved[outputs.len()..].iter().chain(&outputs).cloned();
        let mut next = |_: &tree::Path<'_>, _: &Tensor| types.next().expect("a type each");
        let residual_types = residuals.map_leaves_ref(&tree::Path::ROOT, &mut next);
        let ct_types = result.map_leaves_ref(&tree::Path::ROOT, &mut next);
        let (bwd, back) =
            trace_tree::<(R, B), A>(name, at, &(residual_types, ct_types), |(r, ct)| bwd(r, ct));
        let leaves = tree::leaves(&args);
        at_line(at, || {
            let expected: Vec<TensorType> = leaves.iter().map(|leaf| leaf.ty()).collect();
            let given: Vec<&TensorType> = bwd.program.output_types().collect();
            let expected: Vec<&TensorType> = expected.iter().collect();
            same(name, ("bwd", "result"), &args, &back, &expected, &given);
        });
        let count = saved.len();
        let (programs, consts) =
            close(vec![(call, leaves.len()), (fwd, leaves.len()), (bwd, count)]);
        let [call, fwd, bwd] = programs.try_into().expect("three Programs");
        let op = CustomVjpOp { call, fwd, bwd, num_consts: consts.len() };
        let operands: Vec<Tensor> = consts.into_iter().chain(leaves).collect();
        tree::replace(&result, bind(Op::CustomVjp(op), &operands, at))
    }
}

/// One list of constants for all: the Programs with those first, and the list.
fn close(traced: Vec<(Traced, usize)>) -> (Vec<Arc<Program>>, Vec<Tensor>) {
    let counts: Vec<usize> = traced.iter().map(|(_, count)| *count).collect();
    let (programs, captures) =
        traced.into_iter().map(|(traced, _)| (traced.program, traced.captures)).unzip();
    let (programs, shared) = share_captures_of(programs, captures, &counts);
    let programs = programs.into_iter().zip(counts);
    (programs.map(|(p, count)| Arc::new(captures_first(p, count))).collect(), shared)
}

/// Ends the trace unless `given` has the structure and the types expected.
fn same<M: Tree<Tensor>>(
    name: &str,
    (function, root): (&str, &str),
    expected: &M,
    given: &M,
    expected_types: &[&TensorType],
    given_types: &[&TensorType],
) {
    let difference = tree::structure_difference::<Tensor, Tensor, M, M>(
        expected,
        given,
        root,
        ["the expected structure", "the returned structure"],
    );
    if let Some(difference) = difference {
        fail_op(name, format!("the result of {function} has the wrong structure: {difference}"));
    }
    let paths = tree::paths(expected);
    for ((path, expected), given) in paths.iter().zip(expected_types).zip(given_types) {
        if expected != given {
            let path = tree::path_of(root, path);
            let problem = format!("{path} of {function} must be {expected}, and is {given}");
            fail_op(name, problem);
        }
    }
}
