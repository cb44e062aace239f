//! Functions around the gamma function: `jax.scipy.special`.

use std::panic::Location;

use crate::trace::ops::{broadcast_pair, where_, zeros_like};
use crate::trace::tensor::{Tensor, at_line, function};

/// `jax.scipy.special.betaln`: the logarithm of the beta function of positive numbers,
/// `lgamma(a) + lgamma(b) - lgamma(a + b)`, exact also where the last two nearly cancel.
#[track_caller]
pub fn betaln(a: Tensor, b: Tensor) -> Tensor {
    let _scope = function("betaln");
    at_line(Location::caller(), || {
        let (a, b) = broadcast_pair("betaln", a, b);
        // Chosen by one comparison: minimum and maximum would share the derivatives of equals.
        let first = a.lt(b);
        let (small, large) = (where_(first, a, b), where_(first, b, a));
        let near = large.lgamma() - (small + large).lgamma();
        // Stirling's series of either; their common terms are cancelled symbolically.
        let far_large = where_(large.lt(8.0), 8.0, large);
        let sum = small + far_large;
        let far = stirling(far_large)
            - stirling(sum)
            - (sum - 0.5) * (small / far_large).log1p()
            - small * (far_large.log() - 1.0);
        small.lgamma() + where_(large.lt(8.0), near, far)
    })
}

/// `lgamma(x) - ((x - 1/2) log(x) - x + log(2 pi) / 2)`, for `x` of 8 and more.
fn stirling(x: Tensor) -> Tensor {
    let inverse = 1.0 / x;
    let square = inverse * inverse;
    // B(2k) / (2k (2k - 1)), from the last.
    let terms = [-1.0 / 1680.0, 1.0 / 1260.0, -1.0 / 360.0, 1.0 / 12.0];
    let first = zeros_like(x) + 1.0 / 1188.0;
    inverse * terms.iter().fold(first, |sum, &term| sum * square + term)
}
