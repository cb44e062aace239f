//! `vmap` as a user calls it.

use indoc::indoc;
use pretty_assertions::assert_eq;

use super::*;

fn f32s(shape: impl Into<Shape>) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn error_of(types: &[TensorType], f: impl FnOnce(&[Tensor]) -> Vec<Tensor>) -> String {
    let traced =
        catch(|| trace_frame(FrameKind::Body, types, Location::caller(), |x| (f(x), ())).0);
    match traced {
        Ok(traced) => panic!("no error: {}", traced.program),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_a_closure_captures_is_unmapped() {
    // A layer written for one example needs no transposition for a batch.
    let program = trace(&[f32s([8, 3]), f32s([4, 3]), f32s([4])], |x| {
        let (weights, bias) = (x[1], x[2]);
        vec![vmap(move |x: Tensor| weights.matmul(x) + bias)(x[0])]
    });
    assert_eq!(
        program.to_string(),
        indoc! {"
            { lambda a:f32[8,3] b:f32[4,3] c:f32[4]. let
                d:f32[8,4] = dot[contract=(1)/(1)] a b
                e:f32[8,4] = broadcast[shape=[8,4] axes=(1)] c
                f:f32[8,4] = add d e
              in (f) }"}
        .to_string()
    );
}

#[test]
fn axes_go_where_the_options_say() {
    let options = VmapOptions {
        in_axes: LeafAxes::All(-1),
        out_axes: LeafAxes::All(-1),
        ..VmapOptions::default()
    };
    let program = trace(&[f32s([2, 5])], |x| {
        vec![vmap_with(options, |x: Tensor| x.reshape([1, 2]) * 2.0)(x[0])]
    });
    assert_eq!(program.output_types().next().unwrap().to_string(), "f32[1,2,5]");
}

#[test]
fn results_that_do_not_depend_on_the_argument_are_repeated() {
    let program = trace(&[f32s([5]), f32s([2])], |x| {
        let other = x[1];
        vec![vmap(move |_: Tensor| other * 2.0)(x[0])]
    });
    assert_eq!(program.output_types().next().unwrap().to_string(), "f32[5,2]");

    let unmapped = VmapOptions { out_axes: LeafAxes::Unmapped, ..VmapOptions::default() };
    let program = trace(&[f32s([5]), f32s([2])], |x| {
        let other = x[1];
        vec![vmap_with(unmapped, move |_: Tensor| other * 2.0)(x[0])]
    });
    assert_eq!(program.output_types().next().unwrap().to_string(), "f32[2]");
}

#[test]
fn a_size_stands_in_for_an_argument() {
    let options = VmapOptions { size: Some(4), ..VmapOptions::default() };
    let program = trace(&[], |_| vec![vmap_with(options, |()| arange(3, DType::F32))(())]);
    assert_eq!(program.output_types().next().unwrap().to_string(), "f32[4,3]");
}

#[test]
fn trees_go_in_and_come_out() {
    let program = trace(&[f32s([5, 2]), f32s([5])], |x| {
        let (sum, parts) =
            vmap(|(x, y): (Tensor, Vec<Tensor>)| (x.sum(..) + y[0], [x, x]))((x[0], vec![x[1]]));
        [vec![sum], parts.to_vec()].concat()
    });
    let types: Vec<String> = program.output_types().map(ToString::to_string).collect();
    assert_eq!(types, ["f32[5]", "f32[5,2]", "f32[5,2]"]);
}

#[test]
fn equations_keep_the_lines_of_the_function() {
    let line = line!() + 2;
    let program = trace(&[f32s([5, 2])], |x| {
        let f = |x: Tensor| x.sin();
        vec![vmap(f)(x[0])]
    });
    assert_eq!(program.equations[0].at.line(), line);
}

#[test]
fn sizes_must_agree() {
    let error = error_of(&[f32s([4, 3]), f32s([5])], |x| {
        vec![vmap(|(x, y): (Tensor, Tensor)| x * y)((x[0], x[1]))]
    });
    let first = error.lines().next().unwrap();
    assert_eq!(
        first,
        "vmap: mapped axes must have equal sizes: argument[0] f32[4,3] axis 0 (4), argument[1] f32[5] axis 0 (5)"
    );
    assert!(error.contains(file!()), "{error}");
}

#[test]
fn a_leaf_needs_the_axis() {
    let error = error_of(&[f32s([])], |x| vec![vmap(|x: Tensor| x)(x[0])]);
    assert!(
        error.starts_with("vmap: argument is f32[], which has no axis 0 to map over"),
        "{error}"
    );
    let error = error_of(&[], |_| vec![vmap(|()| arange(3, DType::F32))(())]);
    assert!(error.starts_with("vmap: no argument is mapped; give the size"), "{error}");
    let unmapped = VmapOptions { out_axes: LeafAxes::Unmapped, ..VmapOptions::default() };
    let error = error_of(&[f32s([3])], |x| vec![vmap_with(unmapped, |x: Tensor| x)(x[0])]);
    assert!(error.starts_with("vmap: output is batched, and its out_axes is None"), "{error}");
}

#[test]
fn errors_inside_name_the_transformation() {
    let error = error_of(&[f32s([4, 3])], |x| {
        vec![vmap(|x: Tensor| x.matmul(arange(2, DType::F32)))(x[0])]
    });
    assert!(error.contains("lhs f32[3]") && error.contains(" in vmap ("), "{error}");
}
