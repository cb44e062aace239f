//! Calls of functions on the host.

use podracer::trace::control::{cond, scan};
use podracer::{
    Literal, Result, Tensor, VmapMethod, custom_jvp, debug_callback, io_callback, pure_callback,
    pure_callback_with,
};

use super::{Case, In, case, cases_of, floats, x};

/// `3 x + 1`, of any float type.
fn affine(x: Literal) -> Result<Literal> {
    let values: Vec<f64> = x.to_f64_vec().iter().map(|x| 3.0 * x + 1.0).collect();
    Ok(floats(x.ty().dtype, &x.ty().shape, &values))
}

fn pure(x: Tensor) -> Tensor {
    pure_callback(affine, x.ty(), x)
}

/// With its derivative.
fn smooth(x: Tensor) -> Tensor {
    custom_jvp(pure, |x, t| (pure(x), t * 3.0))(x)
}

/// Ordered, and where not all examples come by: no batch on two counts.
fn in_a_branch() -> Case {
    let args = [In::Bool(vec![]), x(&[2])];
    let f = |x: &[Tensor]| {
        let call = |y: Tensor| io_callback(affine, y.ty(), true, y);
        cond(x[0], call, |y: Tensor| y * 2.0, x[1])
    };
    Case { vmap: false, ..case("io_callback/in a branch", &args, f) }.flat()
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("pure_callback", &[x(&[3])], |x| pure(x[0])).flat(),
        case("pure_callback/with a derivative", &[x(&[3])], |x| smooth(x[0]).sin()).once(),
        case("pure_callback/in a loop", &[x(&[2]), x(&[3, 2])], |x| {
            scan(|h: Tensor, y: Tensor| (smooth(h * y) * 0.1, h), x[0], x[1]).1
        })
        .once(),
        cases_of("pure_callback/trees", &[x(&[2]), x(&[])], |x| {
            let f = |(a, b): (Literal, Literal)| Ok((affine(b)?, affine(a)?));
            let (b, a) = pure_callback(f, (x[1].ty(), x[0].ty()), (x[0], x[1]));
            vec![a, b]
        })
        .flat(),
        case("io_callback", &[x(&[3])], |x| io_callback(affine, x[0].ty(), false, x[0])).flat(),
        in_a_branch(),
        case("debug_callback", &[x(&[3])], |x| {
            debug_callback(|x: Literal| assert!(x.ty().dtype.is_float()), x[0]);
            let y = x[0].sin();
            debug_callback(|(x, y): (Literal, Literal)| assert_eq!(x.ty(), y.ty()), (x[0], y));
            y * x[0]
        }),
    ];
    // The function gets a first axis for the batch.
    let rows = |x: Literal| {
        let shape = x.ty().shape.clone();
        let row = shape[1..].iter().product::<usize>();
        let values: Vec<f64> =
            x.to_f64_vec().iter().enumerate().map(|(i, x)| x * (1 + i % row) as f64).collect();
        Ok(floats(x.ty().dtype, &shape, &values))
    };
    for (name, method) in
        [("expand dims", VmapMethod::ExpandDims), ("broadcast all", VmapMethod::BroadcastAll)]
    {
        let f = move |x: &[Tensor]| {
            let one = |x: Tensor| pure_callback_with(method, rows, x.ty(), x);
            podracer::vmap(one)(x[0])
        };
        cases.push(
            Case { vmap: false, ..case(format!("pure_callback/{name}"), &[x(&[2, 3])], f) }.flat(),
        );
    }
    cases
}
