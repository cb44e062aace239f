//! Functions with derivatives of their own, and checkpointed ones.

use podracer::trace::control::{ScanOptions, cond, scan, scan_with};
use podracer::trace::ops::{full_like, zeros_like};
use podracer::{
    DType, RematPolicy, Tensor, checkpoint, checkpoint_name, checkpoint_with, custom_jvp,
    custom_vjp, grad, jvp, vmap,
};

use super::{Case, In, case, cases_of};

fn x(shape: &[usize]) -> In {
    In::Float(shape.to_vec(), -1.5, 1.5)
}

/// sin, with its derivative written by hand: right, so that the laws hold.
fn sin(x: Tensor) -> Tensor {
    custom_jvp(|x: Tensor| x.sin(), |x, t| (x.sin(), t * x.cos()))(x)
}

/// The same with a pullback.
fn sin_back(x: Tensor) -> Tensor {
    custom_vjp(|x: Tensor| x.sin(), |x| (x.sin(), x.cos()), |c: Tensor, ct| ct * c)(x)
}

/// `a sin(b)`, with an integer that goes along.
fn product((a, b, n): (Tensor, Tensor, Tensor)) -> (Tensor, Tensor) {
    custom_jvp(
        |(a, b, n): (Tensor, Tensor, Tensor)| (a * b.sin() * n.to(a.dtype()), n + 1),
        |(a, b, n), (ta, tb, tn)| {
            let m = n.to(a.dtype());
            ((a * b.sin() * m, n + 1), ((ta * b.sin() + a * b.cos() * tb) * m, tn))
        },
    )((a, b, n))
}

/// A function whose rule calls it.
fn exp(x: Tensor) -> Tensor {
    custom_jvp(|x: Tensor| x.exp(), |x, t| (exp(x), t * exp(x)))(x)
}

/// Two functions whose rules call each other.
fn sinh(x: Tensor) -> Tensor {
    custom_jvp(|x: Tensor| x.sinh(), |x, t| (sinh(x), t * cosh(x)))(x)
}

fn cosh(x: Tensor) -> Tensor {
    custom_jvp(|x: Tensor| x.cosh(), |x, t| (cosh(x), t * sinh(x)))(x)
}

/// `e^(scale x)`, whose rule captures more than it does.
fn growth(scale: Tensor, twice: Tensor, x: Tensor) -> Tensor {
    let rule =
        |x: Tensor, t: Tensor| (growth(scale, twice, x), growth(scale, twice, x) * twice * t * 0.5);
    custom_jvp(|x: Tensor| (x * scale).exp(), rule)(x)
}

fn own_derivatives(cases: &mut Vec<Case>) {
    cases.push(case("custom_jvp", &[x(&[3])], |x| sin(x[0])));
    let int = In::Int(DType::I32, vec![3], -3, 3);
    cases.push(cases_of("custom_jvp/trees", &[x(&[3]), x(&[3]), int], |x| {
        let (a, n) = product((x[0], x[1], x[2]));
        vec![a, n]
    }));
    let captures = case("custom_jvp/captures", &[x(&[3]), x(&[3])], |x| {
        let scale = x[1].stop_gradient();
        custom_jvp(|y: Tensor| y.sin() * scale, |y, t| (y.sin() * scale, t * y.cos() * scale))(x[0])
    });
    // The capture's own derivative is cut off on purpose.
    cases.push(captures.flat());
    cases.push(case("custom_jvp/calls itself", &[x(&[3])], |x| exp(x[0])));
    cases.push(case("custom_jvp/call each other", &[x(&[3])], |x| sinh(x[0]) * cosh(x[0])));
    let captures = case("custom_jvp/calls itself and captures", &[x(&[3]), x(&[3])], |x| {
        let scale = x[1].stop_gradient();
        growth(scale, scale * 2.0, x[0])
    });
    cases.push(captures.flat());
    cases.push(case("custom_jvp/calls itself and captures constants", &[x(&[3])], |x| {
        growth(full_like(x[0], 0.7), full_like(x[0], 1.4), x[0])
    }));
    cases.push(case("custom_jvp/calls itself in a loop", &[x(&[2]), x(&[3, 2])], |x| {
        scan(|h: Tensor, y: Tensor| (sinh(h * y), exp(h * 0.1)), x[0], x[1]).1
    }));
    cases.push(case("custom_jvp/calls itself in a branch", &[In::Bool(vec![]), x(&[2])], |x| {
        cond(x[0], exp, |x: Tensor| sinh(x) * x, x[1])
    }));
    cases.push(case("custom_jvp/calls itself of a batch", &[x(&[4, 3]), x(&[3])], |x| {
        vmap(|row: Tensor| sinh(row * x[1]) + exp(x[1]))(x[0])
    }));
    cases.push(case("custom_jvp/in a loop", &[x(&[2]), x(&[3, 2])], |x| {
        scan(|h: Tensor, y: Tensor| (sin(h * y), h), x[0], x[1]).1
    }));
    cases.push(case("custom_jvp/in a branch", &[In::Bool(vec![]), x(&[2])], |x| {
        cond(x[0], sin, |x: Tensor| x * x, x[1])
    }));
    cases.push(case("custom_vjp", &[x(&[3])], |x| sin_back(x[0])).flat());
    cases.push(case("custom_vjp/of a batch", &[x(&[4, 3])], |x| vmap(sin_back)(x[0])).flat());
    cases.push(case("mul/gradient of custom_vjp", &[x(&[3]), x(&[3])], |x| {
        grad(|y: Tensor| (sin_back(y) * x[1]).sum(..))(x[0])
    }));
    cases.push(case("mul/custom_vjp in a loop", &[x(&[2]), x(&[3, 2])], |x| {
        grad(|h: Tensor| scan(|h: Tensor, y: Tensor| (sin_back(h * y), h), h, x[1]).1.sum(..))(x[0])
    }));
    // The second argument is the same for all examples: its cotangent is a sum.
    cases.push(case("mul/custom_vjp under vmap", &[x(&[4]), x(&[])], |x| {
        let f = custom_vjp(
            |(a, b): (Tensor, Tensor)| a * b.sin(),
            |(a, b)| (a * b.sin(), (a, b)),
            |(a, b): (Tensor, Tensor), ct: Tensor| (ct * b.sin(), ct * a * b.cos()),
        );
        grad(|b: Tensor| vmap(|a: Tensor| f((a, b)))(x[0]).sum(..))(x[1])
    }));
    cases.push(case("mul/vmap of a gradient of custom_vjp", &[x(&[4]), x(&[])], |x| {
        vmap(|a: Tensor| grad(|a: Tensor| sin_back(a * x[1]))(a))(x[0])
    }));
    cases.push(case("mul/jvp of a gradient of custom_vjp", &[x(&[3]), x(&[3])], |x| {
        jvp(grad(|y: Tensor| sin_back(y).sum(..)), x[0], x[1]).1
    }));
}

/// Two layers, the first product named.
fn layers(x: Tensor, w: Tensor) -> Tensor {
    let h = checkpoint_name(x.matmul(w), "hidden").sin();
    h.matmul(w).tanh()
}

fn checkpoints(cases: &mut Vec<Case>) {
    cases.push(case("name", &[x(&[3])], |x| checkpoint_name(x[0], "x").sin()));
    let policies = [
        ("nothing", RematPolicy::NothingSaveable),
        ("everything", RematPolicy::EverythingSaveable),
        ("dots", RematPolicy::DotsSaveable),
        ("dots without batch", RematPolicy::DotsWithNoBatchDimsSaveable),
        ("names", RematPolicy::SaveOnlyTheseNames(vec!["hidden"])),
        ("not names", RematPolicy::SaveAnythingExceptTheseNames(vec!["hidden"])),
    ];
    for (name, policy) in policies {
        let f = move |x: &[Tensor]| {
            checkpoint_with(policy.clone(), |(x, w)| layers(x, w))((x[0], x[1]))
        };
        cases.push(case(format!("checkpoint/{name}"), &[x(&[2, 3]), x(&[3, 3])], f));
    }
    cases.push(case("checkpoint/captures", &[x(&[3]), x(&[3])], |x| {
        checkpoint(|y: Tensor| (y * x[1]).sin().sin())(x[0])
    }));
    cases.push(case("checkpoint/nested", &[x(&[3])], |x| {
        checkpoint(|y: Tensor| checkpoint(|y: Tensor| y.sin().tanh())(y).sin())(x[0])
    }));
    cases.push(case("checkpoint/in a loop", &[x(&[2]), x(&[4, 2])], |x| {
        let step = |h: Tensor, y: Tensor| ((h * y).sin().tanh(), h * h);
        scan(|h: Tensor, y: Tensor| checkpoint(|(h, y)| step(h, y))((h, y)), x[0], x[1]).1
    }));
    cases.push(case("checkpoint/a loop", &[x(&[2]), x(&[4, 2])], |x| {
        checkpoint(|(h, xs): (Tensor, Tensor)| {
            let step = |h: Tensor, y: Tensor| ((h * y).sin(), h);
            scan_with(step, h, xs, ScanOptions::reversed()).1
        })((x[0], x[1]))
    }));
    cases.push(case("checkpoint/of a batch", &[x(&[4, 2]), x(&[2])], |x| {
        vmap(|row: Tensor| checkpoint(|row: Tensor| (row * x[1]).sin().tanh())(row))(x[0])
    }));
    cases.push(case("checkpoint/one result flat", &[x(&[3])], |x| {
        let (y, z) = checkpoint(|y: Tensor| (y.sin().sin(), y.floor() + zeros_like(y)))(x[0]);
        y + z.stop_gradient() * 0.0
    }));
    cases.push(case("mul/gradient of checkpoint", &[x(&[3])], |x| {
        grad(|y: Tensor| checkpoint(|y: Tensor| y.sin().tanh())(y).sum(..))(x[0])
    }));
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    own_derivatives(&mut cases);
    checkpoints(&mut cases);
    cases
}
