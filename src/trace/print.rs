//! How a [`Program`] prints: like a jaxpr, one equation a line, constants in place where they are
//! scalars or splats.
//!
//! ```text
//! { lambda a:f32[8] b:f32[8]. let
//!     c:f32[8] = mul a 2
//!     d:f32[8] = add c b
//!   in (d) }
//! ```

use std::fmt::{self, Write};

use super::op::{Amounts, Axes, Collective, Op, RematPolicy};
use super::program::{Equation, Program, Var};

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printer { program: self, indent: 0, lines: false }.program(f)
    }
}

impl Program {
    /// The text with each equation's source line behind it.
    pub fn text_with_lines(&self) -> String {
        struct WithLines<'a>(&'a Program);
        impl fmt::Display for WithLines<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Printer { program: self.0, indent: 0, lines: true }.program(f)
            }
        }
        WithLines(self).to_string()
    }
}

struct Printer<'a> {
    program: &'a Program,
    indent: usize,
    lines: bool,
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
    fn program(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut inline = vec![None; self.program.types.len()];
        for equation in &self.program.equations {
            if let Op::Constant(literal) = &equation.op
                && let Some(value) = literal.splat_value()
            {
                let ty = literal.ty();
                inline[equation.outputs[0].index()] =
                    Some(if ty.rank() == 0 { format!("{value}") } else { format!("{value}:{ty}") });
            }
        }
        let operand = |var: Var| inline[var.index()].clone().unwrap_or_else(|| name(var));
        f.write_str("{ lambda")?;
        for &input in &self.program.inputs {
            write!(f, " {}:{}", name(input), self.program.ty(input))?;
        }
        f.write_str(". let\n")?;
        for equation in &self.program.equations {
            if inline[equation.outputs[0].index()].is_none() {
                self.equation(f, equation, &operand)?;
            }
        }
        let outputs: Vec<String> = self.program.outputs.iter().map(|&v| operand(v)).collect();
        write!(f, "{:1$}  in ({2}) }}", "", self.indent, outputs.join(", "))
    }

    fn equation(
        &self,
        f: &mut fmt::Formatter<'_>,
        equation: &Equation,
        operand: &dyn Fn(Var) -> String,
    ) -> fmt::Result {
        write!(f, "{:1$}    ", "", self.indent)?;
        for (i, &var) in equation.outputs.iter().enumerate() {
            let space = if i > 0 { " " } else { "" };
            write!(f, "{space}{}:{}", name(var), self.program.ty(var))?;
        }
        write!(f, " = {}", equation.op.name())?;
        let mut params = String::new();
        op_params(&mut params, &equation.op)?;
        if !params.is_empty() {
            write!(f, "[{params}]")?;
        }
        for &input in &equation.inputs {
            write!(f, " {}", operand(input))?;
        }
        if self.lines {
            write!(f, "    # {}", equation.at)?;
        }
        f.write_str("\n")?;
        for (label, sub) in labels(&equation.op).into_iter().zip(equation.op.subprograms()) {
            write!(f, "{:1$}      {label}: ", "", self.indent)?;
            Printer { program: sub, indent: self.indent + 6, lines: self.lines }.program(f)?;
            f.write_str("\n")?;
        }
        Ok(())
    }
}

fn labels(op: &Op) -> Vec<String> {
    match op {
        Op::Scan(_) => vec!["body".into()],
        Op::While(_) => vec!["cond".into(), "body".into()],
        Op::CustomJvp(_) => vec!["call".into(), "jvp".into()],
        Op::CustomVjp(_) => vec!["call".into(), "fwd".into(), "bwd".into()],
        Op::CustomLin(_) => vec!["bwd".into()],
        Op::Remat(_) => vec!["body".into()],
        Op::Cond(cond) => (0..cond.branches.len()).map(|i| format!("branch {i}")).collect(),
        _ => vec![],
    }
}

fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("({})", items.join(","))
}

/// The parameters inside the brackets; nothing for operations that have none.
fn op_params(out: &mut String, op: &Op) -> fmt::Result {
    let axes = |axes: &Axes| list(axes.iter());
    let amounts = |amounts: &Amounts| list(amounts.iter());
    match op {
        Op::Constant(literal) => write!(out, "{literal:?}"),
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
            if interior.iter().any(|&i| i > 0) {
                write!(out, " interior={}", axes(interior))?;
            }
            Ok(())
        }
        Op::Slice { start, limit, stride } => {
            write!(out, "start={} limit={}", axes(start), axes(limit))?;
            if stride.iter().any(|&s| s > 1) {
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
            if !dims.lhs_batch.is_empty() {
                write!(out, " batch={}/{}", axes(&dims.lhs_batch), axes(&dims.rhs_batch))?;
            }
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
            if dims.lhs_dilation.iter().chain(&dims.rhs_dilation).any(|&d| d > 1) {
                let (lhs, rhs) = (axes(&dims.lhs_dilation), axes(&dims.rhs_dilation));
                write!(out, " dilation={lhs}/{rhs}")?;
            }
            if dims.feature_groups > 1 {
                write!(out, " feature_groups={}", dims.feature_groups)?;
            }
            if dims.batch_groups > 1 {
                write!(out, " batch_groups={}", dims.batch_groups)?;
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
            if scan.unroll > 1 {
                write!(out, " unroll={}", scan.unroll)?;
            }
            Ok(())
        }
        Op::Collective(collective) => {
            write!(out, "axis={}", collective.axis)?;
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
        Op::Name(name) => write!(out, "name={name}"),
        Op::CustomJvp(custom) => write!(out, "consts={}", custom.num_consts),
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
                    write!(out, "policy=save_only_these_names{}", list(names))?;
                }
                RematPolicy::SaveAnythingExceptTheseNames(names) => {
                    write!(out, "policy=save_anything_except_these_names{}", list(names))?;
                }
            }
            if remat.barrier {
                out.push_str(" barrier");
            }
            Ok(())
        }
        Op::While(w) => write!(out, "consts={}/{}", w.num_cond_consts, w.num_body_consts),
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Clamp
        | Op::DynamicUpdateSlice
        | Op::Threefry
        | Op::StopGradient
        | Op::Cond(_) => Ok(()),
    }
}
