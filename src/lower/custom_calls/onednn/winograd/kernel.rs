//! The transform of a kernel, and the transposed one of its gradient.

use super::tiling::Tiling;
use super::vector::{
    LANES, Simd, Vector, both_axes, for_each, load_square, square, store_square, with_vectors,
};

/// The transform of a kernel to `[16, depth, features]` or, `transposed`, `[16, features, depth]`.
pub fn transform_kernel(
    tiling: &Tiling,
    simd: Simd,
    kernel: &[f32],
    transposed: bool,
    to: &mut [f32],
) {
    assert!(kernel.len() >= tiling.kernel_span());
    assert_eq!(to.len(), tiling.kernel_transform_len());
    // SAFETY: the lengths were checked, and the processor has the instructions.
    unsafe {
        match transposed {
            false => with_vectors!(simd, by_features(tiling, kernel, to)),
            true => with_vectors!(simd, by_depth(tiling, kernel, to)),
        }
    }
}

#[inline(always)]
unsafe fn by_features<V: Vector>(tiling: &Tiling, kernel: &[f32], to: &mut [f32]) {
    let (features, stride) = (tiling.features, tiling.kernel_strides[0]);
    let offsets: [usize; LANES] = std::array::from_fn(|lane| lane * stride);
    let contiguous = stride == 1;
    for depth in 0..tiling.depth() {
        let start = tiling.kernel_offset(depth);
        for at in (0..features).step_by(V::LEN) {
            // SAFETY: features are whole vectors, and the caller checked the lengths.
            unsafe {
                let to = to.as_mut_ptr().add(depth * features + at);
                transform::<V>(tiling, &kernel[start + at * stride..], &offsets, contiguous, to);
            }
        }
    }
}

#[inline(always)]
unsafe fn by_depth<V: Vector>(tiling: &Tiling, kernel: &[f32], to: &mut [f32]) {
    let stride = tiling.kernel_strides[0];
    for at in (0..tiling.depth()).step_by(V::LEN) {
        let starts: [usize; LANES] =
            std::array::from_fn(|lane| tiling.kernel_offset(at + lane.min(V::LEN - 1)));
        let base = starts.into_iter().fold(usize::MAX, usize::min);
        let offsets = starts.map(|start| start - base);
        let contiguous = (0..V::LEN).all(|lane| offsets[lane] == lane);
        for feature in 0..tiling.features {
            // SAFETY: the depth is of whole vectors, and the caller checked the lengths.
            unsafe {
                let to = to.as_mut_ptr().add(feature * tiling.depth() + at);
                let kernel = &kernel[base + feature * stride..];
                transform::<V>(tiling, kernel, &offsets, contiguous, to);
            }
        }
    }
}

/// The transform of one vector, whose elements are at these offsets.
#[inline(always)]
unsafe fn transform<V: Vector>(
    tiling: &Tiling,
    kernel: &[f32],
    offsets: &[usize; LANES],
    contiguous: bool,
    to: *mut f32,
) {
    let taps = tiling.taps();
    // SAFETY: the caller's.
    unsafe {
        let g = square(V::splat(0.0), |i, j| {
            if i >= taps || j >= taps {
                return V::splat(0.0);
            }
            let from = &kernel[tiling.tap_offset([i, j])..];
            if contiguous {
                return V::load(from[..V::LEN].as_ptr());
            }
            let mut gathered = [0.0; LANES];
            for (value, &offset) in gathered.iter_mut().zip(offsets).take(V::LEN) {
                *value = from[offset];
            }
            V::load(gathered.as_ptr())
        });
        let half = V::splat(0.5);
        let u = match taps {
            2 => both_axes(g, |g| [g[0], g[0].add(g[1]).mul(half), g[0].sub(g[1]).mul(half), g[1]]),
            _ => both_axes(g, |g| {
                let even = g[0].add(g[2]);
                [g[0], even.add(g[1]).mul(half), even.sub(g[1]).mul(half), g[2]]
            }),
        };
        store_square(u, to, tiling.depth() * tiling.features);
    }
}

/// The gradient of a kernel: adds the gradients of its transform that the parts of a batch have, in
/// order, and applies the transposed transform.
pub fn kernel_gradient(tiling: &Tiling, simd: Simd, parts: &[&[f32]], kernel: &mut [f32]) {
    assert!(kernel.len() >= tiling.kernel_span());
    assert!(parts.iter().all(|part| part.len() == tiling.kernel_transform_len()));
    // SAFETY: as in `transform_kernel`.
    unsafe { with_vectors!(simd, gradient(tiling, parts, kernel)) }
}

#[inline(always)]
unsafe fn gradient<V: Vector>(tiling: &Tiling, parts: &[&[f32]], kernel: &mut [f32]) {
    let (features, taps) = (tiling.features, tiling.taps());
    let stride = tiling.kernel_strides[0];
    let matrix = tiling.depth() * features;
    for depth in 0..tiling.depth() {
        let start = tiling.kernel_offset(depth);
        for at in (0..features).step_by(V::LEN) {
            // SAFETY: features are whole vectors, and the caller checked the lengths.
            unsafe {
                let load = |part: &[f32]| {
                    load_square::<V>(part.as_ptr().add(depth * features + at), matrix)
                };
                let mut sum = load(parts[0]);
                for part in &parts[1..] {
                    let x = load(part);
                    sum = square(sum[0][0], |i, j| sum[i][j].add(x[i][j]));
                }
                let half = V::splat(0.5);
                let g = both_axes(sum, |u| {
                    let (sum, difference) = (u[1].add(u[2]).mul(half), u[1].sub(u[2]).mul(half));
                    match taps {
                        2 => [u[0].add(sum), difference.add(u[3]), u[0], u[0]],
                        _ => [u[0].add(sum), difference, sum.add(u[3]), u[0]],
                    }
                });
                for_each(g, |i, j, g| {
                    if i >= taps || j >= taps {
                        return;
                    }
                    let offset = start + at * stride + tiling.tap_offset([i, j]);
                    if stride == 1 {
                        return g.store(kernel[offset..offset + V::LEN].as_mut_ptr());
                    }
                    let mut values = [0.0; LANES];
                    g.store(values.as_mut_ptr());
                    let to = kernel[offset..].iter_mut().step_by(stride.max(1));
                    to.zip(&values[..V::LEN]).for_each(|(to, &value)| *to = value);
                });
            }
        }
    }
}
