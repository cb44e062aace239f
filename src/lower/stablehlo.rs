//! A [`Program`] as the text of a StableHLO module.
//!
//! One pass over the equations writes into one `String`. Sub-Programs of control flow become
//! regions; they use constant operands straight from the region around them. Operations that change
//! nothing (`stop_gradient`, a reshape to the same shape) write no line: their result is another
//! name of the operand.
//!
//! Only constructs of StableHLO 1.13 are written: text is not portable between versions, and that
//! is the oldest plugin in use.

#![deny(clippy::wildcard_enum_match_arm)]

mod collective;
mod control;
mod conv;
mod dot;
mod elementwise;
mod emitter;
mod gather;
mod linalg;
mod mlir;
mod native;
mod reduce;
mod rows;
mod shape;
pub(crate) mod sharding;
mod threefry;

use smallvec::SmallVec;

use self::emitter::{Emitter, Slot, Values};
use self::mlir::{List, Symbol, Ty, Value, signature};
use super::cost::{benefits_from_threads, has_divided_products};
use super::custom_calls::callbacks::callback_ids;
use super::fusion::{Fusion, Role};
pub use super::options::{ConvLibrary, LowerOptions};
use super::pjrt::{OptionValue, Plugin};
pub use super::platform::Platform;
use crate::trace::graph::in_order;
use crate::trace::literal::Literal;
use crate::trace::op::{BinaryOp, CompareOp, Op, Structure};
use crate::trace::program::{Equation, Program, Var};
use crate::trace::types::{DType, TensorType};

/// Compiler flags: names of XLA's debug options, with their values.
pub type CompileFlags = Vec<(&'static str, OptionValue)>;

/// Compiler flags that results depend on: a program compiled with others may differ in the last bit.
pub(crate) fn semantics_flags(plugin: &Plugin, platform: Platform) -> CompileFlags {
    let flags = platform.facts().semantics_flags.iter();
    let mut flags: CompileFlags =
        flags.map(|&(name, value)| (name, OptionValue::Bool(value))).collect();
    if platform.is_host() && plugin.has_ynnpack() {
        // Not its reductions: its maximum of many elements loses NaNs.
        flags.push((YNNPACK, OptionValue::String("LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT".into())));
    }
    flags
}

/// The flag that names the kinds of operations which YNNPACK computes.
const YNNPACK: &str = "xla_cpu_experimental_ynn_fusion_type";

/// Compiler flags for a Program: those that results depend on, and those that make it fast. A flag of the
/// second kind that `XLA_FLAGS` sets keeps the user's value.
pub fn compile_flags(plugin: &Plugin, platform: Platform, program: &Program) -> CompileFlags {
    let mut flags = CompileFlags::new();
    let mut semantics = semantics_flags(plugin, platform);
    // Waking another thread costs more than a small product, and so does YNNPACK, which wakes none. See
    // decision 0024.
    if platform.is_host() && !benefits_from_threads(program) {
        flags.push(("xla_cpu_multi_thread_eigen", OptionValue::Bool(false)));
        if !has_divided_products(program) {
            for (_, types) in semantics.iter_mut().filter(|(name, _)| *name == YNNPACK) {
                *types = OptionValue::String(String::new());
            }
        }
    }
    let chosen = std::env::var("XLA_FLAGS").unwrap_or_default();
    flags.retain(|(name, _)| !sets_flag(&chosen, name));
    flags.extend(semantics);
    flags
}

/// True if `XLA_FLAGS`, which are separated by spaces, set this flag.
fn sets_flag(flags: &str, name: &str) -> bool {
    let mut flags = flags.split_whitespace().filter_map(|flag| flag.strip_prefix("--"));
    flags.any(|flag| flag.split('=').next() == Some(name))
}

/// The text of a StableHLO module whose `@main` computes `program`. With callbacks it has one more
/// argument, the last: their [`callback_ids`].
///
/// # Panics
/// If the Program is not well-formed ([`verify`](crate::trace::check::verify) checks this).
pub fn stablehlo(program: &Program, options: &LowerOptions) -> String {
    let functions = callback_ids(program);
    let rewritten = match options.platform.facts().rewrites_convolutions {
        true => super::conv::rewrite(program, options.conv_threads),
        false => None,
    };
    let program = rewritten.as_ref().unwrap_or(program);
    let ordered = in_order(program);
    let program = ordered.as_ref().unwrap_or(program);
    let mut emitter = Emitter::new(program, options);
    emitter.module(program, functions);
    emitter.out
}

/// Constants of up to this many elements are written where they are used.
const MAX_INLINE_ELEMENTS: usize = 16;

impl<'a> Emitter<'a> {
    fn module(&mut self, program: &'a Program, functions: Vec<i64>) {
        let LowerOptions { name, num_replicas, num_partitions, .. } = self.options;
        let name = Symbol(name);
        self.write(format_args!(
            "module {name} attributes {{mhlo.num_partitions = {num_partitions} : i32, \
             mhlo.num_replicas = {num_replicas} : i32}} {{\n"
        ));
        self.out.push_str("  func.func public @main(");
        let mut arguments = Vec::with_capacity(program.inputs.len());
        for (i, ty) in program.input_types().enumerate() {
            let argument = self.new_argument();
            let comma = if i > 0 { ", " } else { "" };
            self.write(format_args!("{comma}{argument}: {}", Ty(ty)));
            self.attributes(i);
            arguments.push(Slot::Value(argument));
        }
        if !functions.is_empty() {
            let argument = self.new_argument();
            let comma = if arguments.is_empty() { "" } else { ", " };
            let count = functions.len();
            self.write(format_args!("{comma}{argument}: tensor<{count}xi64>"));
            self.functions = Some((functions, argument));
        }
        let types: Vec<&TensorType> = program.output_types().collect();
        self.out.push_str(") -> (");
        for (i, ty) in types.iter().enumerate() {
            self.write(format_args!("{}{}", if i > 0 { ", " } else { "" }, Ty(ty)));
            if let Some(Some(text)) = self.options.out_shardings.get(i) {
                self.write(format_args!(" {{{}}}", sharding::attribute(text)));
            }
        }
        self.out.push_str(") {\n");
        self.indent += 1;
        let outputs = self.program(program, arguments);
        self.at = None;
        self.terminator("return", &outputs, &types);
        self.indent -= 1;
        self.out.push_str("  }\n");
        self.threefry_functions();
        self.out.push_str("}\n");
        self.locations.define(&mut self.out);
    }

    /// Writes the compiler attributes of the `i`-th argument: sharding, aliasing and donation.
    fn attributes(&mut self, i: usize) {
        let LowerOptions { in_shardings, aliases, donors, .. } = self.options;
        let mut attributes: Vec<String> = Vec::new();
        attributes.extend(in_shardings.get(i).map(|text| sharding::attribute(text)));
        if let Some((_, output)) = aliases.iter().find(|(input, _)| *input == i) {
            attributes.push(format!("tf.aliasing_output = {output} : i32"));
        }
        if donors.contains(&i) {
            attributes.push("jax.buffer_donor = true".into());
        }
        if !attributes.is_empty() {
            self.write(format_args!(" {{{}}}", attributes.join(", ")));
        }
    }

    /// Writes the equations of `program` applied to `arguments`; gives its outputs.
    pub(super) fn program(
        &mut self,
        program: &'a Program,
        arguments: impl IntoIterator<Item = Slot<'a>>,
    ) -> Vec<Slot<'a>> {
        let mut env: Vec<Option<Slot<'a>>> = vec![None; program.types.len()];
        for (&input, argument) in program.inputs.iter().zip(arguments) {
            env[input.index()] = Some(argument);
        }
        let slot = |env: &[Option<Slot<'a>>], var: Var| -> Slot<'a> {
            env[var.index()].clone().expect("variables are defined before their use")
        };
        let at = self.at;
        let fusion = Fusion::of(program, self.options.conv_threads);
        for equation in &program.equations {
            self.locate(equation.at);
            if let Some(role) = fusion.role(equation) {
                self.fused(program, equation, role, &mut env);
                continue;
            }
            let inputs: SmallVec<[Slot<'a>; 4]> =
                equation.inputs.iter().map(|&var| slot(&env, var)).collect();
            let outputs = match self.options.mesh.is_empty() {
                true => self.equation(program, equation, &inputs),
                false => self.equation_on_mesh(program, equation, inputs),
            };
            debug_assert_eq!(outputs.len(), equation.outputs.len());
            for (&var, output) in equation.outputs.iter().zip(outputs) {
                env[var.index()] = Some(output);
            }
        }
        // The lines that end a region are the control flow's own.
        self.at = at;
        program.outputs.iter().map(|&var| slot(&env, var)).collect()
    }

    /// Writes an equation of a layer. The first one that needs the layer's result writes the call.
    fn fused(
        &mut self,
        program: &'a Program,
        equation: &'a Equation,
        role: Role<'a>,
        env: &mut [Option<Slot<'a>>],
    ) {
        let (Role::Result(layer) | Role::Mask(layer)) = role else { return };
        let get = |env: &[Option<Slot<'a>>], var: Var| {
            env[var.index()].clone().expect("variables are defined before their use")
        };
        let result = layer.result;
        if env[result.index()].is_none() {
            let operands = layer.operands();
            let values: Values = operands.iter().map(|&var| self.value(&get(env, var))).collect();
            let tys: SmallVec<[&TensorType; 3]> =
                operands.iter().map(|&var| program.ty(var)).collect();
            let ty = program.ty(result);
            let value = self.conv_layer(&layer, &values, &tys, ty);
            env[result.index()] = Some(Slot::Value(value));
        }
        if let Role::Mask(_) = role {
            let inputs = [get(env, result), get(env, equation.inputs[1])];
            let mask = self.equation(program, equation, &inputs);
            env[equation.outputs[0].index()] = mask.into_iter().next();
        }
    }

    pub(super) fn equation(
        &mut self,
        program: &'a Program,
        equation: &'a Equation,
        inputs: &[Slot<'a>],
    ) -> SmallVec<[Slot<'a>; 2]> {
        let tys: SmallVec<[&TensorType; 4]> =
            equation.inputs.iter().map(|&var| program.ty(var)).collect();
        let results: SmallVec<[&TensorType; 2]> =
            equation.outputs.iter().map(|&var| program.ty(var)).collect();
        let none = TensorType::scalar(DType::Bool);
        let result = results.first().copied().unwrap_or(&none);
        // These hand slots on, so that constants stay constants.
        if let Op::Constant(literal) = &equation.op {
            let slot = if literal.ty().numel() <= MAX_INLINE_ELEMENTS || literal.is_splat() {
                Slot::Constant(literal)
            } else {
                Slot::Value(self.constant(literal))
            };
            return SmallVec::from_iter([slot]);
        }
        if let Op::StopGradient | Op::Name(_) = equation.op {
            return SmallVec::from_iter([inputs[0].clone()]);
        }
        // So does control flow, to its regions; all others take values.
        let structured = match equation.op.structure() {
            Structure::CustomJvp(custom) => self.program(&custom.call, inputs.iter().cloned()),
            Structure::CustomVjp(custom) => self.program(&custom.call, inputs.iter().cloned()),
            Structure::CustomLin(_) => unreachable!("transposed, or refused by linearize"),
            Structure::Remat(remat) => self.remat(remat, inputs, &tys),
            Structure::Scan(scan) => self.scan(scan, inputs, &tys, &results),
            Structure::While(while_op) => self.while_loop(while_op, inputs, &tys),
            Structure::Cond(cond) => self.cond(cond, inputs, &results),
            Structure::Callback(callback) => {
                let values: Values = inputs.iter().map(|slot| self.value(slot)).collect();
                let values = self.callback(callback, &values, &tys, &results);
                return values.into_iter().map(Slot::Value).collect();
            }
            Structure::Elementary | Structure::Collective(_) => {
                let values: Values = inputs.iter().map(|slot| self.value(slot)).collect();
                if let Op::Binary(op @ (BinaryOp::Div | BinaryOp::Rem)) = equation.op
                    && result.dtype.is_int()
                    && !never_zero(&inputs[1])
                {
                    let quotient = self.division(op, values[0], values[1], result);
                    return SmallVec::from_iter([Slot::Value(quotient)]);
                }
                if let Op::Compare(op) = equation.op
                    && let Some(value) = self.compare_with_zero(op, inputs, &values, tys[0])
                {
                    return SmallVec::from_iter([Slot::Value(value)]);
                }
                let moves = !matches!(equation.op, Op::Convert { .. } | Op::Sharding(_));
                if moves && results.iter().chain(&tys).any(|ty| ty.dtype.is_int4()) {
                    let values = self.in_bytes(&equation.op, &values, &tys, result);
                    return values.into_iter().map(Slot::Value).collect();
                }
                let values = self.simple(&equation.op, &values, &tys, result);
                return values.into_iter().map(Slot::Value).collect();
            }
        };
        SmallVec::from_vec(structured)
    }

    /// Compares floats with the constant zero as `x >= 0` or `0 <= x`; `None` for other comparisons.
    ///
    /// XLA folds `x >= 0` to true where it proves that `x` is not negative, as of an absolute value
    /// or a square; but for NaN the result is false. On the CPU the constant is written as -0.0, which
    /// compares equal, and for which XLA does not do so. On GPUs it does, also for
    /// `x > 0 || x == 0`; so `x == x && !(x < 0)` is written there.
    fn compare_with_zero(
        &mut self,
        op: CompareOp,
        slots: &[Slot<'a>],
        values: &[Value],
        ty: &TensorType,
    ) -> Option<Value> {
        let (at, opposite) = match op {
            CompareOp::Ge => (1, CompareOp::Lt),
            CompareOp::Le => (0, CompareOp::Gt),
            CompareOp::Eq | CompareOp::Ne | CompareOp::Lt | CompareOp::Gt => return None,
        };
        let Slot::Constant(literal) = &slots[at] else { return None };
        if !ty.dtype.is_float() || literal.splat_value() != Some(0.0) {
            return None;
        }
        if self.options.platform.facts().compares_with_negative_zero {
            let mut values = [values[0], values[1]];
            values[at] = self.constant(&Literal::filled(ty.clone(), -0.0));
            return Some(self.compare(op, values[0], values[1], ty));
        }
        let x = values[1 - at];
        let result = TensorType::new(DType::Bool, &ty.shape);
        let below = self.compare(opposite, values[0], values[1], ty);
        let not_below = self.op(format_args!("stablehlo.not {below} : {}", Ty(&result)));
        let is_number = self.compare(CompareOp::Eq, x, x, ty);
        Some(self.op(format_args!("stablehlo.and {not_below}, {is_number} : {}", Ty(&result))))
    }

    /// An operation that moves integers of 4 bits, written for integers of 8. The compiler for CPU
    /// ends the process where it has to copy integers of 4 bits to another layout. The barrier keeps
    /// it from moving the conversions, which would bring such copies back.
    fn in_bytes(
        &mut self,
        op: &Op,
        x: &[Value],
        tys: &[&TensorType],
        result: &TensorType,
    ) -> Values {
        let wide = |ty: &TensorType| {
            let bytes = if ty.dtype.is_unsigned() { DType::U8 } else { DType::I8 };
            TensorType::new(if ty.dtype.is_int4() { bytes } else { ty.dtype }, &ty.shape)
        };
        let to: SmallVec<[TensorType; 4]> = tys.iter().map(|ty| wide(ty)).collect();
        let x: Values = (0..x.len()).map(|i| self.convert(x[i], tys[i], to[i].dtype)).collect();
        let tys: SmallVec<[&TensorType; 4]> = to.iter().collect();
        let mut values = self.simple(op, &x, &tys, &wide(result));
        for value in &mut values {
            let ty = wide(result);
            let kept =
                self.op(format_args!("stablehlo.optimization_barrier {value} : {}", Ty(&ty)));
            *value = self.convert(kept, &ty, result.dtype);
        }
        values
    }

    /// Operations without regions of the user's.
    fn simple(&mut self, op: &Op, x: &[Value], tys: &[&TensorType], result: &TensorType) -> Values {
        let one = match op {
            Op::Iota { axis, .. } => {
                let iota = self.op(format_args!("stablehlo.iota dim = {axis} : {}", Ty(result)));
                if result.rank() == 1 && result.dtype == DType::I32 {
                    self.iotas.insert(iota);
                }
                iota
            }
            Op::Unary(unary) => self.unary(*unary, x[0], tys[0]),
            Op::Binary(binary) => self.binary(*binary, x[0], x[1], tys[0]),
            Op::Compare(compare) => self.compare(*compare, x[0], x[1], tys[0]),
            Op::Select => self.select(x[0], x[1], x[2], tys[0], tys[1]),
            Op::Clamp => {
                // Not `stablehlo.clamp`: the compiler takes its bounds to be in order, and drops a
                // later maximum with the lower one even if the upper one is less.
                let above = self.binary(BinaryOp::Max, x[1], x[0], result);
                self.binary(BinaryOp::Min, above, x[2], result)
            }
            Op::Convert { dtype } => self.convert(x[0], tys[0], *dtype),
            Op::Bitcast { .. } => self.bitcast(x[0], tys[0], result),
            Op::Broadcast { axes, .. } => self.broadcast(x[0], tys[0], axes, result),
            Op::Reshape { .. } => self.reshape(x[0], tys[0], result),
            Op::Transpose { permutation } => {
                if permutation.iter().enumerate().all(|(i, &axis)| i == axis) {
                    x[0]
                } else {
                    self.op(format_args!(
                        "stablehlo.transpose {}, dims = [{}] : ({}) -> {}",
                        x[0],
                        List(permutation),
                        Ty(tys[0]),
                        Ty(result)
                    ))
                }
            }
            Op::Reverse { axes } => {
                let (axes, ty) = (List(axes), Ty(result));
                self.op(format_args!("stablehlo.reverse {}, dims = [{axes}] : {ty}", x[0]))
            }
            Op::Concat { axis } => self.concat(x, tys, *axis, result),
            Op::Pad { low, high, interior } => self.op(format_args!(
                "stablehlo.pad {}, {}, low = [{}], high = [{}], interior = [{}] : {}",
                x[0],
                x[1],
                List(low),
                List(high),
                List(interior),
                signature(tys, &[result])
            )),
            Op::Slice { start, limit, stride } => {
                self.slice(x[0], tys[0], start, limit, stride, result)
            }
            Op::DynamicSlice { .. } => self.dynamic_slice(x, tys, result),
            Op::DynamicUpdateSlice => self.dynamic_update_slice(x, tys),
            Op::Gather(dims) => self.gather(dims, x, tys, result),
            Op::Scatter(dims) => self.scatter(dims, x, tys),
            Op::Dot(dims) => self.dot(dims, x, tys, result),
            // The compiler refuses a window without elements. A sum of nothing is zero.
            Op::Conv(_) if tys.iter().any(|ty| ty.numel() == 0) => {
                self.constant(&Literal::filled(result.clone(), 0.0))
            }
            Op::Conv(dims) => self.conv(dims, x, tys, result),
            Op::Fft(op) => self.fft(op, x[0], tys[0], result),
            Op::Cholesky => self.cholesky(x[0], result),
            Op::TriangularSolve(op) => self.triangular_solve(op, x, tys, result),
            Op::Reduce { op, axes } => self.reduce(*op, x[0], tys[0], axes, result),
            Op::ArgReduce { op, axis } => self.arg_reduce(*op, x[0], tys[0], *axis, result),
            Op::Sort { axis } => return self.sort(x, tys, *axis),
            Op::Collective(op) => return self.collective(op, x, tys, result),
            Op::Sharding(op) => self.sharding(op, x[0], tys[0], result),
            Op::Threefry => return self.threefry(x, result),
            Op::Constant(_)
            | Op::StopGradient
            | Op::Name(_)
            | Op::CustomJvp(_)
            | Op::CustomVjp(_)
            | Op::CustomLin(_)
            | Op::Remat(_)
            | Op::Callback(_)
            | Op::Scan(_)
            | Op::While(_)
            | Op::Cond(_) => {
                unreachable!("written by `equation`")
            }
        };
        SmallVec::from_iter([one])
    }
}

/// Returns true if the value is a constant without zero elements.
fn never_zero(slot: &Slot<'_>) -> bool {
    match slot {
        Slot::Constant(literal) => match literal.splat_value() {
            Some(value) => value != 0.0,
            None => literal.to_f64_vec().iter().all(|&value| value != 0.0),
        },
        Slot::Value(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::sets_flag;

    #[test]
    fn flags_of_the_user_are_found_by_their_whole_names() {
        let flags = "--xla_dump_to=xla_cpu_multi_thread_eigen --xla_cpu_multi_thread_eigen_too=true\n--xla_hlo";
        assert!(!sets_flag(flags, "xla_cpu_multi_thread_eigen"));
        assert!(sets_flag(flags, "xla_dump_to") && sets_flag(flags, "xla_hlo"));
    }
}
