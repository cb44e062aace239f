//! Complex numbers: operations on them, and discrete Fourier transforms.

use std::slice::from_ref;

use podracer::trace::op::{BinaryOp, CompareOp, Domain, FftKind, TriangularSolveOp, UnaryOp};
use podracer::trace::ops::{
    cholesky, complex, concatenate, constant, eye, fft, triangular_solve, where_,
};
use podracer::{
    Complex, DType, ScanOptions, Tensor, checkpoint, cond, custom_jvp, scan, scan_with, while_loop,
};

use super::{Case, In, case, cases_of, int, within, x};
use crate::recipes::binary::binary;
use crate::recipes::unary::unary;

const COMPLEX: [DType; 2] = [DType::C128, DType::C64];

/// A case of complex numbers.
fn of(name: impl Into<String>, args: &[In], f: impl Fn(&[Tensor]) -> Tensor + 'static) -> Case {
    case(name, args, f).dtypes(&COMPLEX)
}

fn elementwise(cases: &mut Vec<Case>) {
    for op in UnaryOp::ALL.into_iter().filter(|op| op.domain().contains(DType::C64)) {
        let f = unary(op).f;
        // Away from zeros, poles and branch cuts, which lie on the axes.
        let args = [within(&[2, 3], 0.2, 1.2)];
        let own = op.domain() == Domain::Complex;
        let name = if own { op.name().to_string() } else { format!("{}/complex", op.name()) };
        let case = of(name, &args, move |x| f(x[0])).loose(8.0);
        // No tangent passes, and the sign of a complex number is not flat.
        cases.push(if op == UnaryOp::Sign { case.flat() } else { case });
    }
    for op in BinaryOp::ALL.into_iter().filter(|op| op.domain().contains(DType::C64)) {
        let f = binary(op).f;
        let args = [within(&[2, 3], 0.2, 1.2), within(&[2, 3], 0.2, 1.2)];
        let name = format!("{}/complex", op.name());
        cases.push(of(name, &args, move |x| f(x[0], x[1])).loose(8.0));
    }
    for op in [CompareOp::Eq, CompareOp::Ne] {
        let same = In::Floats(vec![3], vec![1.0, 2.0, f64::NAN, 0.0, 0.0, -0.0]);
        let other = In::Floats(vec![3], vec![1.0, 2.0, f64::NAN, 0.0, 0.0, 1.0]);
        let f = move |x: &[Tensor]| match op {
            CompareOp::Eq => x[0].eq(x[1]),
            _ => x[0].ne(x[1]),
        };
        cases.push(of(format!("{}/complex", op.name()), &[same, other], f).flat());
    }
    let zeros = In::Floats(vec![3], vec![0.0, 0.0, 3.0, -4.0, -1.0, 0.0]);
    cases.push(of("abs/complex zero", from_ref(&zeros), |x| x[0].abs()).flat());
    cases.push(of("sign/complex zero", &[zeros], |x| x[0].sign()).flat());
    cases.push(of("conj/of squares", &[x(&[4])], |x| (x[0] * x[0].conj()).real()));
    cases.push(of("mul/complex powi", &[within(&[4], 0.5, 1.5)], |x| x[0].powi(3) + x[0].powi(-2)));
    cases.push(of("mul/complex literal", &[x(&[3])], |x| {
        x[0] * Complex::new(0.0f64, 2.0) + Complex::new(1.5f32, -0.5) - 1.0
    }));
    for (from, to) in [(DType::C128, DType::C64), (DType::C64, DType::C128)] {
        let f = move |x: &[Tensor]| x[0].to(from).to(to).to(x[0].dtype()) * x[0];
        // In f64 the rounding between them would be a fault of the derivative.
        cases.push(of(format!("convert/{from} to {to}"), &[x(&[3])], f).flat().loose(1e6));
    }
    for to in [DType::F64, DType::F32, DType::I32, DType::Bool, DType::BF16] {
        let number = In::Floats(vec![3], vec![1.25, 2.0, 0.0, 0.5, -3.0, 0.0]);
        cases.push(of(format!("convert/complex to {to}"), &[number], move |x| x[0].to(to)).flat());
    }
    cases.push(case("convert/f64 to c128", &[x(&[3])], |x| {
        let z = x[0].to(x[0].dtype().complex());
        (z * z * Complex::new(1.0, 1.0)).imag()
    }));
    cases.push(of("convert/c128 to f64", &[x(&[3])], |x| x[0].to(x[0].dtype().real()).square()));
}

fn shapes(cases: &mut Vec<Case>) {
    cases.push(of("reshape/complex", &[x(&[2, 3])], |x| {
        let y = x[0].reshape([3, 2]).transpose(&[1, 0]).flip(1);
        y.expand_dims(0).broadcast_to([2, 2, 3]) * y
    }));
    cases.push(of("pad/complex", &[x(&[2, 3])], |x| {
        x[0].pad_interior(&[1, 0], &[0, 1], &[1, 0], 2.0).square()
    }));
    cases.push(of("slice/complex", &[x(&[4, 3])], |x| {
        x[0].strided_slice(&[0, 1], &[4, 3], &[2, 1]).square()
    }));
    cases.push(of("concat/complex", &[x(&[2]), x(&[3])], |x| concatenate(&[x[0], x[1], x[0]], 0)));
    cases.push(of("gather/complex", &[x(&[5]), int(&[3], 0, 4)], |x| x[0].take(x[1], 0).square()));
    cases.push(of("scatter_add/complex", &[x(&[5]), int(&[3], 0, 4), x(&[3])], |x| {
        x[0].at(&[x[1]]).add(x[2] * x[2])
    }));
    cases.push(of("dynamic_slice/complex", &[x(&[5]), int(&[], 0, 2)], |x| {
        let y = x[0].dynamic_slice(&[x[1]], [2]);
        x[0].dynamic_update_slice(y * y, &[x[1] + 1])
    }));
    cases.push(of("select/complex", &[In::Bool(vec![4]), x(&[4]), x(&[4])], |x| {
        where_(x[0], x[1], x[2]) * x[1]
    }));
    cases.push(of("reduce_sum/complex", &[x(&[2, 3])], |x| x[0].sum([1]).square()));
    cases.push(of("reduce_prod/complex", &[x(&[2, 3])], |x| x[0].prod([1])));
    cases.push(of("mul/complex cumsum", &[x(&[4])], |x| x[0].cumsum(0) * x[0]));
    cases.push(of("dot/complex", &[x(&[2, 3]), x(&[3, 2])], |x| x[0].matmul(x[1])).loose(4.0));
    let (lower, b) = (within(&[3, 3], 0.5, 1.5), x(&[3, 2]));
    cases.push(
        of("triangular_solve/complex", &[lower, b], |x| {
            let op =
                TriangularSolveOp { left_side: true, lower: true, ..TriangularSolveOp::default() };
            triangular_solve(x[0], x[1], op)
        })
        .loose(64.0),
    );
    cases.push(
        of("cholesky/complex", &[x(&[3, 3])], |x| {
            let adjoint = x[0].t().conj();
            cholesky(x[0].matmul(adjoint) + eye(3, x[0].dtype()) * 2.0 + x[0].triu(1) * 0.25)
        })
        .loose(64.0),
    );
    cases.push(of("constant/complex splat", &[x(&[3])], |x| {
        let turned = x[0] * Complex::new(0.0, 1.0);
        turned.reshape([3, 1]) * constant(Complex::new(0.5f64, 1.0)).to(x[0].dtype())
    }));
    cases.push(of("constant/complex", &[x(&[3])], |x| {
        let table = [Complex::new(1.0f64, -2.5), Complex::new(0.0, 1e-3), Complex::new(-0.0, 7.0)];
        x[0] * constant(table).to(x[0].dtype())
    }));
}

fn loops(cases: &mut Vec<Case>) {
    cases.push(
        cases_of("scan/complex", &[x(&[]), x(&[3])], |x| {
            let step = |carry: Tensor, x: Tensor| (carry * x + x, carry.abs());
            let (last, sizes) = scan(step, x[0], x[1]);
            vec![last, sizes]
        })
        .dtypes(&COMPLEX)
        .loose(8.0),
    );
    cases.push(
        cases_of("scan/complex in reverse", &[x(&[]), x(&[3])], |x| {
            let options = ScanOptions { reverse: true, ..ScanOptions::default() };
            let step = |carry: Tensor, x: Tensor| (carry * x, carry.conj());
            let (last, each) = scan_with(step, x[0], x[1], options);
            vec![last, each]
        })
        .dtypes(&COMPLEX)
        .loose(8.0),
    );
    cases.push(
        of("while/complex", &[within(&[], 0.2, 0.6)], |x| {
            let body = |(n, z): (Tensor, Tensor)| (n + 1, z * z + 0.25);
            while_loop(|(n, _): (Tensor, Tensor)| n.lt(3), body, (constant(0), x[0])).1
        })
        .forward(),
    );
    cases.push(of("cond/complex", &[In::Bool(vec![]), x(&[3])], |x| {
        cond(x[0], |z: Tensor| z * z, |z| z.conj() * 2.0, x[1])
    }));
    cases.push(of("checkpoint/complex", &[x(&[3])], |x| {
        checkpoint(|z: Tensor| (z * z).exp())(x[0])
    }));
    cases.push(of("custom_jvp/complex", &[x(&[3])], |x| {
        custom_jvp(|z: Tensor| z * z, |z, t| (z * z, t * z * 2.0))(x[0])
    }));
}

fn transforms(cases: &mut Vec<Case>) {
    let shapes: [(&[usize], usize); 6] =
        [(&[5], 1), (&[2, 4], 1), (&[3, 4], 2), (&[2, 3, 2], 3), (&[1], 1), (&[2, 2, 3, 5], 3)];
    for (shape, axes) in shapes {
        let name = |kind: FftKind| match shape {
            [5] => kind.name().to_string(),
            shape => format!("{}/{shape:?} {axes}", kind.name()),
        };
        let lengths = shape[shape.len() - axes..].to_vec();
        for kind in [FftKind::Fft, FftKind::Ifft] {
            let lengths = lengths.clone();
            let f = move |x: &[Tensor]| fft(x[0], kind, &lengths).square();
            cases.push(of(name(kind), &[x(shape)], f).loose(64.0));
        }
        let of_real = lengths.clone();
        let f = move |x: &[Tensor]| fft(x[0], FftKind::Rfft, &of_real).square();
        cases.push(case(name(FftKind::Rfft), &[x(shape)], f).loose(64.0));
        let mut half = shape.to_vec();
        let last = half.last_mut().expect("an axis");
        *last = *last / 2 + 1;
        let f = move |x: &[Tensor]| fft(x[0], FftKind::Irfft, &lengths).square();
        cases.push(of(name(FftKind::Irfft), &[x(&half)], f).loose(64.0));
    }
    let empty = In::Floats(vec![0, 4], vec![]);
    cases.push(of("fft/no rows", &[empty], |x| fft(x[0], FftKind::Fft, &[4])).flat());
    cases.push(
        case("complex/rfft of parts", &[x(&[4]), x(&[4])], |x| {
            fft(complex(x[0], x[1]), FftKind::Fft, &[4]).abs()
        })
        .loose(64.0),
    );
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    elementwise(&mut cases);
    shapes(&mut cases);
    loops(&mut cases);
    transforms(&mut cases);
    cases
}
