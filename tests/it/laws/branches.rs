//! The law of branches: `grad(vmap(f))` is `vmap(grad(f))`, where the examples of a batch take
//! different branches of `f`; so are `jvp`, and derivatives of derivatives in either mode. All
//! branches are computed for all examples, and what an example does not take must not reach its
//! derivatives, nor those of values that the examples share.
//!
//! The branches are one function. Each divides what is mapped by 1 for the examples that take it
//! and by 0 for the others, so that their values and derivatives in it are infinite or NaN
//! everywhere. The last branch, which no example takes, divides by 0 also what is shared.
//!
//! The choice stands alone, or inside of something that traces it as a body of its own.

use std::rc::Rc;

use podracer::trace::eval::eval;
use podracer::trace::ops::{stack, zeros_like};
use podracer::{
    Literal, Shape, Tensor, checkpoint, custom_jvp, custom_vjp, jvp, scan, switch, vjp, vmap,
    while_loop,
};

use super::{LANES, Noise, floats_of, is_float, jvp_of, program, vjp_of, with};
use crate::cases::{Func, Smooth};
use crate::recipes::values::{same, stacked};

/// Branches that the examples take.
const TAKEN: [i32; LANES] = [0, 1, 0];

/// Operation that the branches are inside of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enclosing {
    Nothing,
    /// The two iterations take different branches.
    Scan,
    /// The examples stop after different iterations.
    While,
    Checkpoint,
    CustomJvp,
    CustomVjp,
}

impl Enclosing {
    pub const ALL: [Enclosing; 6] = [
        Enclosing::Nothing,
        Enclosing::Scan,
        Enclosing::While,
        Enclosing::Checkpoint,
        Enclosing::CustomJvp,
        Enclosing::CustomVjp,
    ];

    /// Returns true if it has such derivatives: a `while` has those forwards, a `custom_vjp` those
    /// of its pullback.
    fn has(self, derivatives: &[Derivative]) -> bool {
        match self {
            Enclosing::While => !derivatives.contains(&Derivative::Vjp),
            Enclosing::CustomVjp => derivatives[0] == Derivative::Vjp,
            _ => true,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Derivative {
    Jvp,
    Vjp,
}

impl Derivative {
    fn of(self, f: &Func, n: usize, at: &[usize]) -> Func {
        match self {
            Derivative::Jvp => jvp_of(f, n, at),
            Derivative::Vjp => vjp_of(f, n, at),
        }
    }
}

/// Derivatives that the law is about, the innermost first.
fn derivatives(smooth: Smooth) -> &'static [&'static [Derivative]] {
    use Derivative::{Jvp, Vjp};
    match smooth {
        Smooth::No => &[],
        Smooth::Forward => &[&[Jvp]],
        Smooth::Once => &[&[Jvp], &[Vjp]],
        Smooth::Twice => &[&[Vjp], &[Jvp, Jvp], &[Jvp, Vjp], &[Vjp, Jvp], &[Vjp, Vjp]],
    }
}

fn divided(x: &[Tensor], at: &[usize], by: Tensor) -> Vec<Tensor> {
    let mut x = x.to_vec();
    for &i in at {
        if x[i].dtype().is_inexact() {
            x[i] = x[i] / by.to(x[i].dtype());
        }
    }
    x
}

/// `f` in every branch, and its float results; the operands at `at` are mapped, the others
/// captured.
fn branched(f: &Func, x: &[Tensor], at: &[usize], taken: Tensor) -> Vec<Tensor> {
    type Operands = (Tensor, Vec<Tensor>);
    let branch =
        |i: i32| move |(taken, moved): Operands| f(&divided(&with(x, at, &moved), at, taken.eq(i)));
    let all: Vec<usize> = (0..x.len()).collect();
    let nowhere =
        |(taken, moved): Operands| f(&divided(&with(x, at, &moved), &all, taken.ne(taken)));
    let moved = at.iter().map(|&i| x[i]).collect();
    floats_of(switch(taken, &[&branch(0), &branch(1), &nowhere], (taken, moved)))
}

/// [`branched`] inside of something.
fn enclosed(by: Enclosing, f: &Func, x: &[Tensor], at: &[usize], taken: Tensor) -> Vec<Tensor> {
    // Rules capture nothing that is differentiated: all operands are arguments.
    let whole = |mut x: Vec<Tensor>| {
        let taken = x.pop().expect("the branch");
        branched(f, &x, at, taken)
    };
    let operands: Vec<Tensor> = x.iter().copied().chain([taken]).collect();
    let floats: Vec<usize> = (0..x.len()).filter(|&i| x[i].dtype().is_inexact()).collect();
    let chosen = |x: &[Tensor]| floats.iter().map(|&i| x[i]).collect::<Vec<Tensor>>();
    let of_floats = |x: Vec<Tensor>| {
        let floats = &floats;
        move |moved: Vec<Tensor>| whole(with(&x, floats, &moved))
    };
    match by {
        Enclosing::Nothing => whole(operands),
        Enclosing::Scan => {
            let body = |(), taken| ((), branched(f, x, at, taken));
            let ((), both) = scan(body, (), stack(&[taken, 1 - taken], 0));
            both.iter().map(|y| (y.index_axis(0, 0) + y.index_axis(0, 1)) * 0.5).collect()
        }
        Enclosing::While => {
            let zeros: Vec<Tensor> = whole(operands).into_iter().map(zeros_like).collect();
            let going = |(left, _): (Tensor, Vec<Tensor>)| left.ge(0);
            let body = |(left, _)| (left - 1, branched(f, x, at, taken));
            while_loop(going, body, (taken, zeros)).1
        }
        Enclosing::Checkpoint => checkpoint(whole)(operands),
        Enclosing::CustomJvp => {
            let rule = |x: Vec<Tensor>, t: Vec<Tensor>| {
                let (point, tangents) = (chosen(&x), chosen(&t));
                jvp(of_floats(x), point, tangents)
            };
            custom_jvp(whole, rule)(operands)
        }
        Enclosing::CustomVjp => {
            let bwd = |x: Vec<Tensor>, ct: Vec<Tensor>| {
                let nothing: Vec<Tensor> = x.iter().map(|&x| zeros_like(x)).collect();
                let point = chosen(&x);
                with(&nothing, &floats, &vjp(of_floats(x), point).1(ct))
            };
            custom_vjp(whole, |x| (whole(x.clone()), x), bwd)(operands)
        }
    }
}

/// The float results for all examples. The last input is the branches that they take.
fn batch_of(f: &Func, at: &[usize], batched: Option<Enclosing>) -> Func {
    let (f, at) = (f.clone(), at.to_vec());
    Rc::new(move |args: &[Tensor]| {
        let (&taken, x) = args.split_last().expect("the branches");
        let moved: Vec<Tensor> = at.iter().map(|&i| x[i]).collect();
        if let Some(by) = batched {
            let one = |(taken, moved): (Tensor, Vec<Tensor>)| {
                enclosed(by, &f, &with(x, &at, &moved), &at, taken)
            };
            return vmap(one)((taken, moved));
        }
        let lane = |i: isize| {
            let moved: Vec<Tensor> = moved.iter().map(|x| x.index_axis(0, i)).collect();
            floats_of(f(&with(x, &at, &moved)))
        };
        let lanes: Vec<Vec<Tensor>> = (0..LANES as isize).map(lane).collect();
        let result = |i: usize| stack(&lanes.iter().map(|y| y[i]).collect::<Vec<_>>(), 0);
        (0..lanes[0].len()).map(result).collect()
    })
}

/// Holds `f`, with its inputs at `at` mapped, to the law for its derivatives. Returns those of the
/// batch with their arguments.
pub fn branches(
    f: &Func,
    by: Enclosing,
    lanes: &[Vec<Literal>],
    at: &[usize],
    smooth: Smooth,
) -> Result<Vec<(Func, Vec<Literal>)>, String> {
    let mut primals = lanes[0].clone();
    for &i in at {
        primals[i] = stacked(&lanes.iter().map(|lane| &lane[i]).collect::<Vec<_>>());
    }
    primals.push(Literal::new(Shape::from([LANES]), &TAKEN));
    let floats: Vec<usize> = (0..primals.len()).filter(|&i| is_float(&primals[i])).collect();
    let run = |f: &Func, args: &[Literal]| {
        program(f, args).and_then(|program| eval(&program, args)).map_err(|e| e.to_string())
    };
    let both = [Some(by), None].map(|batched| batch_of(f, at, batched));
    let values = run(&both[1], &primals)?;
    let mut derived = Vec::new();
    for derivatives in derivatives(smooth).iter().filter(|derivatives| by.has(derivatives)) {
        let what = |text: String| format!("{derivatives:?} of {by:?}, {at:?}: {text}");
        let ([mut together, mut alone], mut args) = (both.clone(), primals.clone());
        let (mut outputs, mut noise) = (values.clone(), Noise(17));
        for derivative in *derivatives {
            [together, alone] = [together, alone].map(|f| derivative.of(&f, args.len(), &floats));
            let like = match derivative {
                Derivative::Jvp => &floats.iter().map(|&i| args[i].clone()).collect(),
                Derivative::Vjp => &outputs,
            };
            args.extend(like.iter().map(|x| noise.like(x)));
            outputs = run(&alone, &args).map_err(what)?;
        }
        same(&run(&together, &args).map_err(what)?, &outputs, 1e-9).map_err(what)?;
        derived.push((together, args));
    }
    Ok(derived)
}
