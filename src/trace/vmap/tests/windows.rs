//! Gathers, scatters and dynamic slices.

use super::*;

fn gathers() -> Vec<Case> {
    let rows = GatherDims {
        offset_dims: Axes::from_slice(&[1]),
        collapsed_slice_dims: Axes::from_slice(&[0]),
        start_index_map: Axes::from_slice(&[0]),
        slice_sizes: Shape::from([1, 3]),
        ..GatherDims::default()
    };
    // Window axes come before and after the index axes; index vectors address axes out of order.
    let windows = GatherDims {
        offset_dims: Axes::from_slice(&[0, 3]),
        collapsed_slice_dims: Axes::from_slice(&[1]),
        start_index_map: Axes::from_slice(&[2, 0]),
        slice_sizes: Shape::from([2, 1, 2]),
        ..GatherDims::default()
    };
    let paired = GatherDims {
        offset_dims: Axes::from_slice(&[2]),
        operand_batching_dims: Axes::from_slice(&[1]),
        start_indices_batching_dims: Axes::from_slice(&[0]),
        start_index_map: Axes::from_slice(&[0]),
        slice_sizes: Shape::from([2, 1]),
        ..GatherDims::default()
    };
    vec![
        case("gather rows", [floats([5, 3]), ints([4, 1], -1, 6)], move |x| {
            vec![gather(x[0], x[1], rows.clone())]
        }),
        case("gather windows", [floats([4, 2, 5]), ints([2, 3, 2], -1, 5)], move |x| {
            vec![gather(x[0], x[1], windows.clone())]
        }),
        case("gather paired", [floats([5, 3]), ints([3, 2, 1], -1, 5)], move |x| {
            vec![gather(x[0], x[1], paired.clone())]
        }),
        case("take", [floats([2, 5, 3]), ints([2, 2], -6, 6)], |x| {
            vec![x[0].take(x[1], 1), x[0].take_mode(x[1], 2, IndexMode::Clip)]
        }),
        case("take one", [floats([5]), ints([], 0, 4)], |x| vec![x[0].take(x[1], 0)]),
        case("take_along_axis", [floats([4, 3]), ints([2, 3], -5, 5)], |x| {
            vec![x[0].take_along_axis(x[1], 0)]
        }),
    ]
}

fn scatters() -> Vec<Case> {
    let dims = |kind| ScatterDims {
        kind,
        update_window_dims: Axes::from_slice(&[0]),
        inserted_window_dims: Axes::from_slice(&[1]),
        operand_batching_dims: Axes::new(),
        scatter_indices_batching_dims: Axes::new(),
        scatter_dims_to_operand_dims: Axes::from_slice(&[1, 0]),
    };
    let paired = ScatterDims {
        kind: ScatterKind::Add,
        update_window_dims: Axes::from_slice(&[2]),
        inserted_window_dims: Axes::new(),
        operand_batching_dims: Axes::from_slice(&[1]),
        scatter_indices_batching_dims: Axes::from_slice(&[1]),
        scatter_dims_to_operand_dims: Axes::from_slice(&[0]),
    };
    let add = dims(ScatterKind::Add);
    let set = dims(ScatterKind::Set);
    vec![
        case(
            "scatter_add windows",
            [floats([4, 3]), ints([5, 2], -1, 4), floats([2, 5])],
            move |x| vec![scatter(x[0], x[1], x[2], add.clone())],
        ),
        // One index only: if several updates go to one index, it is unspecified which one wins.
        case("scatter a window", [floats([4, 3]), ints([1, 2], -1, 3), floats([2, 1])], move |x| {
            vec![scatter(x[0], x[1], x[2], set.clone())]
        }),
        case(
            "scatter paired",
            [floats([5, 3]), ints([2, 3, 1], -1, 5), floats([2, 3, 2])],
            move |x| vec![scatter(x[0], x[1], x[2], paired.clone())],
        ),
        case("at add", [floats([4, 3]), ints([3], -5, 5), ints([3], 0, 2), floats([3])], |x| {
            vec![x[0].at(&[x[1], x[2]]).add(x[3]), x[0].at(&[x[1]]).add(1.0)]
        }),
        case("at get", [floats([4, 3]), ints([3], 0, 3)], |x| vec![x[0].at(&[x[1]]).get()]),
    ]
}

fn dynamic_slices() -> Vec<Case> {
    vec![
        case("dynamic_slice", [floats([5, 4]), ints([], -2, 6), ints([], -2, 5)], |x| {
            vec![x[0].dynamic_slice(&x[1..], [2, 3])]
        }),
        case(
            "dynamic_slice, one axis whole",
            [floats([5, 4]), ints([], 0, 9), ints([], 0, 9)],
            |x| vec![x[0].dynamic_slice(&x[1..], [2, 4])],
        ),
        case("dynamic_slice of everything", [floats([5]), ints([], 0, 9)], |x| {
            vec![x[0].dynamic_slice(&x[1..], [5])]
        }),
        case("dynamic_index", [floats([3, 5]), ints([], -1, 6)], |x| {
            vec![x[0].dynamic_index(1, x[1])]
        }),
        case(
            "dynamic_update_slice",
            [floats([5, 4]), floats([2, 3]), ints([], -2, 6), ints([], -2, 5)],
            |x| vec![x[0].dynamic_update_slice(x[1], &x[2..])],
        ),
        case(
            "dynamic_update_slice of everything",
            [floats([5]), floats([5]), ints([], 0, 9)],
            |x| vec![x[0].dynamic_update_slice(x[1], &x[2..])],
        ),
        case("dynamic_update_index", [floats([3, 5]), ints([], -1, 6), floats([3])], |x| {
            vec![x[0].dynamic_update_index(1, x[1], x[2])]
        }),
    ]
}

#[test]
fn gathers_are_a_loop() {
    hold_all(gathers());
}

#[test]
fn scatters_are_a_loop() {
    hold_all(scatters());
}

#[test]
fn dynamic_slices_are_a_loop() {
    hold_all(dynamic_slices());
}

#[test]
fn a_slice_at_one_place_stays_a_slice() {
    let types = [TensorType::new(DType::F32, [3, 4, 5]), TensorType::scalar(DType::I32)];
    let program = trace(&types, |x| {
        let start = x[1];
        vec![vmap(move |row: Tensor| row.dynamic_index(0, start))(x[0])]
    });
    let names: Vec<&str> = program.equations.iter().map(|e| e.op.name()).collect();
    // The wrap of a negative start, then one slice.
    let wrap = ["lt", "constant", "add", "select"];
    let slice = ["constant", "dynamic_slice", "reshape"];
    assert_eq!(names, [&["constant", "constant"], &wrap[..], &slice].concat());
}
