//! Printed form of a [`Program`]: like a jaxpr, one equation a line; constants are inline if they
//! are scalars or splats.
//!
//! ```text
//! { lambda a:f32[8] b:f32[8]. let
//!     c:f32[8] = mul a 2:f32[8]
//!     d:f32[8] = add c b
//!   in (d) }
//! ```
//!
//! `{:#}` is the exact form ([`Program::to_text`]): constants are equations of their own and are
//! written out to the last element. [`Program::parse`] reads both.

#![deny(clippy::wildcard_enum_match_arm)]

use std::fmt::{self, Write};

use super::axis::Axis;
use super::literal::Literal;
use super::op::{
    Amounts, Axes, CallbackKind, Collective, Op, Precision, RematPolicy, Rule, Structure,
    VmapMethod,
};
use super::program::{Equation, Program, Var};
use super::types::DType;

mod literal;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let style = Style { lines: false, exact: f.alternate() };
        Printer { program: self, indent: 0, style }.program(f)
    }
}

impl Program {
    /// The text with each equation's source line behind it.
    pub fn text_with_lines(&self) -> String {
        struct WithLines<'a>(&'a Program);
        impl fmt::Display for WithLines<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let style = Style { lines: true, exact: false };
                Printer { program: self.0, indent: 0, style }.program(f)
            }
        }
        WithLines(self).to_string()
    }

    /// The text from which [`Program::parse`] makes an equal Program: as it prints, but with each
    /// constant in an equation of its own, and written out to the last element.
    ///
    /// ```
    /// use podracer::{Array, Program, Tensor, make_program};
    /// # fn main() -> podracer::Result<()> {
    /// let program = make_program(|x: Tensor| x.sin() * 2.0, &Array::from([1.0f32, 2.0]))?;
    /// assert_eq!(
    ///     program.to_text(),
    ///     "{ lambda a:f32[2]. let\n    b:f32[2] = sin a\n    c:f32[2] = constant[f32[2] 2]\n    \
    ///      d:f32[2] = mul b c\n  in (d) }",
    /// );
    /// assert_eq!(Program::parse(&program.to_text())?, program);
    /// # Ok(())
    /// # }
    /// ```
    pub fn to_text(&self) -> String {
        format!("{self:#}")
    }
}

#[derive(Clone, Copy)]
struct Style {
    /// Source lines behind the equations.
    lines: bool,
    /// Nothing left out, and constants in equations of their own.
    exact: bool,
}

struct Printer<'a> {
    program: &'a Program,
    indent: usize,
    style: Style,
}

/// `a`, `b`, ..., `z`, `ba`, `bb`, ...
fn name(var: Var) -> String {
    let mut n = var.0;
    let mut letters = Vec::new();
    loop {
        letters.push(b'a' + (n % 26) as u8);
        n /= 26;
        if n == 0 {
            break;
        }
    }
    letters.reverse();
    String::from_utf8(letters).expect("letters are ASCII")
}

impl Printer<'_> {
    /// The literals of the constants that print inline, by variable.
    fn inline(&self) -> Vec<Option<&Literal>> {
        let mut inline = vec![None; self.program.types.len()];
        for equation in &self.program.equations {
            if let Op::Constant(literal) = &equation.op
                && literal.is_splat()
                && !self.style.exact
            {
                inline[equation.outputs[0].index()] = Some(literal);
            }
        }
        inline
    }

    fn program(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inline = self.inline();
        f.write_str("{ lambda")?;
        for &input in &self.program.inputs {
            write!(f, " {}:{}", name(input), self.program.ty(input))?;
        }
        f.write_str(". let\n")?;
        for equation in &self.program.equations {
            if equation.outputs.first().is_none_or(|var| inline[var.index()].is_none()) {
                self.equation(f, equation, &inline)?;
            }
        }
        let output = |&var: &Var| match inline[var.index()] {
            Some(literal) => format!("{}:{}", literal.element_text(0), literal.ty()),
            None => name(var),
        };
        let outputs: Vec<String> = self.program.outputs.iter().map(output).collect();
        write!(f, "{:1$}  in ({2}) }}", "", self.indent, outputs.join(", "))
    }

    fn equation(
        &self,
        f: &mut fmt::Formatter<'_>,
        equation: &Equation,
        inline: &[Option<&Literal>],
    ) -> fmt::Result {
        write!(f, "{:1$}    ", "", self.indent)?;
        for &var in &equation.outputs {
            write!(f, "{}:{} ", name(var), self.program.ty(var))?;
        }
        write!(f, "= {}", equation.op.name())?;
        let mut params = String::new();
        if let (Op::Constant(literal), true) = (&equation.op, self.style.exact) {
            write!(params, "{literal:#}")?;
        } else {
            op_params(&mut params, &equation.op)?;
        }
        if !params.is_empty() {
            write!(f, "[{params}]")?;
        }
        let scalar = |var: Var| inline[var.index()].is_some_and(|x| x.ty().rank() == 0);
        let operand_types: Vec<Option<DType>> = equation
            .inputs
            .iter()
            .map(|&var| (!scalar(var)).then(|| self.program.ty(var).dtype))
            .collect();
        let result = equation.outputs.first().map(|&var| self.program.ty(var).dtype);
        for (i, &input) in equation.inputs.iter().enumerate() {
            let Some(literal) = inline[input.index()] else {
                write!(f, " {}", name(input))?;
                continue;
            };
            let value = literal.element_text(0);
            let expected = bare_dtype(&equation.op, i, &operand_types, result);
            if scalar(input) && Some(literal.ty().dtype) == expected && !has_letters(&value) {
                write!(f, " {value}")?;
            } else {
                write!(f, " {value}:{}", literal.ty())?;
            }
        }
        if self.style.lines {
            write!(f, "    # {}", equation.at)?;
        }
        f.write_str("\n")?;
        for (label, sub) in labels(&equation.op).into_iter().zip(equation.op.subprograms()) {
            write!(f, "{:1$}      {label}: ", "", self.indent)?;
            Printer { program: sub, indent: self.indent + 6, style: self.style }.program(f)?;
            f.write_str("\n")?;
        }
        Ok(())
    }
}

/// `inf` and `true` could be variables.
fn has_letters(value: &str) -> bool {
    value.trim_start_matches('-').starts_with(|c: char| c.is_ascii_alphabetic())
}

/// The element type of a scalar constant that prints at operand `i` without its type. `operands`
/// are the element types of the operands, `None` for scalar constants; `result` that of the first
/// result.
pub(super) fn bare_dtype(
    op: &Op,
    i: usize,
    operands: &[Option<DType>],
    result: Option<DType>,
) -> Option<DType> {
    let indices = op.facts().indices;
    let is_index = |i: usize| indices.contains(&i);
    if is_index(i) {
        return Some(DType::I32);
    }
    let mut others = operands.iter().enumerate().filter(|(i, _)| !is_index(*i));
    others.find_map(|(_, dtype)| *dtype).or(result)
}

/// Returns the names of the Programs inside an operation.
pub(super) fn labels(op: &Op) -> Vec<String> {
    match op.structure() {
        Structure::Scan(_) => vec!["body".into()],
        Structure::While(_) => vec!["cond".into(), "body".into()],
        Structure::CustomJvp(custom) => match custom.jvp {
            Rule::Own(_) => vec!["call".into(), "jvp".into()],
            Rule::Enclosing(_) => vec!["call".into()],
        },
        Structure::CustomVjp(_) => vec!["call".into(), "fwd".into(), "bwd".into()],
        Structure::CustomLin(_) => vec!["bwd".into()],
        Structure::Remat(_) => vec!["body".into()],
        Structure::Cond(cond) => (0..cond.branches.len()).map(|i| format!("branch {i}")).collect(),
        Structure::Elementary | Structure::Collective(_) | Structure::Callback(_) => vec![],
    }
}

/// Encodes a user's name as one word: a character that is no letter, digit or `_` becomes `%` and
/// its bytes.
fn encoded(name: &str) -> String {
    let mut word = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'_' {
            word.push(byte as char);
        } else {
            let _ = write!(word, "%{byte:02x}");
        }
    }
    word
}

fn named(axis: &Axis) -> String {
    format!("{}:{}", encoded(axis.name()), axis.size())
}

fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("({})", items.join(","))
}

fn precision(out: &mut String, precision: Precision) -> fmt::Result {
    match precision {
        Precision::Default => Ok(()),
        Precision::High | Precision::Highest => write!(out, " precision={}", precision.name()),
    }
}

/// The parameters inside the brackets; nothing for operations that have none.
pub(super) fn op_params(out: &mut String, op: &Op) -> fmt::Result {
    let axes = |axes: &Axes| list(axes.iter());
    let amounts = |amounts: &Amounts| list(amounts.iter());
    match op {
        Op::Constant(literal) => write!(out, "{literal}"),
        Op::Iota { axis, .. } | Op::Concat { axis } | Op::ArgReduce { axis, .. } => {
            write!(out, "axis={axis}")
        }
        Op::Sort { axis } => write!(out, "axis={axis}"),
        Op::Convert { dtype } | Op::Bitcast { dtype } => write!(out, "dtype={dtype}"),
        Op::Broadcast { shape, axes: to } => write!(out, "shape={shape} axes={}", axes(to)),
        Op::Reshape { shape } => write!(out, "shape={shape}"),
        Op::Transpose { permutation } => write!(out, "permutation={}", axes(permutation)),
        Op::Reverse { axes: turned } => write!(out, "axes={}", axes(turned)),
        Op::Pad { low, high, interior } => {
            write!(out, "low={} high={}", amounts(low), amounts(high))?;
            if interior.iter().any(|&i| i != 0) {
                write!(out, " interior={}", axes(interior))?;
            }
            Ok(())
        }
        Op::Slice { start, limit, stride } => {
            write!(out, "start={} limit={}", axes(start), axes(limit))?;
            if stride.iter().any(|&s| s != 1) {
                write!(out, " stride={}", axes(stride))?;
            }
            Ok(())
        }
        Op::DynamicSlice { sizes } => write!(out, "sizes={sizes}"),
        Op::Gather(dims) => write!(
            out,
            "offset={} collapsed={} batching={}/{} map={} sizes={}",
            axes(&dims.offset_dims),
            axes(&dims.collapsed_slice_dims),
            axes(&dims.operand_batching_dims),
            axes(&dims.start_indices_batching_dims),
            axes(&dims.start_index_map),
            dims.slice_sizes
        ),
        Op::Scatter(dims) => write!(
            out,
            "window={} inserted={} batching={}/{} map={}",
            axes(&dims.update_window_dims),
            axes(&dims.inserted_window_dims),
            axes(&dims.operand_batching_dims),
            axes(&dims.scatter_indices_batching_dims),
            axes(&dims.scatter_dims_to_operand_dims)
        ),
        Op::Dot(dims) => {
            write!(out, "contract={}/{}", axes(&dims.lhs_contract), axes(&dims.rhs_contract))?;
            if !dims.lhs_batch.is_empty() || !dims.rhs_batch.is_empty() {
                write!(out, " batch={}/{}", axes(&dims.lhs_batch), axes(&dims.rhs_batch))?;
            }
            precision(out, dims.precision)?;
            Ok(())
        }
        Op::Conv(dims) => {
            write!(
                out,
                "lhs={} rhs={} out={} strides={} padding={}",
                axes(&dims.lhs_spec),
                axes(&dims.rhs_spec),
                axes(&dims.out_spec),
                axes(&dims.strides),
                list(dims.padding.iter().map(|(low, high)| format!("{low}:{high}")))
            )?;
            if dims.lhs_dilation.iter().chain(&dims.rhs_dilation).any(|&d| d != 1) {
                let (lhs, rhs) = (axes(&dims.lhs_dilation), axes(&dims.rhs_dilation));
                write!(out, " dilation={lhs}/{rhs}")?;
            }
            if dims.feature_groups != 1 {
                write!(out, " feature_groups={}", dims.feature_groups)?;
            }
            if dims.batch_groups != 1 {
                write!(out, " batch_groups={}", dims.batch_groups)?;
            }
            precision(out, dims.precision)?;
            Ok(())
        }
        Op::TriangularSolve(op) => {
            out.push_str(if op.left_side { "left" } else { "right" });
            out.push_str(if op.lower { " lower" } else { " upper" });
            if op.transpose_a {
                out.push_str(" transpose_a");
            }
            if op.unit_diagonal {
                out.push_str(" unit_diagonal");
            }
            Ok(())
        }
        Op::Reduce { axes: over, .. } => write!(out, "axes={}", axes(over)),
        Op::Scan(scan) => {
            write!(
                out,
                "length={} consts={} carry={}",
                scan.length, scan.num_consts, scan.num_carry
            )?;
            if scan.reverse {
                out.push_str(" reverse");
            }
            if scan.unroll != 1 {
                write!(out, " unroll={}", scan.unroll)?;
            }
            Ok(())
        }
        Op::Collective(collective) => {
            match &*collective.axes {
                [axis] => write!(out, "axis={}", named(axis))?,
                axes => write!(out, "axes={}", list(axes.iter().map(named)))?,
            }
            if let Some(groups) = &collective.groups {
                write!(out, " groups={}", list(groups.iter().map(list)))?;
            }
            match &collective.kind {
                Collective::AllReduce(_) | Collective::Index => Ok(()),
                Collective::AllGather { at } | Collective::ReduceScatter { at } => {
                    write!(out, " at={at}")
                }
                Collective::AllToAll { split, concat } => {
                    write!(out, " split={split} concat={concat}")
                }
                Collective::Permute { pairs } => {
                    let pairs = pairs.iter().map(|(source, target)| format!("{source}:{target}"));
                    write!(out, " pairs={}", list(pairs))
                }
            }
        }
        Op::Sharding(sharding) => {
            let place = |axis| sharding.mesh.iter().position(|other| other == axis).unwrap_or(0);
            let spec = sharding.spec.iter().map(|axes| list(axes.iter().map(place)));
            write!(out, "mesh={} spec={}", list(sharding.mesh.iter().map(named)), list(spec))
        }
        Op::Name(name) => write!(out, "name={}", encoded(name)),
        Op::CustomJvp(custom) => {
            write!(out, "consts={}", custom.num_consts)?;
            match custom.jvp {
                Rule::Own(_) => Ok(()),
                Rule::Enclosing(level) => write!(out, " enclosing={level}"),
            }
        }
        Op::CustomVjp(custom) => write!(out, "consts={}", custom.num_consts),
        Op::CustomLin(custom) => write!(out, "known={}", custom.num_known),
        Op::Remat(remat) => {
            match &remat.policy {
                RematPolicy::NothingSaveable => out.push_str("policy=nothing_saveable"),
                RematPolicy::EverythingSaveable => out.push_str("policy=everything_saveable"),
                RematPolicy::DotsSaveable => out.push_str("policy=dots_saveable"),
                RematPolicy::DotsWithNoBatchDimsSaveable => {
                    out.push_str("policy=dots_with_no_batch_dims_saveable");
                }
                RematPolicy::SaveOnlyTheseNames(names) => {
                    let names = names.iter().map(|name| encoded(name));
                    write!(out, "policy=save_only_these_names names={}", list(names))?;
                }
                RematPolicy::SaveAnythingExceptTheseNames(names) => {
                    let names = names.iter().map(|name| encoded(name));
                    write!(out, "policy=save_anything_except_these_names names={}", list(names))?;
                }
            }
            if remat.barrier {
                out.push_str(" barrier");
            }
            Ok(())
        }
        Op::While(w) => write!(out, "consts={}/{}", w.num_cond_consts, w.num_body_consts),
        Op::Callback(callback) => {
            write!(out, "id={}", callback.f.id())?;
            let (vmap, ordered) = match callback.kind {
                CallbackKind::Pure(vmap) => (Some(vmap), false),
                CallbackKind::Io { ordered, vmap } => (Some(vmap), ordered),
                CallbackKind::Debug { ordered } => (None, ordered),
            };
            match vmap {
                Some(VmapMethod::Sequential) => out.push_str(" vmap=sequential"),
                Some(VmapMethod::ExpandDims) => out.push_str(" vmap=expand_dims"),
                Some(VmapMethod::BroadcastAll) => out.push_str(" vmap=broadcast_all"),
                None => {}
            }
            if ordered {
                out.push_str(" ordered");
            }
            if callback.token {
                out.push_str(" token");
            }
            Ok(())
        }
        Op::Fft(fft) => write!(out, "lengths={}", axes(&fft.lengths)),
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Clamp
        | Op::DynamicUpdateSlice
        | Op::Threefry
        | Op::StopGradient
        | Op::Cholesky
        | Op::Cond(_) => Ok(()),
    }
}
