//! Loops and branches: compiled against the interpreter.

use super::*;

/// `(c, k, x) -> (k * c + x, c)`: a carry whose history is the output.
fn recurrence() -> Arc<Program> {
    let mut b = Build::new();
    let (k, c, x) = (b.input(f32s([])), b.input(f32s([])), b.input(f32s([])));
    let scaled = b.op(Op::Binary(BinaryOp::Mul), &[k, c]);
    let next = b.op(Op::Binary(BinaryOp::Add), &[scaled, x]);
    Arc::new(b.finish(&[next, c]))
}

#[test]
fn scans_of_every_length_and_form() {
    for length in [0, 1, 2, 5, 6] {
        for unroll in [1, 2, 3, 10] {
            for reverse in [false, true] {
                let op = ScanOp {
                    body: recurrence(),
                    num_consts: 1,
                    num_carry: 1,
                    length,
                    reverse,
                    unroll,
                };
                let xs: Vec<f32> = (0..length).map(|i| i as f32).collect();
                let mut order: Vec<usize> = (0..length).collect();
                if reverse {
                    order.reverse();
                }
                let mut carry = 1.0;
                let mut ys = vec![0.0; length];
                for i in order {
                    ys[i] = carry;
                    carry = 2.0 * carry + i as f64;
                }
                let inputs = [Literal::scalar(2f32), Literal::scalar(1f32), Literal::from(xs)];
                check_op(Op::Scan(op), &inputs, &[&[carry], &ys]);
            }
        }
    }
}

#[test]
fn scan_of_wide_rows_without_carry() {
    // Rows of two axes; the constant is a literal of the Program around.
    let mut body = Build::new();
    let (k, x) = (body.input(f32s([2])), body.input(f32s([2, 2])));
    let wide = body.op(Op::Broadcast { shape: [2, 2].into(), axes: smallvec![1] }, &[k]);
    let y = body.op(Op::Binary(BinaryOp::Add), &[wide, x]);
    let body = Arc::new(body.finish(&[y]));
    let mut b = Build::new();
    let k = b.constant([10f32, 20.0]);
    let xs = b.input(f32s([2, 2, 2]));
    let scan = ScanOp { body, num_consts: 1, num_carry: 0, length: 2, reverse: false, unroll: 1 };
    let ys = b.op(Op::Scan(scan), &[k, xs]);
    let x: Vec<f32> = (0..8).map(|i| i as f32).collect();
    check(
        &b.finish(&[ys]),
        &[Literal::new([2, 2, 2], &x)],
        &[&[10.0, 21.0, 12.0, 23.0, 14.0, 25.0, 16.0, 27.0]],
    );
}

#[test]
fn while_runs_until_the_condition_fails() {
    // while x < limit { x = x * factor; n += 1 }
    let mut cond = Build::new();
    let (limit, x, _) = (cond.input(f32s([])), cond.input(f32s([])), cond.input(i32s([])));
    let more = cond.op(Op::Compare(CompareOp::Lt), &[x, limit]);
    let cond = Arc::new(cond.finish(&[more]));
    let mut body = Build::new();
    let (factor, x, n) = (body.input(f32s([])), body.input(f32s([])), body.input(i32s([])));
    let x = body.op(Op::Binary(BinaryOp::Mul), &[x, factor]);
    let one = body.constant(1i32);
    let n = body.op(Op::Binary(BinaryOp::Add), &[n, one]);
    let body = Arc::new(body.finish(&[x, n]));
    let op = Op::While(WhileOp { cond, num_cond_consts: 1, body, num_body_consts: 1 });
    let inputs = |limit: f32| {
        [
            Literal::scalar(limit),
            Literal::scalar(3f32),
            Literal::scalar(1f32),
            Literal::scalar(0i32),
        ]
    };
    check_op(op.clone(), &inputs(50.0), &[&[81.0], &[4.0]]);
    check_op(op, &inputs(0.5), &[&[1.0], &[0.0]]);
}

fn scaled_by(factor: f32) -> Arc<Program> {
    let mut b = Build::new();
    let x = b.input(f32s([2]));
    let factor = b.constant(Literal::splat([2], factor));
    let y = b.op(Op::Binary(BinaryOp::Mul), &[x, factor]);
    Arc::new(b.finish(&[y, x]))
}

#[test]
fn branches_are_chosen_by_a_clamped_index() {
    for count in 1..=3usize {
        let branches = (1..=count).map(|i| scaled_by(i as f32)).collect();
        let op = Op::Cond(CondOp { branches });
        for index in [-7, 0, 1, 2, 99] {
            let factor = (index.clamp(0, count as i32 - 1) + 1) as f64;
            let inputs = [Literal::scalar(index), Literal::from([1f32, 2.0])];
            check_op(op.clone(), &inputs, &[&[factor, 2.0 * factor], &[1.0, 2.0]]);
        }
    }
}

#[test]
fn a_bool_chooses_between_two() {
    let mut b = Build::new();
    let (flag, x) = (b.input(TensorType::scalar(DType::Bool)), b.input(f32s([2])));
    let index = b.op(Op::Convert { dtype: DType::I32 }, &[flag]);
    let branches = vec![scaled_by(1.0), scaled_by(2.0)];
    let outputs = b.ops(Op::Cond(CondOp { branches }), &[index, x]);
    let program = b.finish(&outputs[..1]);
    for (flag, expected) in [(true, [2.0, 4.0]), (false, [1.0, 2.0])] {
        check(&program, &[Literal::scalar(flag), Literal::from([1f32, 2.0])], &[&expected]);
    }
}

#[test]
fn a_branch_in_a_loop_in_a_branch() {
    // Sums x where the index is odd.
    let mut odd = Build::new();
    let (sum, x) = (odd.input(f32s([])), odd.input(f32s([])));
    let more = odd.op(Op::Binary(BinaryOp::Add), &[sum, x]);
    let odd = Arc::new(odd.finish(&[more]));
    let mut even = Build::new();
    let (sum, _) = (even.input(f32s([])), even.input(f32s([])));
    let even = Arc::new(even.finish(&[sum]));
    let mut body = Build::new();
    let (sum, i, x) = (body.input(f32s([])), body.input(i32s([])), body.input(f32s([])));
    let (one, two) = (body.constant(1i32), body.constant(2i32));
    let parity = body.op(Op::Binary(BinaryOp::Rem), &[i, two]);
    let sum = body.op(Op::Cond(CondOp { branches: vec![even, odd] }), &[parity, sum, x]);
    let i = body.op(Op::Binary(BinaryOp::Add), &[i, one]);
    let body = Arc::new(body.finish(&[sum, i]));
    let mut looped = Build::new();
    let xs = looped.input(f32s([6]));
    let (zero, start) = (looped.constant(0f32), looped.constant(0i32));
    let scan = ScanOp { body, num_consts: 0, num_carry: 2, length: 6, reverse: false, unroll: 1 };
    let outputs = looped.ops(Op::Scan(scan), &[zero, start, xs]);
    let looped = Arc::new(looped.finish(&outputs[..1]));
    let mut other = Build::new();
    let _ = other.input(f32s([6]));
    let minus = other.constant(-1f32);
    let other = Arc::new(other.finish(&[minus]));
    let op = Op::Cond(CondOp { branches: vec![other, looped] });
    let xs = Literal::from([1f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    check_op(op.clone(), &[Literal::scalar(1i32), xs.clone()], &[&[12.0]]);
    check_op(op, &[Literal::scalar(0i32), xs], &[&[-1.0]]);
}
