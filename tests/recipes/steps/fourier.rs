//! Complex numbers and discrete Fourier transforms.

use podracer::DType;
use podracer::trace::Var;
use podracer::trace::op::{Axes, BinaryOp, FftKind, FftOp, Op, UnaryOp};

use crate::recipes::cook::Cook;
use crate::recipes::recipe::Salt;

impl Cook {
    /// Complex numbers of two floats, or their transform, and a part of the result.
    pub(super) fn fourier(&mut self, p: [u8; 4], salt: &mut Salt) -> Option<()> {
        let fits = |c: &Cook, var: Var| {
            matches!(c.dtype(var), DType::F32 | DType::F64)
                && c.is_finite(var)
                && c.program.ty(var).numel() > 0
        };
        let x = self.pick(p[0], fits)?;
        let y = self.partner(p[1], x, salt);
        if !self.is_finite(y) {
            return None;
        }
        let (x, y) = (self.small(x, 4.0)?, self.small(y, 4.0)?);
        let (a, b) = (self.info(x), self.info(y));
        let (most, error) = (a.size() + b.size(), a.error + b.error);
        let shape = self.shape(x);
        let axes = salt.below(shape.rank().min(3) + 1);
        let mut lengths: Axes = shape[shape.rank() - axes..].into();
        let kind = FftKind::ALL[p[2] as usize % 4];
        let range = (-most, most);
        let z = match kind {
            FftKind::Rfft if axes > 0 => x,
            _ => self.rounding(Op::Binary(BinaryOp::Complex), &[x, y], range, error, 1.0)?,
        };
        if axes == 0 {
            let z = match salt.once_in(2) {
                true => self.rounding(Op::Unary(UnaryOp::Conj), &[z], range, error, 1.0)?,
                false => z,
            };
            return self.part_of(z, range, error, salt);
        }
        if kind == FftKind::Irfft {
            let last = lengths.last_mut().expect("an axis");
            *last = 2 * *last - 1 - salt.below(2).min(*last - 1);
        }
        // The inverses divide by the number of elements, and count each element of a half twice.
        let n: f64 = lengths.iter().map(|&n| n as f64).product();
        let weight = match kind {
            FftKind::Fft | FftKind::Rfft => n,
            FftKind::Ifft => 1.0,
            FftKind::Irfft => 2.0,
        };
        let (range, error) = ((-weight * most, weight * most), weight * error);
        let op = Op::Fft(FftOp { kind, lengths });
        let z = self.rounding(op, &[z], range, error, n + 16.0)?;
        if kind == FftKind::Irfft {
            return Some(());
        }
        self.part_of(z, range, error, salt)
    }

    fn part_of(&mut self, z: Var, range: (f64, f64), error: f64, salt: &mut Salt) -> Option<()> {
        let part = if salt.once_in(2) { UnaryOp::Real } else { UnaryOp::Imag };
        let error = error.max(self.info(z).error);
        self.rounding(Op::Unary(part), &[z], range, error, 1.0).map(drop)
    }
}
