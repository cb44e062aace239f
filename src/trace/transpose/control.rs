//! Transposition of linear control flow.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Input, Operand, transpose_program, written};
use crate::error::Loc;
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
    let (carry, inputs) = rest.split_at(num_carry);
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
        let mut args = args.iter().copied();
        let mut take = |n: usize| args.by_ref().take(n).collect::<Vec<Tensor>>();
        let mut const_values = take(known_consts.len()).into_iter();
        let sums = take(linear_consts.len());
        let carried = take(num_carry);
        let mut stacked = take(moving.len()).into_iter();
        let mut input_values = take(known_inputs.len()).into_iter();
        let input =
            |operand: &Operand<'_>, values: &mut dyn Iterator<Item = Tensor>| match operand.value {
                Some(_) => Input::Known(values.next().expect("one value an operand")),
                None => Input::Linear,
            };
        let roles: Vec<Input> = consts
            .iter()
            .map(|operand| input(operand, &mut const_values))
            .chain(carry.iter().map(|_| Input::Linear))
            .collect::<Vec<Input>>()
            .into_iter()
            .chain(inputs.iter().map(|operand| input(operand, &mut input_values)))
            .collect();
        let out: Vec<Option<Tensor>> = carried
            .into_iter()
            .map(Some)
            .chain(stacked_cts.iter().map(|ct| ct.and_then(|_| stacked.next())))
            .collect();
        let back = transpose_program(&scan.body, &roles, &out);
        let of = |range: std::ops::Range<usize>| {
            range.filter(|i| matches!(roles[*i], Input::Linear)).collect::<Vec<usize>>()
        };
        let total = num_consts + num_carry;
        let const_cts = of(0..num_consts).into_iter().zip(&sums).map(|(i, sum)| match back[i] {
            Some(ct) => *sum + ct,
            None => *sum,
        });
        let carry_cts = (num_consts..total).map(|i| written(back[i], &body_types[i]));
        let input_cts =
            of(total..roles.len()).into_iter().map(|i| written(back[i], &body_types[i]));
        (const_cts.chain(carry_cts).chain(input_cts).collect(), ())
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
    hand_out(consts, const_cts)
        .chain(carry_cts.into_iter().map(Some))
        .chain(hand_out(inputs, input_cts))
        .collect()
}

/// Cotangents given to the linear operands, in order.
pub(super) fn hand_out(
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
    let index = x[0].known();
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
    [None].into_iter().chain(hand_out(operands, results.to_vec())).collect()
}
