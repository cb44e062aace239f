//! Control flow, generic over the way to run a Program: `run` gets the Program, the number of the
//! iteration, and its inputs.

use crate::trace::literal::{AlignedBytes, Literal};
use crate::trace::op::{CondOp, ScanOp, WhileOp};
use crate::trace::program::Program;
use crate::trace::types::TensorType;

pub(crate) fn scan<E>(
    scan: &ScanOp,
    inputs: &[Literal],
    mut run: impl FnMut(&Program, usize, Vec<Literal>) -> Result<Vec<Literal>, E>,
) -> Result<Vec<Literal>, E> {
    let (consts, rest) = inputs.split_at(scan.num_consts);
    let (init, stacks) = rest.split_at(scan.num_carry);
    let mut carry = init.to_vec();
    let stacks: Vec<_> = stacks
        .iter()
        .map(|x| (TensorType::new(x.ty().dtype, x.ty().shape.without_axis(0)), x.bytes()))
        .collect();
    let output_types: Vec<&TensorType> = scan.body.output_types().skip(scan.num_carry).collect();
    let mut outputs: Vec<AlignedBytes> =
        output_types.iter().map(|ty| AlignedBytes::zeroed(ty.bytes() * scan.length)).collect();
    for step in 0..scan.length {
        let i = if scan.reverse { scan.length - 1 - step } else { step };
        let mut args = consts.to_vec();
        args.append(&mut carry);
        args.extend(stacks.iter().map(|(ty, bytes)| {
            let slice = &(**bytes).as_ref()[i * ty.bytes()..][..ty.bytes()];
            Literal::from_bytes(ty.clone(), AlignedBytes::copy_of(slice))
        }));
        carry = run(&scan.body, step, args)?;
        let slices = carry.split_off(scan.num_carry);
        for (output, slice) in outputs.iter_mut().zip(slices) {
            let size = slice.ty().bytes();
            output.as_mut()[i * size..][..size].copy_from_slice((*slice.bytes()).as_ref());
        }
    }
    let stacked = output_types.iter().zip(outputs).map(|(ty, bytes)| {
        Literal::from_bytes(TensorType::new(ty.dtype, ty.shape.with_axis(0, scan.length)), bytes)
    });
    Ok(carry.into_iter().chain(stacked).collect())
}

pub(crate) fn while_loop<E>(
    op: &WhileOp,
    inputs: &[Literal],
    mut run: impl FnMut(&Program, usize, Vec<Literal>) -> Result<Vec<Literal>, E>,
) -> Result<Vec<Literal>, E> {
    let (cond_consts, rest) = inputs.split_at(op.num_cond_consts);
    let (body_consts, init) = rest.split_at(op.num_body_consts);
    let mut carry = init.to_vec();
    for step in 0.. {
        let verdict = run(&op.cond, step, [cond_consts, &carry].concat())?;
        if !verdict[0].to_vec::<bool>().expect("the condition gives a bool")[0] {
            break;
        }
        carry = run(&op.body, step, [body_consts, &carry].concat())?;
    }
    Ok(carry)
}

pub(crate) fn cond<E>(
    op: &CondOp,
    inputs: &[Literal],
    mut run: impl FnMut(&Program, usize, Vec<Literal>) -> Result<Vec<Literal>, E>,
) -> Result<Vec<Literal>, E> {
    let index = inputs[0].to_vec::<i32>().expect("the index is i32")[0];
    let branch = (index.max(0) as usize).min(op.branches.len() - 1);
    run(&op.branches[branch], branch, inputs[1..].to_vec())
}
