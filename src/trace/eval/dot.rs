//! Products and convolutions.

use smallvec::SmallVec;

use super::number::{Number, with_number};
use super::shapes::{self, offsets};
use crate::trace::check::dilated;
use crate::trace::check::free_axes;
use crate::trace::literal::Literal;
use crate::trace::op::{ConvDims, DotDims};
use crate::trace::types::{Shape, TensorType};

pub(super) fn dot(dims: &DotDims, lhs: &Literal, rhs: &Literal, ty: &TensorType) -> Literal {
    type Axes = SmallVec<[usize; 4]>;
    let lhs_free = free_axes(lhs.ty().rank(), &dims.lhs_contract, &dims.lhs_batch);
    let rhs_free = free_axes(rhs.ty().rank(), &dims.rhs_contract, &dims.rhs_batch);
    let size = |x: &Literal, axes: &[usize]| -> usize {
        axes.iter().map(|&axis| x.ty().shape[axis]).product()
    };
    let batch = size(lhs, &dims.lhs_batch);
    let (rows, columns) = (size(lhs, &lhs_free), size(rhs, &rhs_free));
    let inner = size(lhs, &dims.lhs_contract);
    // lhs as [batch, rows, inner], rhs as [batch, inner, columns].
    let lhs_order: Axes =
        [&dims.lhs_batch, &lhs_free, &dims.lhs_contract].into_iter().flatten().copied().collect();
    let rhs_order: Axes =
        [&dims.rhs_batch, &dims.rhs_contract, &rhs_free].into_iter().flatten().copied().collect();
    let lhs = shapes::transpose(lhs, &lhs_order);
    let rhs = shapes::transpose(rhs, &rhs_order);
    with_number!(ty.dtype, N => {
        let (lhs, rhs) = (N::lift(&lhs), N::lift(&rhs));
        let mut products = Vec::with_capacity(ty.numel());
        for i in 0..batch {
            let a = &lhs[i * rows * inner..][..rows * inner];
            let b = &rhs[i * inner * columns..][..inner * columns];
            products.extend(N::matmul(rows, inner, columns, a, b));
        }
        N::lower(ty, &products)
    })
}

pub(super) fn conv(dims: &ConvDims, lhs: &Literal, rhs: &Literal, ty: &TensorType) -> Literal {
    // Batch, features, space on either side and in the result; the layouts only at the ends.
    let lhs = shapes::transpose(lhs, &dims.lhs_spec);
    let rhs = shapes::transpose(rhs, &dims.rhs_spec);
    let out: Shape = dims.out_spec.iter().map(|&axis| ty.shape[axis]).collect();
    let out_ty = TensorType::new(ty.dtype, &out);
    let canonical = with_number!(ty.dtype, N => {
        let (l, r) = (N::lift(&lhs), N::lift(&rhs));
        N::lower(&out_ty, &correlate(dims, (&lhs.ty().shape, &l), (&rhs.ty().shape, &r), &out))
    });
    let mut back: SmallVec<[usize; 4]> = SmallVec::from_elem(0, out.rank());
    for (axis, &place) in dims.out_spec.iter().enumerate() {
        back[place] = axis;
    }
    shapes::transpose(&canonical, &back)
}

/// The convolution with all layouts batch (or output features), features, space.
fn correlate<N: Number>(
    dims: &ConvDims,
    (lhs_shape, lhs): (&Shape, &[N]),
    (rhs_shape, rhs): (&Shape, &[N]),
    out_shape: &Shape,
) -> Vec<N> {
    let mut out = vec![N::ZERO; out_shape.numel()];
    if out.is_empty() {
        return out;
    }
    let (padded_shape, padded) = padded(dims, lhs_shape, lhs);
    let batch = out_shape[0];
    let channels = rhs_shape[1];
    let groups = dims.feature_groups.max(dims.batch_groups);
    let features = rhs_shape[0] / groups;

    // Offsets inside one channel of the padded input: of the window's first element for each
    // position of the result, and of each element of the window.
    let strides = Shape::from(&padded_shape[2..]).strides();
    let scaled = |by: &[usize]| -> SmallVec<[usize; 4]> {
        strides.iter().zip(by).map(|(stride, by)| stride * by).collect()
    };
    let places = offsets(&out_shape[2..], &scaled(&dims.strides));
    let window = offsets(&rhs_shape[2..], &scaled(&dims.rhs_dilation));
    let plane: usize = padded_shape[2..].iter().product();
    let inner = channels * window.len();

    for group in 0..groups {
        let kernel = &rhs[group * features * inner..][..features * inner];
        for item in 0..batch {
            // Groups of features split the channels of every item; groups of the batch split the
            // items.
            let first_plane = if dims.batch_groups > 1 {
                (group * batch + item) * channels
            } else {
                (item * groups + group) * channels
            };
            // One column for each position of the result.
            let mut patches = Vec::with_capacity(inner * places.len());
            for channel in 0..channels {
                let channel = &padded[(first_plane + channel) * plane..][..plane];
                for offset in &window {
                    patches.extend(places.iter().map(|place| channel[place + offset]));
                }
            }
            let product = N::matmul(features, inner, places.len(), kernel, &patches);
            let at = (item * rhs_shape[0] + group * features) * places.len();
            out[at..][..product.len()].copy_from_slice(&product);
        }
    }
    out
}

/// The input with zeros around it and between its elements.
fn padded<N: Number>(dims: &ConvDims, shape: &Shape, x: &[N]) -> (Shape, Vec<N>) {
    let mut padded = Shape::from(&shape[..2]);
    let (mut low, mut interior) = (vec![0, 0], vec![0, 0]);
    for (i, &(before, after)) in dims.padding.iter().enumerate() {
        let size = dilated(shape[2 + i], dims.lhs_dilation[i]) as i64 + before + after;
        padded = padded.with_axis(2 + i, size as usize);
        low.push(before);
        interior.push(dims.lhs_dilation[i] - 1);
    }
    let mut out = vec![N::ZERO; padded.numel()];
    shapes::pad_into(shape, x, &low, &interior, &padded, &mut out);
    (padded, out)
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::trace::eval::eval_op;
    use crate::trace::op::{Op, Precision};
    use crate::trace::types::DType;

    #[test]
    fn matrix_products_are_sums_of_products() {
        let dims = DotDims {
            lhs_contract: smallvec![1],
            rhs_contract: smallvec![0],
            ..DotDims::default()
        };
        let times = |x: Literal, y: Literal| eval_op(&Op::Dot(dims.clone()), &[x, y]).remove(0);
        let (x, y) = ([[1.0f32, 2.0], [3.0, 4.0]], [[1.0f32, 0.0, -1.0], [0.0, 1.0, 1.0]]);
        assert_eq!(times(x.into(), y.into()), [[1.0f32, 2.0, 1.0], [3.0, 4.0, 1.0]].into());
        assert_eq!(times([[100i8, 100]].into(), [[1i8], [1]].into()), [[-56i8]].into());
        let nothing = times(Literal::new::<f32>([2, 0], &[]), Literal::new::<f32>([0, 1], &[]));
        assert_eq!(nothing, [[0.0f32], [0.0]].into());
    }

    #[test]
    fn every_type_has_products() {
        let dims = DotDims {
            lhs_contract: smallvec![1],
            rhs_contract: smallvec![0],
            ..DotDims::default()
        };
        let multiplied = |dtype: &DType| *dtype != DType::Bool && !dtype.is_narrow();
        for dtype in DType::ALL.into_iter().filter(multiplied) {
            let one = |shape: [usize; 2]| Literal::filled(TensorType::new(dtype, shape), 1.0);
            let product = eval_op(&Op::Dot(dims.clone()), &[one([2, 3]), one([3, 2])]).remove(0);
            assert_eq!(product, Literal::filled(TensorType::new(dtype, [2, 2]), 3.0));
        }
    }

    #[test]
    fn batch_axes_come_first() {
        let dims = DotDims {
            lhs_contract: smallvec![0],
            rhs_contract: smallvec![1],
            lhs_batch: smallvec![1],
            rhs_batch: smallvec![0],
            precision: Precision::Default,
        };
        let x = Literal::from([[1, 2], [3, 4]]);
        let sums = eval_op(&Op::Dot(dims), &[x.clone(), x]).remove(0);
        // Column b of the left with row b of the right.
        assert_eq!(sums, [1 + 3 * 2, 2 * 3 + 4 * 4].into());
    }

    fn conv_1d(x: &[f32], kernel: &[f32], padding: (i64, i64), lhs: usize, rhs: usize) -> Vec<f32> {
        let dims = ConvDims {
            lhs_spec: smallvec![0, 1, 2],
            rhs_spec: smallvec![0, 1, 2],
            out_spec: smallvec![0, 1, 2],
            strides: smallvec![1],
            padding: smallvec![padding],
            lhs_dilation: smallvec![lhs],
            rhs_dilation: smallvec![rhs],
            feature_groups: 1,
            batch_groups: 1,
            precision: Precision::Default,
        };
        let (x, kernel) =
            (Literal::new([1, 1, x.len()], x), Literal::new([1, 1, kernel.len()], kernel));
        eval_op(&Op::Conv(dims), &[x, kernel]).remove(0).to_vec().unwrap()
    }

    #[test]
    fn convolutions_are_correlations() {
        let x = [1.0, 2.0, 4.0];
        assert_eq!(conv_1d(&x, &[1.0, 10.0], (0, 0), 1, 1), [21.0, 42.0]);
        assert_eq!(conv_1d(&x, &[1.0, 10.0], (1, 0), 1, 1), [10.0, 21.0, 42.0]);
        assert_eq!(conv_1d(&x, &[1.0, 10.0], (-1, 1), 1, 1), [42.0, 4.0]);
        assert_eq!(conv_1d(&x, &[1.0, 10.0], (0, 0), 2, 1), [1.0, 20.0, 2.0, 40.0]);
        assert_eq!(conv_1d(&x, &[1.0, 10.0], (0, 0), 1, 2), [41.0]);
        assert!(conv_1d(&x, &[1.0; 4], (0, 0), 1, 1).is_empty());
    }

    /// The convolutions of the Atari network on a batch of 8: the size that must stay cheap.
    #[test]
    fn convolutions_of_the_atari_network_have_its_shapes() {
        let mut x = Literal::splat([8, 84, 84, 4], 1.0f32);
        for (size, stride, features, out) in [(8, 4, 32, 20), (4, 2, 64, 9), (3, 1, 64, 7)] {
            let channels = x.ty().shape[3];
            let kernel =
                Literal::splat([size, size, channels, features], 1.0 / (size * size) as f32);
            let dims = ConvDims {
                lhs_spec: smallvec![0, 3, 1, 2],
                rhs_spec: smallvec![3, 2, 0, 1],
                out_spec: smallvec![0, 3, 1, 2],
                strides: smallvec![stride, stride],
                padding: smallvec![(0, 0), (0, 0)],
                lhs_dilation: smallvec![1, 1],
                rhs_dilation: smallvec![1, 1],
                feature_groups: 1,
                batch_groups: 1,
                precision: Precision::Default,
            };
            x = eval_op(&Op::Conv(dims), &[x, kernel]).remove(0);
            assert_eq!(x.ty(), &TensorType::new(DType::F32, [8, out, out, features]));
        }
        let expected = (4 * 32 * 64) as f64;
        assert!(x.to_f64_vec().iter().all(|y| (y / expected - 1.0).abs() < 1e-5));
    }
}
