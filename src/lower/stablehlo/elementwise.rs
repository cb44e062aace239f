//! Operations on one element at a time.

#![deny(clippy::wildcard_enum_match_arm)]

use super::emitter::Emitter;
use super::mlir::{List, Ty, Value, predicate};
use crate::trace::literal::Literal;
use crate::trace::op::{Axes, BinaryOp, CompareOp, FftKind, FftOp, UnaryOp};
use crate::trace::types::{DType, TensorType};

/// Coefficients of Chebyshev polynomials in `x / 2 - 2`, which sum to `bessel_i0e(x)` from 0 to 8.
const I0E_TO_8: [f64; 30] = [
    0.6767952744094761,
    -0.3046826723431984,
    0.17162090152220877,
    -0.09490109704804764,
    0.04930528423967071,
    -0.02373741480589947,
    0.010546460394594998,
    -0.004324309995050576,
    0.0016394756169413357,
    -0.0005763755745385824,
    0.00018850288509584165,
    -5.754195010082104e-05,
    1.6448448070728896e-05,
    -4.4167383584587505e-06,
    1.1173875391201037e-06,
    -2.670793853940612e-07,
    6.046995022541919e-08,
    -1.300025009986248e-08,
    2.6598237246823866e-09,
    -5.189795601635263e-10,
    9.675809035373237e-11,
    -1.726826291441556e-11,
    2.95505266312964e-12,
    -4.856446783111929e-13,
    7.676185498604936e-14,
    -1.1685332877993451e-14,
    1.715391285555133e-15,
    -2.431279846547955e-16,
    3.3307945188222384e-17,
    -4.4153416464793395e-18,
];

/// The same in `32 / x - 2`, which sum to `sqrt(x) bessel_i0e(x)` from 8 on.
const I0E_FROM_8: [f64; 25] = [
    0.8044904110141088,
    0.0033691164782556943,
    6.889758346916825e-05,
    2.8913705208347567e-06,
    2.0489185894690638e-07,
    2.266668990498178e-08,
    3.3962320257083865e-09,
    4.94060238822497e-10,
    1.1889147107846439e-11,
    -3.1499165279632416e-11,
    -1.3215811840447713e-11,
    -1.7941785315068062e-12,
    7.180124451383666e-13,
    3.8527783827421426e-13,
    1.54008621752141e-14,
    -4.150569347287222e-14,
    -9.554846698828307e-15,
    3.8116806693526224e-15,
    1.7725601330565263e-15,
    -3.425485619677219e-16,
    -2.8276239805165836e-16,
    3.461222867697461e-17,
    4.46562142029676e-17,
    -4.830504485944182e-18,
    -7.233180487874754e-18,
];

impl Emitter<'_> {
    pub(super) fn unary(&mut self, op: UnaryOp, x: Value, ty: &TensorType) -> Value {
        let name = match op {
            UnaryOp::Neg => "stablehlo.negate",
            UnaryOp::Abs if ty.dtype.is_unsigned() => return x,
            // The compiler takes the absolute value of `x * x` to be `x * x`, which integers that
            // wrap are not.
            UnaryOp::Abs if ty.dtype.is_int() => {
                let negated = self.unary(UnaryOp::Neg, x, ty);
                return self.binary(BinaryOp::Max, x, negated, ty);
            }
            UnaryOp::Abs if ty.dtype.is_complex() => return self.part("abs", x, ty),
            UnaryOp::Abs => "stablehlo.abs",
            // StableHLO has no sign of unsigned integers.
            UnaryOp::Sign if ty.dtype.is_unsigned() => {
                let nonzero = self.nonzero(x, ty);
                return self.convert(nonzero, &predicate(ty), ty.dtype);
            }
            UnaryOp::Sign => "stablehlo.sign",
            UnaryOp::Exp => "stablehlo.exponential",
            UnaryOp::Expm1 => "stablehlo.exponential_minus_one",
            UnaryOp::Log => "stablehlo.log",
            UnaryOp::Log1p => "stablehlo.log_plus_one",
            UnaryOp::Sqrt => "stablehlo.sqrt",
            UnaryOp::Rsqrt => "stablehlo.rsqrt",
            UnaryOp::Sin | UnaryOp::Cos if ty.dtype.is_complex() => {
                return self.complex_sine(op, x, ty);
            }
            UnaryOp::Sin => "stablehlo.sine",
            UnaryOp::Cos => "stablehlo.cosine",
            UnaryOp::Tan => "stablehlo.tan",
            UnaryOp::Tanh => "stablehlo.tanh",
            UnaryOp::Logistic => "stablehlo.logistic",
            UnaryOp::Floor => "stablehlo.floor",
            UnaryOp::Ceil => "stablehlo.ceil",
            UnaryOp::Round => "stablehlo.round_nearest_even",
            // The plugins know CHLO and hold XLA's own polynomials for these two.
            UnaryOp::Erf => return self.op(format_args!("chlo.erf {x} : {0} -> {0}", Ty(ty))),
            UnaryOp::ErfInv => {
                return self.op(format_args!("chlo.erf_inv {x} : {0} -> {0}", Ty(ty)));
            }
            UnaryOp::Asin
            | UnaryOp::Acos
            | UnaryOp::Sinh
            | UnaryOp::Cosh
            | UnaryOp::Asinh
            | UnaryOp::Acosh
            | UnaryOp::Atanh => {
                let (name, ty) = (op.name(), Ty(ty));
                return self.op(format_args!("chlo.{name} {x} : {ty} -> {ty}"));
            }
            UnaryOp::Cbrt => "stablehlo.cbrt",
            // Written out by the plugin's own decompositions (Lanczos, with reflection).
            UnaryOp::Erfc => return self.op(format_args!("chlo.erfc {x} : {0} -> {0}", Ty(ty))),
            UnaryOp::Lgamma => {
                return self.op(format_args!("chlo.lgamma {x} : {0} -> {0}", Ty(ty)));
            }
            UnaryOp::Digamma => {
                let digamma = self.op(format_args!("chlo.digamma {x} : {0} -> {0}", Ty(ty)));
                return self.nan_at_zero(x, digamma, ty);
            }
            UnaryOp::BesselI0e => return self.bessel_i0e(x, ty),
            UnaryOp::BesselI1e => {
                return self.op(format_args!("chlo.bessel_i1e {x} : {0} -> {0}", Ty(ty)));
            }
            UnaryOp::IsFinite => {
                let result = predicate(ty);
                let (from, to) = (Ty(ty), Ty(&result));
                return self.op(format_args!("stablehlo.is_finite {x} : ({from}) -> {to}"));
            }
            UnaryOp::Not => "stablehlo.not",
            UnaryOp::PopulationCount => "stablehlo.popcnt",
            // Of negative constants, the compiler counts from 64 bits.
            UnaryOp::Clz if !ty.dtype.is_unsigned() => {
                let unsigned = TensorType::new(ty.dtype.unsigned(), &ty.shape);
                let bits = self.bitcast(x, ty, &unsigned);
                let count = self.unary(op, bits, &unsigned);
                return self.bitcast(count, &unsigned, ty);
            }
            UnaryOp::Clz => "stablehlo.count_leading_zeros",
            UnaryOp::Real => return self.part("real", x, ty),
            UnaryOp::Imag => return self.part("imag", x, ty),
            UnaryOp::Conj => return self.conjugate(x, ty),
        };
        self.op(format_args!("{name} {x} : {}", Ty(ty)))
    }

    /// A function from complex to real numbers.
    fn part(&mut self, name: &str, x: Value, ty: &TensorType) -> Value {
        let result = TensorType::new(ty.dtype.real(), &ty.shape);
        self.op(format_args!("stablehlo.{name} {x} : ({}) -> {}", Ty(ty), Ty(&result)))
    }

    /// The complex numbers of two parts of type `ty`.
    fn complex(&mut self, re: Value, im: Value, ty: &TensorType) -> Value {
        let result = TensorType::new(ty.dtype.complex(), &ty.shape);
        self.op(format_args!("stablehlo.complex {re}, {im} : {}", Ty(&result)))
    }

    fn conjugate(&mut self, x: Value, ty: &TensorType) -> Value {
        let part = TensorType::new(ty.dtype.real(), &ty.shape);
        let (re, im) = (self.part("real", x, ty), self.part("imag", x, ty));
        let im = self.unary(UnaryOp::Neg, im, &part);
        self.complex(re, im, &part)
    }

    /// The sine or cosine of complex numbers, as JAX lowers them. Hyperbolic functions are made of `expm1`, which
    /// is exact near 0. Where the real part is 0, so is one part of the result, also beside an infinite one.
    fn complex_sine(&mut self, op: UnaryOp, x: Value, ty: &TensorType) -> Value {
        let part = &TensorType::new(ty.dtype.real(), &ty.shape);
        let [zero, two] = [0.0, 2.0].map(|x| self.constant(&Literal::filled(part.clone(), x)));
        let (re, im) = (self.part("real", x, ty), self.part("imag", x, ty));
        let real = self.compare(CompareOp::Eq, re, zero, part);
        let [sin, cos] = [UnaryOp::Sin, UnaryOp::Cos].map(|op| self.unary(op, re, part));
        let negated = self.unary(UnaryOp::Neg, im, part);
        let [up, down] = [im, negated].map(|x| self.unary(UnaryOp::Expm1, x, part));
        let difference = self.binary(BinaryOp::Sub, up, down, part);
        let sum = self.binary(BinaryOp::Add, up, down, part);
        let sum = self.binary(BinaryOp::Add, sum, two, part);
        let sinh = self.binary(BinaryOp::Div, difference, two, part);
        let cosh = self.binary(BinaryOp::Div, sum, two, part);
        let negated = self.unary(UnaryOp::Neg, sin, part);
        let (first, second) = if op == UnaryOp::Sin { (sin, cos) } else { (cos, negated) };
        let re = self.binary(BinaryOp::Mul, first, cosh, part);
        let im = self.binary(BinaryOp::Mul, second, sinh, part);
        let mask = predicate(part);
        let cleared = if op == UnaryOp::Sin { re } else { im };
        let cleared = self.select(real, zero, cleared, &mask, part);
        let (re, im) = if op == UnaryOp::Sin { (cleared, im) } else { (re, cleared) };
        self.complex(re, im, part)
    }

    /// A discrete Fourier transform.
    pub(super) fn fft(
        &mut self,
        fft: &FftOp,
        x: Value,
        ty: &TensorType,
        result: &TensorType,
    ) -> Value {
        if result.numel() == 0 {
            return self.constant(&Literal::filled(result.clone(), 0.0));
        }
        let symmetric = self.options.platform.facts().irfft_is_symmetric;
        if let ([outer @ .., last], FftKind::Irfft, true) = (&fft.lengths[..], fft.kind, symmetric)
            && !outer.is_empty()
        {
            // NVIDIA's and AMD's libraries take all axes to be halves of something symmetric: the
            // other axes are transformed on their own, as in JAX.
            let first = ty.rank() - fft.lengths.len();
            let mut order: Axes = (0..ty.rank() - 1).collect();
            order.insert(first, ty.rank() - 1);
            let mut back: Axes = (0..ty.rank()).filter(|&axis| axis != first).collect();
            back.push(first);
            let (x, moved) = self.transposed(x, ty, &order);
            let complex = FftOp { kind: FftKind::Ifft, lengths: outer.into() };
            let x = self.fft(&complex, x, &moved, &moved);
            let (x, _) = self.transposed(x, &moved, &back);
            let real = FftOp { kind: FftKind::Irfft, lengths: [*last].as_slice().into() };
            return self.fft(&real, x, ty, result);
        }
        let (kind, lengths) = (fft.kind.name().to_uppercase(), List(&fft.lengths));
        self.op(format_args!(
            "stablehlo.fft {x}, type = {kind}, length = [{lengths}] : ({}) -> {}",
            Ty(ty),
            Ty(result)
        ))
    }

    /// CHLO lacks it: two Chebyshev expansions, for up to 8 and for more.
    fn bessel_i0e(&mut self, x: Value, ty: &TensorType) -> Value {
        let dtype = if ty.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let wide = &TensorType::new(dtype, &ty.shape);
        let x = self.convert(x, ty, dtype);
        let size = self.unary(UnaryOp::Abs, x, wide);
        let number = |this: &mut Self, x: f64| this.constant(&Literal::filled(wide.clone(), x));
        let [half, two, eight, many] = [0.5, 2.0, 8.0, 32.0].map(|x| number(self, x));
        let near = self.binary(BinaryOp::Mul, size, half, wide);
        let near = self.binary(BinaryOp::Sub, near, two, wide);
        let near = self.chebyshev(near, &I0E_TO_8, wide);
        let far = self.binary(BinaryOp::Div, many, size, wide);
        let far = self.binary(BinaryOp::Sub, far, two, wide);
        let far = self.chebyshev(far, &I0E_FROM_8, wide);
        let root = self.unary(UnaryOp::Sqrt, size, wide);
        let far = self.binary(BinaryOp::Div, far, root, wide);
        let is_near = self.compare(CompareOp::Le, size, eight, wide);
        let y = self.select(is_near, near, far, &predicate(wide), wide);
        self.convert(y, wide, ty.dtype)
    }

    /// `c[0] / 2 + c[1] T1(x / 2) + c[2] T2(x / 2) + ..` for `x` in -2..2, by Clenshaw's recurrence;
    /// without the terms that `f32` cannot hold beside the others.
    fn chebyshev(&mut self, x: Value, coefficients: &[f64], ty: &TensorType) -> Value {
        let least = if ty.dtype == DType::F64 { 0.0 } else { 1e-9 };
        let number = |this: &mut Self, x: f64| this.constant(&Literal::filled(ty.clone(), x));
        let zero = number(self, 0.0);
        let (mut last, mut before, mut earlier) = (zero, zero, zero);
        for &c in coefficients.iter().rev().skip_while(|c| c.abs() < least) {
            (before, earlier) = (last, before);
            let product = self.binary(BinaryOp::Mul, x, before, ty);
            let difference = self.binary(BinaryOp::Sub, product, earlier, ty);
            let c = number(self, c);
            last = self.binary(BinaryOp::Add, difference, c, ty);
        }
        let sum = self.binary(BinaryOp::Sub, last, earlier, ty);
        let half = number(self, 0.5);
        self.binary(BinaryOp::Mul, sum, half, ty)
    }

    /// `value`, but NaN where `x` is 0: XLA of 2026 has minus infinity there for `digamma`, unlike the
    /// XLA of JAX 0.10.2.
    fn nan_at_zero(&mut self, x: Value, value: Value, ty: &TensorType) -> Value {
        let [zero, nan] = [0.0, f64::NAN].map(|x| self.constant(&Literal::filled(ty.clone(), x)));
        let pole = self.compare(CompareOp::Eq, x, zero, ty);
        self.select(pole, nan, value, &predicate(ty), ty)
    }

    pub(super) fn binary(&mut self, op: BinaryOp, a: Value, b: Value, ty: &TensorType) -> Value {
        let mut b = b;
        if op == BinaryOp::Atan2 && self.options.platform.facts().atan_is_wrong {
            // This is `b`, or NaN if `a` is NaN, and the compiler sees no constant.
            let number = self.compare(CompareOp::Eq, a, a, ty);
            b = self.select(number, b, a, &predicate(ty), ty);
        }
        let name = match op {
            BinaryOp::Add => "add",
            BinaryOp::Sub => "subtract",
            BinaryOp::Mul => "multiply",
            // Integers by zero: see `division`.
            BinaryOp::Div => "divide",
            BinaryOp::Rem => "remainder",
            BinaryOp::Pow => "power",
            BinaryOp::Max => "maximum",
            BinaryOp::Min => "minimum",
            BinaryOp::Atan2 => "atan2",
            BinaryOp::Polygamma => {
                let polygamma =
                    self.op(format_args!("chlo.polygamma {a}, {b} : {0}, {0} -> {0}", Ty(ty)));
                let zero = self.constant(&Literal::filled(ty.clone(), 0.0));
                let higher = self.compare(CompareOp::Ne, a, zero, ty);
                let digamma = self.nan_at_zero(b, polygamma, ty);
                return self.select(higher, polygamma, digamma, &predicate(ty), ty);
            }
            BinaryOp::Complex => return self.complex(a, b, ty),
            BinaryOp::And => "and",
            BinaryOp::Or => "or",
            BinaryOp::Xor => "xor",
            BinaryOp::ShiftLeft => "shift_left",
            BinaryOp::ShiftRightLogical => "shift_right_logical",
            BinaryOp::ShiftRightArithmetic => "shift_right_arithmetic",
        };
        self.op(format_args!("stablehlo.{name} {a}, {b} : {}", Ty(ty)))
    }

    /// A quotient or remainder of integers whose divisor may be zero: the result is then all ones,
    /// or the dividend.
    ///
    /// The compiler's code gives the same results when it divides at run time. But if it knows both
    /// operands, it divides while it compiles, and a zero then ends the process by a signal.
    pub(super) fn division(&mut self, op: BinaryOp, a: Value, b: Value, ty: &TensorType) -> Value {
        let zero = self.constant(&Literal::filled(ty.clone(), 0.0));
        let one = self.constant(&Literal::filled(ty.clone(), 1.0));
        let by_zero = self.compare(CompareOp::Eq, b, zero, ty);
        let predicate_ty = predicate(ty);
        let divisor = self.select(by_zero, one, b, &predicate_ty, ty);
        let result = self.binary(op, a, divisor, ty);
        let instead = if op == BinaryOp::Div { self.unary(UnaryOp::Not, zero, ty) } else { a };
        self.select(by_zero, instead, result, &predicate_ty, ty)
    }

    pub(super) fn compare(&mut self, op: CompareOp, a: Value, b: Value, ty: &TensorType) -> Value {
        let direction = match op {
            CompareOp::Eq => "EQ",
            CompareOp::Ne => "NE",
            CompareOp::Lt => "LT",
            CompareOp::Le => "LE",
            CompareOp::Gt => "GT",
            CompareOp::Ge => "GE",
        };
        let kind = if ty.dtype.is_inexact() {
            "FLOAT"
        } else if ty.dtype.is_unsigned() || ty.dtype == DType::Bool {
            "UNSIGNED"
        } else {
            "SIGNED"
        };
        let result = predicate(ty);
        let (from, to) = (Ty(ty), Ty(&result));
        self.op(format_args!(
            "stablehlo.compare {direction}, {a}, {b}, {kind} : ({from}, {from}) -> {to}"
        ))
    }

    pub(super) fn select(
        &mut self,
        predicate: Value,
        on_true: Value,
        on_false: Value,
        predicate_ty: &TensorType,
        ty: &TensorType,
    ) -> Value {
        self.op(format_args!(
            "stablehlo.select {predicate}, {on_true}, {on_false} : {}, {}",
            Ty(predicate_ty),
            Ty(ty)
        ))
    }

    /// `x != 0`: NaN is not zero.
    fn nonzero(&mut self, x: Value, ty: &TensorType) -> Value {
        let zero = self.constant(&Literal::filled(ty.clone(), 0.0));
        self.compare(CompareOp::Ne, x, zero, ty)
    }

    pub(super) fn convert(&mut self, x: Value, from: &TensorType, dtype: DType) -> Value {
        if from.dtype == dtype {
            return x;
        }
        if dtype == DType::Bool {
            return self.nonzero(x, from);
        }
        // The imaginary part is dropped.
        if from.dtype.is_complex() && !dtype.is_complex() {
            let real = self.part("real", x, from);
            return self.convert(real, &TensorType::new(from.dtype.real(), &from.shape), dtype);
        }
        let to = TensorType::new(dtype, &from.shape);
        // Floats to integers: XLA truncates and saturates, and NaN becomes 0, as we promise.
        let result = self.op(format_args!("stablehlo.convert {x} : ({}) -> {}", Ty(from), Ty(&to)));
        if from.dtype == DType::Bool && dtype == DType::I32 && from.rank() == 0 {
            self.predicates.insert(result, x);
        }
        result
    }

    pub(super) fn bitcast(&mut self, x: Value, from: &TensorType, to: &TensorType) -> Value {
        if from.dtype == to.dtype {
            return x;
        }
        if from.dtype == DType::Bool {
            // To StableHLO a bool is one bit; to us it is a byte that is 0 or 1.
            return self.convert(x, from, to.dtype);
        }
        let x = if from.rank() == to.rank() {
            x
        } else {
            // Two bitcasts to other widths, one after the other: the compiler makes them one, with
            // the shape that the two came to, and refuses its own work.
            self.op(format_args!("stablehlo.optimization_barrier {x} : {}", Ty(from)))
        };
        self.op(format_args!("stablehlo.bitcast_convert {x} : ({}) -> {}", Ty(from), Ty(to)))
    }
}
