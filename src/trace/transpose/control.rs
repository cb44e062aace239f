//! Transposition of linear control flow.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Input, Operand, transpose_program, written};
use crate::error::Loc;
use crate::trace::jvp::add;
use crate::trace::op::{CondOp, Op, ScanOp};
use crate::trace::program::Program;
use crate::trace::tensor::{FrameKind, Tensor, bind, trace_frame};
use crate::trace::types::TensorType;

type Parts = SmallVec<[Option<Tensor>; 4]>;

/// Transposes a linear loop: cotangents of the carry are carried, cotangents of linear constants
/// are summed up, cotangents of the outputs are stacked inputs, those of linear inputs are stacked
/// outputs.
pub(crate) fn transpose_scan(
    scan: &ScanOp,
    x: &[Operand<'_>],
    cts: &[Option<Tensor>],
    at: Loc,
) -> Parts {
    let (num_consts, num_carry) = (scan.num_consts, scan.num_carry);
    let (consts, rest) = x.split_at(num_consts);
    let (_, inputs) = rest.split_at(num_carry);
    // A carry that starts from a known value starts from zero: a tangent written out. The loop is
    // linear in it all the same.
    let known = |operands: &[Operand<'_>]| -> Vec<Tensor> {
        operands.iter().filter_map(|operand| operand.value).collect()
    };
    let linear = |operands: &[Operand<'_>]| -> Vec<TensorType> {
        operands.iter().filter(|o| o.value.is_none()).map(|o| o.ty.clone()).collect()
    };
    let body_types: Vec<TensorType> = scan.body.input_types().cloned().collect();
    let slice = |ty: &TensorType| TensorType::new(ty.dtype, ty.shape.without_axis(0));
    let (known_consts, linear_consts) = (known(consts), linear(consts));
    let (known_inputs, linear_inputs) = (known(inputs), linear(inputs));
    let carry_types = &body_types[num_consts..num_consts + num_carry];
    // Stacked results whose cotangent is zero stay out of the loop.
    let (carry_cts, stacked_cts) = cts.split_at(num_carry);
    let moving: Vec<Tensor> = stacked_cts.iter().flatten().copied().collect();

    let types: Vec<TensorType> = known_consts
        .iter()
        .map(|tensor| tensor.ty())
        .chain(linear_consts.iter().cloned())
        .chain(carry_types.iter().cloned())
        .chain(moving.iter().chain(&known_inputs).map(|tensor| slice(&tensor.ty())))
        .collect();
    let (traced, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
        let counts = [known_consts.len(), linear_consts.len(), num_carry, moving.len()];
        (transpose_scan_body(scan, x, stacked_cts, args, counts), ())
    });
    let transposed = ScanOp {
        body: Arc::new(traced.program),
        num_consts: known_consts.len(),
        num_carry: linear_consts.len() + num_carry,
        reverse: !scan.reverse,
        ..scan.clone()
    };
    let start = linear_consts.iter().map(|ty| written(None, ty));
    let carried = carry_cts.iter().zip(carry_types).map(|(ct, ty)| written(*ct, ty));
    let operands: Vec<Tensor> = known_consts
        .into_iter()
        .chain(start)
        .chain(carried)
        .chain(moving)
        .chain(known_inputs)
        .collect();
    let mut results = bind(Op::Scan(transposed), &operands, at).into_iter();
    let const_cts: Vec<Tensor> = results.by_ref().take(linear_consts.len()).collect();
    let carry_cts: Vec<Tensor> = results.by_ref().take(num_carry).collect();
    let input_cts: Vec<Tensor> = results.by_ref().take(linear_inputs.len()).collect();
    of_linear_operands(consts, const_cts)
        .chain(carry_cts.into_iter().map(Some))
        .chain(of_linear_operands(inputs, input_cts))
        .collect()
}

/// Transposes the body of a scan. `args` are the values of the known constants, the sums of the
/// cotangents of the linear ones, the cotangents of the carry and of the stacked results, as many as
/// `counts` says, and the values of the known inputs. Returns the next sums, the cotangents of the
/// carry, and those of the linear inputs.
fn transpose_scan_body(
    scan: &ScanOp,
    x: &[Operand<'_>],
    stacked_cts: &[Option<Tensor>],
    args: &[Tensor],
    counts: [usize; 4],
) -> Vec<Tensor> {
    let (num_consts, num_carry) = (scan.num_consts, scan.num_carry);
    let total = num_consts + num_carry;
    let mut rest = args.iter().copied();
    let [const_values, sums, carried, stacked] =
        counts.map(|n| rest.by_ref().take(n).collect::<Vec<Tensor>>());
    let (mut const_values, mut stacked) = (const_values.into_iter(), stacked.into_iter());
    let mut roles: Vec<Input> = Vec::with_capacity(x.len());
    for (i, operand) in x.iter().enumerate() {
        let in_carry = (num_consts..total).contains(&i);
        let value = match operand.value {
            Some(_) if in_carry => None,
            Some(_) if i < num_consts => const_values.next(),
            Some(_) => rest.next(),
            None => None,
        };
        roles.push(value.map_or(Input::Linear, Input::Known));
    }
    let out: Vec<Option<Tensor>> = carried
        .into_iter()
        .map(Some)
        .chain(stacked_cts.iter().map(|ct| ct.and_then(|_| stacked.next())))
        .collect();
    let back = transpose_program(&scan.body, &roles, &out);
    let body_types: Vec<TensorType> = scan.body.input_types().cloned().collect();
    let linear = |range: std::ops::Range<usize>| {
        range.filter(|i| matches!(roles[*i], Input::Linear)).collect::<Vec<usize>>()
    };
    let const_cts = linear(0..num_consts).into_iter().zip(&sums);
    let const_cts = const_cts.map(|(i, sum)| back[i].map_or(*sum, |ct| add(*sum, ct)));
    let carry_cts = (num_consts..total).map(|i| written(back[i], &body_types[i]));
    let input_cts = linear(total..roles.len()).into_iter();
    let input_cts = input_cts.map(|i| written(back[i], &body_types[i]));
    const_cts.chain(carry_cts).chain(input_cts).collect()
}

/// Cotangents given to the linear operands, in order.
pub(super) fn of_linear_operands(
    operands: &[Operand<'_>],
    cts: Vec<Tensor>,
) -> impl Iterator<Item = Option<Tensor>> {
    let mut cts = cts.into_iter();
    operands.iter().map(move |o| if o.value.is_none() { cts.next() } else { None })
}

/// Linear branches, each transposed.
pub(crate) fn transpose_cond(
    cond: &CondOp,
    x: &[Operand<'_>],
    cts: &[Option<Tensor>],
    at: Loc,
) -> Parts {
    let index = x[0].known("cond");
    let operands = &x[1..];
    let known: Vec<Tensor> = operands.iter().filter_map(|operand| operand.value).collect();
    let moving: Vec<Tensor> = cts.iter().flatten().copied().collect();
    let types: Vec<TensorType> = known.iter().chain(&moving).map(|tensor| tensor.ty()).collect();
    let transpose_branch = |branch: &Program| {
        let (traced, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
            let (values, moving) = args.split_at(known.len());
            let (mut values, mut moving) = (values.iter().copied(), moving.iter().copied());
            let roles: Vec<Input> = operands
                .iter()
                .map(|operand| match operand.value {
                    Some(_) => Input::Known(values.next().expect("one value an operand")),
                    None => Input::Linear,
                })
                .collect();
            let out: Vec<Option<Tensor>> =
                cts.iter().map(|ct| ct.and_then(|_| moving.next())).collect();
            let back = transpose_program(branch, &roles, &out);
            let results = back
                .into_iter()
                .zip(operands)
                .filter(|(_, operand)| operand.value.is_none())
                .map(|(ct, operand)| written(ct, operand.ty))
                .collect();
            (results, ())
        });
        Arc::new(traced.program)
    };
    let branches = cond.branches.iter().map(|branch| transpose_branch(branch)).collect();
    let args: Vec<Tensor> =
        [index].into_iter().chain(known.iter().copied()).chain(moving).collect();
    let results = bind(Op::Cond(CondOp { branches }), &args, at);
    [None].into_iter().chain(of_linear_operands(operands, results.to_vec())).collect()
}
