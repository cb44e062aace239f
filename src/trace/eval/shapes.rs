//! Operations that only move elements. All are copies of a box of elements, strided on either
//! side.

use bytemuck::Pod;
use smallvec::SmallVec;

use crate::trace::literal::{AlignedBytes, Literal};
use crate::trace::types::{Shape, TensorType};

/// Runs `$body` with the type alias `$B` bound to the unsigned integer of the size of `$ty`'s
/// elements.
macro_rules! with_bits {
    ($ty:expr, $B:ident => $body:expr) => {
        match $ty.dtype.size() {
            1 => {
                type $B = u8;
                $body
            }
            2 => {
                type $B = u16;
                $body
            }
            4 => {
                type $B = u32;
                $body
            }
            8 => {
                type $B = u64;
                $body
            }
            16 => {
                type $B = u128;
                $body
            }
            size => unreachable!("no element has {size} bytes"),
        }
    };
}
pub(super) use with_bits;

/// The elements as bits.
pub(super) fn bits<B: Pod>(bytes: &AlignedBytes) -> &[B] {
    bytemuck::cast_slice(bytes.as_ref())
}

/// A literal that starts as zero bits and is filled by `fill`.
pub(super) fn build<B: Pod>(ty: TensorType, fill: impl FnOnce(&mut [B])) -> Literal {
    let mut bytes = AlignedBytes::zeroed(ty.bytes());
    fill(bytemuck::cast_slice_mut(bytes.as_mut()));
    Literal::from_bytes(ty, bytes)
}

/// Layout of a box of elements in a row-major tensor: the offset of the first element, and the
/// stride along each axis of the box.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub start: usize,
    pub strides: SmallVec<[isize; 4]>,
}

impl View {
    /// The box that is the whole tensor.
    pub(super) fn all(shape: &Shape) -> View {
        View { start: 0, strides: shape.strides().iter().map(|&s| s as isize).collect() }
    }

    /// The box whose first element has the given index.
    fn at(shape: &Shape, index: impl IntoIterator<Item = usize>) -> View {
        let mut view = View::all(shape);
        view.start = index.into_iter().zip(shape.strides()).map(|(i, s)| i * s).sum();
        view
    }
}

/// Copies a box of elements of the given sizes.
fn copy<B: Copy>(sizes: &[usize], from: &[B], source: &View, to: &mut [B], target: &View) {
    fn walk<B: Copy>(
        sizes: &[usize],
        from: &[B],
        (mut at, strides): (isize, &[isize]),
        to: &mut [B],
        (mut onto, steps): (isize, &[isize]),
    ) {
        match sizes {
            [] => to[onto as usize] = from[at as usize],
            &[size] => {
                for _ in 0..size {
                    to[onto as usize] = from[at as usize];
                    at += strides[0];
                    onto += steps[0];
                }
            }
            [size, rest @ ..] => {
                for _ in 0..*size {
                    walk(rest, from, (at, &strides[1..]), to, (onto, &steps[1..]));
                    at += strides[0];
                    onto += steps[0];
                }
            }
        }
    }
    walk(
        sizes,
        from,
        (source.start as isize, &source.strides),
        to,
        (target.start as isize, &target.strides),
    );
}

/// The offsets of all elements of a box, in the box's row-major order.
pub(super) fn offsets(sizes: &[usize], strides: &[usize]) -> Vec<usize> {
    let mut offsets = vec![0];
    for (&size, &stride) in sizes.iter().zip(strides) {
        offsets = offsets.iter().flat_map(|at| (0..size).map(move |i| at + i * stride)).collect();
    }
    offsets
}

/// The literal of shape `shape` with the elements of `x` at `source`.
fn read(x: &Literal, shape: &Shape, source: &View) -> Literal {
    let ty = TensorType::new(x.ty().dtype, shape);
    let bytes = x.bytes();
    with_bits!(ty, B => build::<B>(ty, |to| {
        copy(shape, bits::<B>(&bytes), source, to, &View::all(shape));
    }))
}

pub(super) fn broadcast(x: &Literal, shape: &Shape, axes: &[usize]) -> Literal {
    let mut view = View { start: 0, strides: SmallVec::from_elem(0, shape.rank()) };
    for ((&axis, stride), &size) in axes.iter().zip(x.ty().shape.strides()).zip(x.ty().shape.iter())
    {
        view.strides[axis] = if size == 1 { 0 } else { stride as isize };
    }
    read(x, shape, &view)
}

pub(super) fn transpose(x: &Literal, permutation: &[usize]) -> Literal {
    if permutation.is_sorted() {
        return x.clone();
    }
    let old = &x.ty().shape;
    let shape: Shape = permutation.iter().map(|&axis| old[axis]).collect();
    let mut view = View::all(old);
    view.strides = permutation.iter().map(|&axis| view.strides[axis]).collect();
    read(x, &shape, &view)
}

pub(super) fn reverse(x: &Literal, axes: &[usize]) -> Literal {
    let shape = &x.ty().shape;
    let last = |(axis, &size): (usize, &usize)| {
        if axes.contains(&axis) { size.saturating_sub(1) } else { 0 }
    };
    let mut view = View::at(shape, shape.iter().enumerate().map(last));
    for &axis in axes {
        view.strides[axis] *= -1;
    }
    read(x, shape, &view)
}

pub(super) fn slice(x: &Literal, start: &[usize], stride: &[usize], ty: &TensorType) -> Literal {
    let mut view = View::at(&x.ty().shape, start.iter().copied());
    for (step, &stride) in view.strides.iter_mut().zip(stride) {
        *step *= stride as isize;
    }
    read(x, &ty.shape, &view)
}

/// Start indices, moved so that a window of the given sizes fits.
fn clamped_starts(shape: &Shape, sizes: &Shape, starts: &[Literal]) -> Vec<usize> {
    let starts = starts.iter().map(|start| start.to_vec::<i32>().expect("checked to be i32")[0]);
    let room = shape.iter().zip(sizes.iter()).map(|(size, window)| size - window);
    starts.zip(room).map(|(start, room)| (start.max(0) as usize).min(room)).collect()
}

pub(super) fn dynamic_slice(x: &Literal, starts: &[Literal], sizes: &Shape) -> Literal {
    let starts = clamped_starts(&x.ty().shape, sizes, starts);
    read(x, sizes, &View::at(&x.ty().shape, starts))
}

pub(super) fn dynamic_update_slice(x: &Literal, update: &Literal, starts: &[Literal]) -> Literal {
    let (ty, window) = (x.ty(), &update.ty().shape);
    let target = View::at(&ty.shape, clamped_starts(&ty.shape, window, starts));
    let (old, new) = (x.bytes(), update.bytes());
    with_bits!(ty, B => build::<B>(ty.clone(), |to| {
        to.copy_from_slice(bits::<B>(&old));
        copy(window, bits::<B>(&new), &View::all(window), to, &target);
    }))
}

pub(super) fn concat(inputs: &[Literal], axis: usize, ty: &TensorType) -> Literal {
    with_bits!(ty, B => build::<B>(ty.clone(), |to| {
        let mut target = View::all(&ty.shape);
        for input in inputs {
            let (bytes, shape) = (input.bytes(), &input.ty().shape);
            copy(shape, bits::<B>(&bytes), &View::all(shape), to, &target);
            target.start += shape[axis] * ty.shape.strides()[axis];
        }
    }))
}

pub(super) fn pad(
    x: &Literal,
    value: &Literal,
    low: &[i64],
    interior: &[usize],
    ty: &TensorType,
) -> Literal {
    let (bytes, value) = (x.bytes(), value.bytes());
    with_bits!(ty, B => build::<B>(ty.clone(), |to| {
        to.fill(bits::<B>(&value)[0]);
        pad_into(&x.ty().shape, bits::<B>(&bytes), low, interior, &ty.shape, to);
    }))
}

/// Copies the elements that padding keeps to where they go.
pub(super) fn pad_into<B: Copy>(
    shape: &Shape,
    x: &[B],
    low: &[i64],
    interior: &[usize],
    out_shape: &Shape,
    out: &mut [B],
) {
    // Division of nonnegative numbers, rounded up.
    let divide_up = |x: i64, by: i64| (x + by - 1) / by;
    let mut sizes = Shape::scalar();
    let (mut source, mut target) = (Vec::new(), Vec::new());
    for axis in 0..shape.rank() {
        // Element i goes to low + i * step. Kept are first..end: those that land inside.
        let step = interior[axis] as i64 + 1;
        let first = divide_up((-low[axis]).max(0), step);
        let room = out_shape[axis] as i64 - low[axis];
        let end = divide_up(room.max(0), step).min(shape[axis] as i64);
        if first >= end {
            return;
        }
        sizes = sizes.with_axis(axis, (end - first) as usize);
        source.push(first as usize);
        target.push((low[axis] + first * step) as usize);
    }
    let source = View::at(shape, source);
    let mut target = View::at(out_shape, target);
    for (stride, &gap) in target.strides.iter_mut().zip(interior) {
        *stride *= gap as isize + 1;
    }
    copy(&sizes, x, &source, out, &target);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::eval::eval_op;
    use crate::trace::op::Op;

    fn grid() -> Literal {
        [[0, 1, 2], [10, 11, 12]].into()
    }

    fn run(op: Op, inputs: &[Literal]) -> Literal {
        eval_op(&op, inputs).remove(0)
    }

    #[test]
    fn transposed_reversed_and_sliced_arrays_have_their_elements() {
        let turned = transpose(&grid(), &[1, 0]);
        assert_eq!(turned, [[0, 10], [1, 11], [2, 12]].into());
        assert_eq!(reverse(&grid(), &[1]), [[2, 1, 0], [12, 11, 10]].into());
        assert_eq!(reverse(&grid(), &[0, 1]), [[12, 11, 10], [2, 1, 0]].into());
        let column: Literal = [[1], [2]].into();
        assert_eq!(broadcast(&column, &[2, 2].into(), &[0, 1]), [[1, 1], [2, 2]].into());
        assert_eq!(broadcast(&7u8.into(), &[2].into(), &[]), [7u8, 7].into());
        let odd = Op::Slice {
            start: [0, 0].into_iter().collect(),
            limit: [2, 3].into_iter().collect(),
            stride: [1, 2].into_iter().collect(),
        };
        assert_eq!(run(odd, &[grid()]), [[0, 2], [10, 12]].into());
        let joined = run(Op::Concat { axis: 1 }, &[grid(), column]);
        assert_eq!(joined, [[0, 1, 2, 1], [10, 11, 12, 2]].into());
    }

    #[test]
    fn windows_are_moved_to_fit() {
        let window = |row: i32, column: i32| {
            dynamic_slice(&grid(), &[row.into(), column.into()], &[1, 2].into())
        };
        assert_eq!(window(-5, 1), [[1, 2]].into());
        assert_eq!(window(9, 9), [[11, 12]].into());
        let update: Literal = [[7, 8]].into();
        let updated = dynamic_update_slice(&grid(), &update, &[1.into(), 2.into()]);
        assert_eq!(updated, [[0, 1, 2], [10, 7, 8]].into());
    }

    #[test]
    fn padding_may_be_negative_and_interior() {
        let pad = |low: i64, high: i64, interior: usize| {
            let op = Op::Pad {
                low: [low].into_iter().collect(),
                high: [high].into_iter().collect(),
                interior: [interior].into_iter().collect(),
            };
            run(op, &[[1, 2, 3].into(), 9.into()]).to_vec::<i32>().unwrap()
        };
        assert_eq!(pad(1, 0, 1), [9, 1, 9, 2, 9, 3]);
        assert_eq!(pad(-1, -1, 1), [9, 2, 9]);
        assert_eq!(pad(-2, 1, 0), [3, 9]);
        assert_eq!(pad(-5, 3, 0), [9]);
        assert_eq!(pad(4, -5, 0), [9, 9]);
    }

    #[test]
    fn nothing_stays_nothing() {
        let empty = Literal::new::<f32>([0, 3], &[]);
        assert_eq!(transpose(&empty, &[1, 0]).ty().shape, [3, 0].into());
        assert_eq!(reverse(&empty, &[0]), empty);
        let padded = run(
            Op::Pad {
                low: [1, 0].into_iter().collect(),
                high: [0, 0].into_iter().collect(),
                interior: [2, 0].into_iter().collect(),
            },
            &[empty.clone(), 5f32.into()],
        );
        assert_eq!(padded, [[5f32; 3]].into());
        assert_eq!(run(Op::Reshape { shape: [3, 0].into() }, &[empty]).ty().shape, [3, 0].into());
    }
}
