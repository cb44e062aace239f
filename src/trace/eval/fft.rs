//! Discrete Fourier transforms.

use std::f64::consts::TAU;

use num_complex::Complex64;

use super::number::Number;
use crate::trace::literal::Literal;
use crate::trace::op::{FftKind, FftOp};
use crate::trace::types::{Shape, TensorType};

pub(super) fn fft(op: &FftOp, x: &Literal, ty: &TensorType) -> Literal {
    let lengths = &op.lengths[..];
    let batch = x.ty().rank() - lengths.len();
    let whole: Shape = x.ty().shape[..batch].iter().chain(lengths).copied().collect();
    let sign = match op.kind {
        FftKind::Fft | FftKind::Rfft => -1.0,
        FftKind::Ifft | FftKind::Irfft => 1.0,
    };
    let mut numbers = match op.kind {
        FftKind::Fft | FftKind::Ifft => Complex64::lift(x),
        FftKind::Rfft => f64::lift(x).into_iter().map(Complex64::from).collect(),
        // Over the other axes first: a half stands for the whole along the last axis alone.
        FftKind::Irfft => Complex64::lift(x),
    };
    match op.kind {
        FftKind::Irfft => {
            (batch..whole.rank() - 1)
                .for_each(|axis| along(&mut numbers, &x.ty().shape, axis, sign));
            let halves = numbers.chunks_exact(whole[whole.rank() - 1] / 2 + 1);
            let n = whole[whole.rank() - 1];
            numbers = halves.flat_map(|half| dft(&mirrored(half, n), sign)).collect();
        }
        FftKind::Fft | FftKind::Ifft | FftKind::Rfft => {
            (batch..whole.rank()).for_each(|axis| along(&mut numbers, &whole, axis, sign));
        }
    }
    let count: usize = lengths.iter().product();
    match op.kind {
        FftKind::Fft => Complex64::lower(ty, &numbers),
        FftKind::Ifft => {
            let scaled: Vec<Complex64> = numbers.iter().map(|z| z / count as f64).collect();
            Complex64::lower(ty, &scaled)
        }
        FftKind::Rfft => {
            let n = whole[whole.rank() - 1];
            let rows = numbers.chunks_exact(n);
            let halves: Vec<Complex64> = rows.flat_map(|row| &row[..n / 2 + 1]).copied().collect();
            Complex64::lower(ty, &halves)
        }
        FftKind::Irfft => {
            let scaled: Vec<f64> = numbers.iter().map(|z| z.re / count as f64).collect();
            f64::lower(ty, &scaled)
        }
    }
}

/// All `n` elements of a row that is its own conjugate read backwards, from the first half of them.
/// The elements that are their own partners are real: their imaginary parts count as 0.
fn mirrored(half: &[Complex64], n: usize) -> Vec<Complex64> {
    let element = |k: usize| match k {
        _ if k == 0 || 2 * k == n => half[k].re.into(),
        _ if 2 * k < n => half[k],
        _ => half[n - k].conj(),
    };
    (0..n).map(element).collect()
}

/// Transforms every row along one axis.
fn along(numbers: &mut [Complex64], shape: &[usize], axis: usize, sign: f64) {
    let (size, stride) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    for block in numbers.chunks_exact_mut((size * stride).max(1)) {
        for first in 0..stride {
            let row: Vec<Complex64> = (0..size).map(|i| block[first + i * stride]).collect();
            for (i, z) in dft(&row, sign).into_iter().enumerate() {
                block[first + i * stride] = z;
            }
        }
    }
}

/// The sums of `x[j] e^(sign 2 pi i j k / n)`. Cooley and Tukey's recursion by the least prime
/// factor of `n`; a prime number of elements is summed as it stands.
fn dft(x: &[Complex64], sign: f64) -> Vec<Complex64> {
    let n = x.len();
    let factor = (2..n).take_while(|p| p * p <= n).find(|p| n.is_multiple_of(*p)).unwrap_or(n);
    let part = n / factor;
    let parts: Vec<Vec<Complex64>> = (0..factor)
        .map(|first| {
            let every: Vec<Complex64> = x[first..].iter().step_by(factor).copied().collect();
            if part > 1 { dft(&every, sign) } else { every }
        })
        .collect();
    let root = |power: usize| Complex64::cis(sign * TAU * (power % n) as f64 / n as f64);
    let sum = |k: usize| -> Complex64 {
        parts.iter().enumerate().map(|(r, part_of)| root(r * k) * part_of[k % part]).sum()
    };
    (0..n).map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::eval::eval_op;
    use crate::trace::op::Op;

    fn run(kind: FftKind, lengths: &[usize], x: Literal) -> Literal {
        eval_op(&Op::Fft(FftOp { kind, lengths: lengths.into() }), &[x]).remove(0)
    }

    #[test]
    fn transforms_are_sums_of_roots_of_unity() {
        for n in [1, 2, 3, 6, 7, 12, 35] {
            let x: Vec<Complex64> = (0..n)
                .map(|j| Complex64::new((j * j % 5) as f64 - 1.5, (3 * j % 7) as f64 * 0.25))
                .collect();
            let found = run(FftKind::Fft, &[n], Literal::new([n], &x));
            for (k, z) in found.to_vec::<Complex64>().unwrap().into_iter().enumerate() {
                let term = |(j, x): (usize, &Complex64)| {
                    x * Complex64::cis(-TAU * (j * k) as f64 / n as f64)
                };
                let sum: Complex64 = x.iter().enumerate().map(term).sum();
                assert!((z - sum).norm() < 1e-11, "{n} elements, {k}: {z} {sum}");
            }
            let back = run(FftKind::Ifft, &[n], found).to_vec::<Complex64>().unwrap();
            assert!(back.iter().zip(&x).all(|(a, b)| (a - b).norm() < 1e-12));
        }
    }

    #[test]
    fn transforms_of_real_numbers_keep_one_half() {
        for shape in [[2, 4, 6], [1, 3, 5]] {
            let count = shape.iter().product();
            let x: Vec<f64> = (0..count).map(|i| (i * i % 11) as f64 - 4.0).collect();
            let half = run(FftKind::Rfft, &shape[1..], Literal::new(shape, &x));
            assert_eq!(half.ty().shape[2], shape[2] / 2 + 1);
            let back = run(FftKind::Irfft, &shape[1..], half).to_vec::<f64>().unwrap();
            assert!(back.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-12));
        }
    }
}
