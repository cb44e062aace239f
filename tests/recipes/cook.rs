//! Programs from recipes. What is known of every value keeps the Programs well-conditioned:
//!
//! * an interval in which its elements lie; a function is applied only where it is tame, after a
//!   detour by a bounded function if need be;
//! * how far from the exact value rounding may have brought it (a first-order bound, by Lipschitz
//!   constants over the intervals); an operation that would make it too much is left out;
//! * whether every way to run it gives the same value, bit for bit but for the sign of zero and
//!   the kind of NaN. Only such values are compared, sorted, or rounded to integers.

use podracer::trace::check::infer;
use podracer::trace::op::{BinaryOp, Op};
use podracer::trace::{Equation, Var};
use podracer::{DType, Literal, Program, Shape, TensorType};

use super::recipe::{InputRecipe, Recipe, Salt, Step};
use super::values::{floats, ints};

/// What is known of a value.
#[derive(Debug, Clone, Copy)]
pub struct Info {
    pub low: f64,
    pub high: f64,
    /// How much rounding may have changed it.
    pub error: f64,
    pub exact: bool,
    /// Exact to the last bit.
    pub bits: bool,
}

impl Info {
    /// A value that is the same in every way to run it.
    pub fn exact(low: f64, high: f64) -> Info {
        Info { low, high, error: 0.0, exact: true, bits: low.is_finite() && high.is_finite() }
    }

    /// Any value of an integer type or bool.
    pub fn of(dtype: DType) -> Info {
        let (low, high) = match dtype {
            DType::Bool => (0.0, 1.0),
            DType::U8 => (0.0, 255.0),
            DType::I8 => (-128.0, 127.0),
            _ => (-2e19, 2e19),
        };
        Info { low, high, error: 0.0, exact: true, bits: true }
    }

    pub fn size(&self) -> f64 {
        self.low.abs().max(self.high.abs())
    }

    /// What is known of a value that is one of two.
    pub fn or(self, other: Info) -> Info {
        Info {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            error: self.error.max(other.error),
            exact: self.exact && other.exact,
            bits: self.bits && other.bits,
        }
    }

    /// A result computed from it in this interval, with an error.
    pub fn rounded(low: f64, high: f64, error: f64) -> Info {
        Info { low, high, error, exact: false, bits: false }
    }
}

/// The distance between 1 and the next number.
pub fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 | DType::C128 => f64::EPSILON,
        DType::F32 | DType::C64 => f32::EPSILON as f64,
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        DType::F8E4M3FN => 2f64.powi(-3),
        DType::F8E5M2 => 2f64.powi(-2),
        _ => 0.0,
    }
}

/// The smallest number that is not denormal.
pub fn smallest_normal(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MIN_POSITIVE,
        DType::F16 => 2f64.powi(-14),
        _ => f32::MIN_POSITIVE.into(),
    }
}

/// A Program in the making.
pub struct Cook {
    pub program: Program,
    pub infos: Vec<Info>,
    /// Only what is differentiable at every point, in `f64`.
    pub smooth: bool,
    pub sizes: [u8; 3],
}

/// A Program, and what is known of its values.
pub struct Dish {
    pub program: Program,
    pub outputs: Vec<Info>,
    /// Elements that each input gets.
    pub kinds: Vec<Kind>,
}

impl Cook {
    pub fn new(sizes: [u8; 3], smooth: bool) -> Cook {
        Cook { program: Program::default(), infos: vec![], smooth, sizes }
    }

    pub fn input(&mut self, ty: TensorType, info: Info) -> Var {
        let var = self.program.add_var(ty);
        self.program.inputs.push(var);
        self.infos.push(info);
        var
    }

    pub fn ty(&self, var: Var) -> TensorType {
        self.program.ty(var).clone()
    }

    pub fn dtype(&self, var: Var) -> DType {
        self.program.ty(var).dtype
    }

    pub fn shape(&self, var: Var) -> Shape {
        self.program.ty(var).shape.clone()
    }

    pub fn info(&self, var: Var) -> Info {
        self.infos[var.index()]
    }

    /// Adds an equation, unless the operands do not fit, the results are large, or rounding
    /// spoils them.
    pub fn ops(&mut self, op: Op, inputs: &[Var], infos: &[Info]) -> Option<Vec<Var>> {
        let types: Vec<&TensorType> = inputs.iter().map(|&var| self.program.ty(var)).collect();
        let types = infer(&op, &types).ok()?;
        assert_eq!(types.len(), infos.len(), "{}", op.name());
        for (ty, info) in types.iter().zip(infos) {
            let spoilt = ty.dtype.is_float() && info.error > 0.03 * info.size().clamp(1.0, 1e3);
            if ty.numel() > 300 || ty.rank() > 4 || spoilt || info.error.is_nan() {
                return None;
            }
        }
        let outputs: Vec<Var> = types.into_iter().map(|ty| self.program.add_var(ty)).collect();
        self.infos.extend(infos);
        self.program.equations.push(Equation {
            op,
            inputs: inputs.iter().copied().collect(),
            outputs: outputs.iter().copied().collect(),
            at: std::panic::Location::caller(),
        });
        Some(outputs)
    }

    pub fn op(&mut self, op: Op, inputs: &[Var], info: Info) -> Option<Var> {
        Some(self.ops(op, inputs, &[info])?[0])
    }

    /// An equation whose result has rounding of its own, `units` times.
    pub fn rounding(
        &mut self,
        op: Op,
        inputs: &[Var],
        (low, high): (f64, f64),
        error: f64,
        units: f64,
    ) -> Option<Var> {
        let unit = inputs.first().map_or(0.0, |&var| epsilon(self.dtype(var)));
        let size = low.abs().max(high.abs()).max(1e-3);
        if !(low.is_finite() && high.is_finite() && size < 1e4) {
            return None;
        }
        self.op(op, inputs, Info::rounded(low, high, error + units * unit * size))
    }

    /// The same elements, or some of them, elsewhere.
    pub fn moved(&mut self, op: Op, inputs: &[Var]) -> Option<Var> {
        let info = self.info(inputs[0]);
        self.op(op, inputs, info)
    }

    pub fn constant(&mut self, literal: Literal) -> Var {
        let size = literal.to_f64_vec().into_iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        let var = self.program.add_var(literal.ty().clone());
        self.infos.push(Info::exact(-size, size));
        self.program.equations.push(Equation {
            op: Op::Constant(literal),
            inputs: [].into_iter().collect(),
            outputs: [var].into_iter().collect(),
            at: std::panic::Location::caller(),
        });
        var
    }

    /// `x`, many times.
    pub fn filled(&mut self, ty: TensorType, x: f64) -> Var {
        let var = self.constant(Literal::filled(ty, x));
        self.infos[var.index()] = Info::exact(x, x);
        var
    }

    /// A constant that looks random: eighths in -2..2, or small integers.
    pub fn noise(&mut self, ty: TensorType, salt: &mut Salt) -> Var {
        let literal = values(&ty, Kind::of(self.smooth), salt);
        self.constant(literal)
    }

    /// One of the variables that fit; those made last come first.
    pub fn pick(&self, choice: u8, fits: impl Fn(&Cook, Var) -> bool) -> Option<Var> {
        let defined = self.program.equations.iter().flat_map(|e| e.outputs.iter().copied());
        let all: Vec<Var> = self.program.inputs.iter().copied().chain(defined).collect();
        // Complex numbers are used up in the step that makes them.
        let real = |var: Var| !self.dtype(var).is_complex();
        let all: Vec<Var> =
            all.into_iter().rev().filter(|&var| real(var) && fits(self, var)).collect();
        all.get(choice as usize % all.len().max(1)).copied()
    }

    pub fn pick_type(&self, choice: u8, ty: &TensorType) -> Option<Var> {
        self.pick(choice, |c, var| c.program.ty(var) == ty)
    }

    pub fn is_finite(&self, var: Var) -> bool {
        self.info(var).size() < 1e5
    }

    pub fn binary(&mut self, op: BinaryOp, x: Var, y: Var) -> Option<Var> {
        let (a, b) = (self.info(x), self.info(y));
        match op {
            BinaryOp::Add => {
                let range = (a.low + b.low, a.high + b.high);
                self.rounding(Op::Binary(op), &[x, y], range, a.error + b.error, 1.0)
            }
            BinaryOp::Sub => {
                let range = (a.low - b.high, a.high - b.low);
                self.rounding(Op::Binary(op), &[x, y], range, a.error + b.error, 1.0)
            }
            _ => {
                let ends = [a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high];
                let low = ends.into_iter().fold(f64::INFINITY, f64::min);
                let high = ends.into_iter().fold(f64::NEG_INFINITY, f64::max);
                let low = if x == y { low.max(0.0) } else { low };
                let error = a.size() * b.error + b.size() * a.error;
                self.rounding(Op::Binary(BinaryOp::Mul), &[x, y], (low, high), error, 1.0)
            }
        }
    }

    /// `x`, or what is in -`most`..`most` and made of it.
    pub fn small(&mut self, x: Var, most: f64) -> Option<Var> {
        let info = self.info(x);
        if !self.is_finite(x) {
            return None;
        }
        if info.size() <= most {
            return Some(x);
        }
        if self.smooth {
            let sin = Op::Unary(podracer::trace::op::UnaryOp::Sin);
            let sin = self.rounding(sin, &[x], (-1.0, 1.0), info.error, 4.0)?;
            if most >= 1.0 {
                return Some(sin);
            }
            let factor = self.filled(self.ty(x), most);
            return self.binary(BinaryOp::Mul, sin, factor);
        }
        let (low, high) = (self.filled(self.ty(x), -most), self.filled(self.ty(x), most));
        let bounded = Info { low: info.low.clamp(-most, most), high: info.high.min(most), ..info };
        let bounded = Info { high: bounded.high.max(-most), ..bounded };
        self.op(Op::Clamp, &[low, x, high], bounded)
    }

    /// `x`, or what is at least a quarter and made of it.
    pub fn positive(&mut self, x: Var) -> Option<Var> {
        if self.info(x).low >= 0.25 && self.is_finite(x) {
            return Some(x);
        }
        let x = self.small(x, 2.0)?;
        let square = self.binary(BinaryOp::Mul, x, x)?;
        let half = self.filled(self.ty(x), 0.5);
        self.binary(BinaryOp::Add, square, half)
    }

    pub fn steps(&mut self, steps: &[Step], depth: usize) {
        for step in steps {
            let (equations, types) = (self.program.equations.len(), self.program.types.len());
            if self.step(step, depth).is_none() {
                // What was begun goes again.
                self.program.equations.truncate(equations);
                self.program.types.truncate(types);
                self.infos.truncate(types);
            }
        }
    }

    /// What nothing uses: up to `most` of it, the last first.
    pub fn sinks(&self, most: usize) -> Vec<Var> {
        let used = |var: &Var| self.program.equations.iter().any(|e| e.inputs.contains(var));
        let defined = self.program.equations.iter().flat_map(|e| e.outputs.iter().copied());
        let mut sinks: Vec<Var> = defined.filter(|var| !used(var)).collect();
        sinks.reverse();
        sinks.truncate(most);
        if sinks.is_empty() {
            sinks.extend(self.program.inputs.first());
        }
        sinks
    }
}

/// Which elements a tensor gets.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    /// Eighths in -2..2 and small integers: many are equal.
    Round,
    /// Also NaN, infinities and the zero below zero.
    Special,
    /// Also denormal numbers, which compiled code takes for zero.
    Denormal,
    /// Numbers in -2..2.
    Smooth,
}

impl Kind {
    pub fn of(smooth: bool) -> Kind {
        if smooth { Kind::Smooth } else { Kind::Round }
    }
}

/// A value of type `ty`.
pub fn values(ty: &TensorType, kind: Kind, salt: &mut Salt) -> Literal {
    let n = ty.numel();
    if ty.dtype == DType::Bool {
        return Literal::new(&ty.shape, &(0..n).map(|_| salt.once_in(2)).collect::<Vec<bool>>());
    }
    if !ty.dtype.is_float() {
        let wide = salt.once_in(8);
        let values: Vec<i64> =
            (0..n).map(|_| if wide { salt.next() as i64 } else { salt.within(-3, 6) }).collect();
        return ints(ty.dtype, &ty.shape, &values);
    }
    let float = |salt: &mut Salt| match kind {
        Kind::Smooth => salt.within(-(1 << 40), 1 << 40) as f64 / 2f64.powi(39),
        Kind::Special if salt.once_in(3) => {
            [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0][salt.below(4)]
        }
        Kind::Denormal if salt.once_in(3) => {
            let tiny = smallest_normal(ty.dtype);
            [tiny / 2.0, -tiny / 2.0, tiny / 8.0, -tiny / 64.0, tiny][salt.below(5)]
        }
        _ => salt.within(-16, 16) as f64 / 8.0,
    };
    let values: Vec<f64> = (0..n).map(|_| float(salt)).collect();
    floats(ty.dtype, &ty.shape, &values)
}

impl InputRecipe {
    fn ty(&self, sizes: &[u8; 3], smooth: bool) -> TensorType {
        // Floats first, which most operations take; small numbers are the ones that shrinking
        // ends at.
        const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::BF16, DType::F16];
        let dtype = match self.dtype % 32 {
            i @ 0..16 => FLOATS[[0, 0, 2, 1, 3, 2, 0, 3][i as usize % 8]],
            i @ 16..29 => DType::ALL[i as usize - 16],
            29 => DType::U8,
            _ => DType::I32,
        };
        let dtype =
            if smooth && (dtype.is_float() || self.dtype < 128) { DType::F64 } else { dtype };
        let shape: Shape = self.shape.iter().map(|&i| sizes[i as usize % 3] as usize).collect();
        TensorType::new(dtype, shape)
    }
}

/// The Program of a recipe.
pub fn cook(recipe: &Recipe, smooth: bool) -> Dish {
    let mut cook = Cook::new(recipe.sizes, smooth);
    let mut kinds = Vec::new();
    for input in &recipe.inputs {
        let ty = input.ty(&recipe.sizes, smooth);
        let kind = match Kind::of(smooth) {
            Kind::Round if input.special && ty.dtype.is_float() => Kind::Special,
            Kind::Round if input.denormal && ty.dtype.is_float() => Kind::Denormal,
            kind => kind,
        };
        let info = match ty.dtype {
            dtype if !dtype.is_float() => Info::of(dtype),
            // What is moved a little must not fall on the other side of something.
            _ if smooth => Info::rounded(-2.0, 2.0, 0.0),
            _ if kind == Kind::Special => Info::exact(f64::NEG_INFINITY, f64::INFINITY),
            // What is zero in one way to run it, and not in another, must not be compared.
            _ if kind == Kind::Denormal => Info::rounded(-2.0, 2.0, smallest_normal(ty.dtype)),
            _ => Info::exact(-2.0, 2.0),
        };
        kinds.push(kind);
        cook.input(ty, info);
    }
    cook.steps(&recipe.steps, 0);
    cook.program.outputs = cook.sinks(5);
    let infos = |vars: &[Var]| vars.iter().map(|&var| cook.info(var)).collect();
    Dish { outputs: infos(&cook.program.outputs), program: cook.program, kinds }
}

impl Dish {
    /// Inputs of one sort; other ones for another seed.
    pub fn values(&self, seed: u64) -> Vec<Literal> {
        let mut salt = Salt(seed);
        let value = |(ty, &kind): (&TensorType, &Kind)| values(ty, kind, &mut salt);
        self.program.input_types().zip(&self.kinds).map(value).collect()
    }
}
