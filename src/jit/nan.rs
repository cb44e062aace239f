//! Finding the operation that made a NaN.

use half::{bf16, f16};

use crate::error::{Error, Loc, Result};
use crate::trace::eval::eval_op;
use crate::trace::literal::Literal;
use crate::trace::op::Op;
use crate::trace::program::{Program, Var};
use crate::trace::types::DType;

/// Whether a value has a NaN in it.
pub(super) fn has_nan(value: &Literal) -> bool {
    let bytes = value.bytes();
    let bytes: &[u8] = (*bytes).as_ref();
    match value.ty().dtype {
        DType::F16 => bytemuck::cast_slice::<u8, f16>(bytes).iter().any(|x| x.is_nan()),
        DType::BF16 => bytemuck::cast_slice::<u8, bf16>(bytes).iter().any(|x| x.is_nan()),
        DType::F32 => bytemuck::cast_slice::<u8, f32>(bytes).iter().any(|x| x.is_nan()),
        DType::F64 => bytemuck::cast_slice::<u8, f64>(bytes).iter().any(|x| x.is_nan()),
        _ => false,
    }
}

/// The first operation that makes a NaN of operands that have none.
struct Fault {
    op: &'static str,
    at: Loc,
    ty: String,
    operands: String,
}

/// Runs a Program on the host and fails at the first operation that makes a NaN. A NaN that comes
/// in with the arguments is told as such.
pub(super) fn expect_none(program: &Program, inputs: &[Literal], name: &str) -> Result<()> {
    if let Some(i) = inputs.iter().position(has_nan) {
        return Err(Error::Nan(format!(
            "{name}: argument {i} ({}) holds a NaN; it was not made here",
            inputs[i].ty()
        )));
    }
    match run(program, inputs.to_vec()) {
        Ok(_) => Ok(()),
        Err(fault) => Err(Error::Nan(format!(
            "{name}: {} makes the first NaN, in {}\n  --> {}\n  its operands have none: {}",
            fault.op, fault.ty, fault.at, fault.operands
        ))),
    }
}

fn run(program: &Program, inputs: Vec<Literal>) -> Result<Vec<Literal>, Box<Fault>> {
    let mut values: Vec<Option<Literal>> = vec![None; program.types.len()];
    for (&var, input) in program.inputs.iter().zip(inputs) {
        values[var.index()] = Some(input);
    }
    let get = |values: &[Option<Literal>], var: Var| values[var.index()].clone().expect("defined");
    for equation in &program.equations {
        let operands: Vec<Literal> = equation.inputs.iter().map(|&v| get(&values, v)).collect();
        let results = eval_op(&equation.op, &operands);
        let fresh = results.iter().any(has_nan) && !operands.iter().any(has_nan);
        // A constant NaN is meant: fill values, masks.
        if fresh && !matches!(equation.op, Op::Constant(_)) {
            if let Some(inner) = inside(&equation.op, &operands) {
                return Err(inner);
            }
            let summary: Vec<String> = operands.iter().map(summarise).collect();
            return Err(Box::new(Fault {
                op: equation.op.name(),
                at: equation.at,
                ty: program.ty(equation.outputs[0]).to_string(),
                operands: summary.join(", "),
            }));
        }
        for (&var, result) in equation.outputs.iter().zip(results) {
            values[var.index()] = Some(result);
        }
    }
    Ok(program.outputs.iter().map(|&var| get(&values, var)).collect())
}

/// An operand's type and range, so that a division by 0 or a logarithm of one is plain to see.
fn summarise(value: &Literal) -> String {
    let elements = value.to_f64_vec();
    let (low, high) = elements
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &x| (low.min(x), high.max(x)));
    if elements.is_empty() {
        return format!("{} (empty)", value.ty());
    }
    format!("{} from {low} to {high}", value.ty())
}

/// The fault inside control flow, turn by turn.
fn inside(op: &Op, operands: &[Literal]) -> Option<Box<Fault>> {
    match op {
        Op::Scan(scan) => {
            let fixed = scan.num_consts + scan.num_carry;
            let mut carry = operands[scan.num_consts..fixed].to_vec();
            let order: Box<dyn Iterator<Item = usize>> = if scan.reverse {
                Box::new((0..scan.length).rev())
            } else {
                Box::new(0..scan.length)
            };
            for turn in order {
                let slices = operands[fixed..].iter().map(|stack| slice(stack, turn));
                let inputs = operands[..scan.num_consts].iter().cloned();
                let inputs = inputs.chain(carry.iter().cloned()).chain(slices).collect();
                match run(&scan.body, inputs) {
                    Ok(results) => carry = results[..scan.num_carry].to_vec(),
                    Err(fault) => return Some(fault),
                }
            }
            None
        }
        Op::CustomJvp(custom) => run(&custom.call, operands.to_vec()).err(),
        Op::CustomVjp(custom) => run(&custom.call, operands.to_vec()).err(),
        Op::Remat(remat) => run(&remat.body, operands.to_vec()).err(),
        Op::While(w) => {
            let consts = w.num_cond_consts + w.num_body_consts;
            let mut carry = operands[consts..].to_vec();
            loop {
                let with = |consts: &[Literal], carry: &[Literal]| {
                    consts.iter().chain(carry).cloned().collect::<Vec<Literal>>()
                };
                let test = run(&w.cond, with(&operands[..w.num_cond_consts], &carry));
                match test {
                    Ok(test) if test[0].to_f64_vec() == [0.0] => return None,
                    Ok(_) => {}
                    Err(fault) => return Some(fault),
                }
                match run(&w.body, with(&operands[w.num_cond_consts..consts], &carry)) {
                    Ok(next) => carry = next,
                    Err(fault) => return Some(fault),
                }
            }
        }
        Op::Cond(cond) => {
            let index = operands[0].to_f64_vec()[0];
            let last = cond.branches.len() - 1;
            let branch = &cond.branches[(index.max(0.0) as usize).min(last)];
            run(branch, operands[1..].to_vec()).err()
        }
        _ => None,
    }
}

/// The slice of a stack at `turn`.
fn slice(stack: &Literal, turn: usize) -> Literal {
    use crate::trace::literal::AlignedBytes;
    let ty = stack.ty();
    let slice = crate::trace::types::TensorType::new(ty.dtype, ty.shape.without_axis(0));
    let size = slice.bytes();
    let bytes = stack.bytes();
    let bytes: &[u8] = (*bytes).as_ref();
    Literal::from_bytes(slice, AlignedBytes::copy_of(&bytes[turn * size..(turn + 1) * size]))
}
