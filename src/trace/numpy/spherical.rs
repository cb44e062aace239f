//! Spherical harmonics: `jax.scipy.special.sph_harm_y`.

use std::f64::consts::PI;

use crate::trace::ops::{IndexMode, complex, full_like, stack, where_};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::DType;

/// Highest degree: the number of operations grows with its square.
const MAX_DEGREE: usize = 64;

/// `jax.scipy.special.sph_harm_y`: the spherical harmonics of degree `n` and order `m`, both `i32[k]`,
/// at the polar angles `theta` and the azimuths `phi`, both `f32[k]` or `f64[k]`. The result is
/// complex. Degrees above `n_max`, at most 64, count as `n_max`.
#[op(at_line)]
pub fn sph_harm_y(n: Tensor, m: Tensor, theta: Tensor, phi: Tensor, n_max: usize) -> Tensor {
    let [a, b, c, d] = [n, m, theta, phi].map(|x| x.ty());
    let whole = [&a, &b].iter().all(|ty| ty.dtype == DType::I32 && ty.shape == c.shape);
    let fits = c.rank() == 1 && matches!(c.dtype, DType::F32 | DType::F64) && c == d;
    if !whole || !fits || n_max > MAX_DEGREE {
        let problem = format!(
            "takes n and m as i32[k], theta and phi as f32[k] or f64[k], and n_max up to \
             {MAX_DEGREE}; was given {a}, {b}, {c}, {d}, {n_max}"
        );
        fail_op("sph_harm_y", problem);
    }
    let table = legendre(n_max, theta.cos());
    let order = m.abs();
    let last = n_max as i32;
    let place = order.clip(0, last) * (last + 1) + n.clip(0, last);
    let size = table.take_along_axis_mode(place.expand_dims(0), 0, IndexMode::Clip).squeeze(0);
    let angle = order.to(phi.dtype()) * phi;
    let harmonic = complex(size * angle.cos(), size * angle.sin());
    // Those of negative order are conjugates, negated if the order is odd.
    let sign = (1 - (order & 1) * 2).to(harmonic.dtype());
    where_(m.lt(0), sign * harmonic.conj(), harmonic)
}

/// The normalized associated Legendre functions of order `m` and degree `l` at `x`, in row
/// `m (n_max + 1) + l`, by the recurrences in degree and order.
fn legendre(n_max: usize, x: Tensor) -> Tensor {
    let zero = full_like(x, 0.0);
    let sine = (1.0 - x * x).sqrt();
    let mut diagonal = full_like(x, 0.5 / PI.sqrt());
    let mut rows = Vec::new();
    for m in 0..=n_max {
        if m > 0 {
            diagonal = diagonal * sine * -(1.0 + 0.5 / m as f64).sqrt();
        }
        rows.extend(std::iter::repeat_n(zero, m));
        let (mut before, mut value) = (zero, diagonal);
        rows.push(value);
        for l in m + 1..=n_max {
            let (l, m) = (l as f64, m as f64);
            let a = ((4.0 * l * l - 1.0) / (l * l - m * m)).sqrt();
            let b = (((l - 1.0).powi(2) - m * m) / (4.0 * (l - 1.0).powi(2) - 1.0)).sqrt();
            (before, value) = (value, (x * value - before * b) * a);
            rows.push(value);
        }
    }
    stack(&rows, 0)
}
