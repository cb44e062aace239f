//! Activation functions: the rest of `jax.nn`.

use std::f64::consts::FRAC_1_SQRT_2;

use crate::trace::op::Axes;
use crate::trace::ops::AxisList;
use crate::trace::ops::{full_like, ones_like, where_, zeros_like};
use crate::trace::tensor::{Tensor, fail_op, op};

impl Tensor {
    /// `jax.nn.celu`: `max(x, 0) + alpha (exp(min(x, 0) / alpha) - 1)`.
    #[op]
    pub fn celu(self, alpha: f64) -> Tensor {
        self.maximum(0.0) + (self.minimum(0.0) / alpha).expm1() * alpha
    }

    /// `jax.nn.selu`: the scaled exponential linear unit.
    #[op]
    pub fn selu(self) -> Tensor {
        let (alpha, scale) = (1.673_263_242_354_377_2, 1.050_700_987_355_480_5);
        let positive = self.gt(0.0);
        let low = where_(positive, zeros_like(self), self).expm1() * alpha;
        where_(positive, self, low) * scale
    }

    /// `jax.nn.gelu` with `approximate=False`: the Gaussian error linear unit by the error function.
    /// [`Tensor::gelu`] is its tanh form.
    #[op]
    pub fn gelu_exact(self) -> Tensor {
        self * 0.5 * (self * -FRAC_1_SQRT_2).erfc()
    }

    /// `jax.nn.glu`: the first half along `axis` times the sigmoid of the second.
    #[op]
    pub fn glu(self, axis: isize) -> Tensor {
        let halves = self.split(2, axis);
        halves[0] * halves[1].sigmoid()
    }

    /// `jax.nn.relu6`: limited to 0 and 6; at both the derivative is 0.
    #[op]
    pub fn relu6(self) -> Tensor {
        let (low, high) = (self.le(0.0), self.ge(6.0));
        where_(low, zeros_like(self), where_(high, full_like(self, 6.0), self))
    }

    /// `jax.nn.hard_sigmoid`: `relu6(x + 3) / 6`.
    #[op]
    pub fn hard_sigmoid(self) -> Tensor {
        (self + 3.0).relu6() / 6.0
    }

    /// `jax.nn.hard_silu`, `hard_swish`: `x` times [`Tensor::hard_sigmoid`].
    #[op]
    pub fn hard_silu(self) -> Tensor {
        self * self.hard_sigmoid()
    }

    /// `jax.nn.hard_tanh`: limited to -1 and 1.
    #[op]
    pub fn hard_tanh(self) -> Tensor {
        let (low, high) = (self.lt(-1.0), self.gt(1.0));
        where_(high, ones_like(self), where_(low, -ones_like(self), self))
    }

    /// `jax.nn.soft_sign`: `x / (|x| + 1)`.
    #[op]
    pub fn soft_sign(self) -> Tensor {
        self / (self.abs() + 1.0)
    }

    /// `jax.nn.mish`: `x tanh(softplus(x))`.
    #[op]
    pub fn mish(self) -> Tensor {
        self * self.softplus().tanh()
    }

    /// `jax.nn.squareplus`: `(x + sqrt(x^2 + b)) / 2`; `b` is 4 by default in JAX.
    #[op]
    pub fn squareplus(self, b: f64) -> Tensor {
        (self + (self.square() + b).sqrt()) * 0.5
    }

    /// `jax.nn.sparse_plus`: 0 up to -1, `x` from 1 on, `(x + 1)^2 / 4` between.
    #[op]
    pub fn sparse_plus(self) -> Tensor {
        let middle = (self + 1.0).square() * 0.25;
        let low = where_(self.le(-1.0), zeros_like(self), middle);
        where_(self.ge(1.0), self, low)
    }

    /// `jax.nn.sparse_sigmoid`: `(x + 1) / 2`, limited to 0 and 1.
    #[op]
    pub fn sparse_sigmoid(self) -> Tensor {
        ((self + 1.0) * 0.5).clip(0.0, 1.0)
    }

    /// `jax.nn.log1mexp`: `log(1 - exp(-x))`, exact for positive numbers of every size.
    #[op(at_line)]
    pub fn log1mexp(self) -> Tensor {
        let small = self.lt(std::f64::consts::LN_2);
        let near = where_(small, self, ones_like(self));
        let far = where_(small, ones_like(self), self);
        where_(small, (-(-near).expm1()).log(), (-(-far).exp()).log1p())
    }

    /// `jax.nn.logmeanexp`: `log(mean(exp(x)))` over `axes`, which vanish; without overflow.
    #[op]
    pub fn logmeanexp(self, axes: impl AxisList) -> Tensor {
        let shape = self.shape();
        let axes: Axes = axes.axes("logmeanexp", shape.rank());
        let count: usize = axes.iter().map(|&axis| shape[axis]).product();
        let list: Vec<isize> = axes.iter().map(|&axis| axis as isize).collect();
        self.logsumexp(&list[..]) - (count as f64).ln()
    }

    /// `jax.nn.standardize`: `(x - mean) / sqrt(variance + epsilon)` along `axis`; `epsilon` is 1e-5 by
    /// default in JAX.
    #[op]
    pub fn standardize(self, axis: isize, epsilon: f64) -> Tensor {
        if !self.dtype().is_float() {
            fail_op("standardize", format!("takes floats, and was given {}", self.ty()));
        }
        let centered = self - self.mean_keepdims(axis);
        centered * (self.var_keepdims(axis) + epsilon).rsqrt()
    }
}
