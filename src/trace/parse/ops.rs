//! Operations from their names and parameters: the inverse of `op_params`.
//!
//! `forms!` is the table. It is also a `match` over all of [`Op`], so that a new operation does not
//! compile until the table has it.

use std::sync::Arc;

use smallvec::SmallVec;
use strsim::levenshtein;

use super::super::axis::{Axis, AxisVec};
use super::super::callback::HostFn;
use super::super::literal::Literal;
use super::super::op::{
    AllReduceOp, Amounts, ArgOp, Axes, BinaryOp, CallbackKind, CallbackOp, Collective,
    CollectiveOp, CompareOp, CondOp, ConvDims, CustomJvpOp, CustomLinOp, CustomVjpOp, DotDims,
    FftKind, FftOp, GatherDims, Op, Precision, ReduceOp, RematOp, RematPolicy, Rule, ScanOp,
    ScatterDims, ScatterKind, ShardingKind, ShardingOp, TriangularSolveOp, UnaryOp, VmapMethod,
    WhileOp,
};
use super::super::program::Program;
use super::super::types::{DType, Shape, TensorType};
use super::reader::Reader;
use crate::error::{Error, Result};

/// Parser of an operation.
struct Form {
    /// The names under which it prints ([`Op::name`]).
    names: fn() -> Vec<&'static str>,
    /// Makes it from one of the names and the parameters.
    read: fn(&str, &mut Params<'_, '_>) -> Result<Op>,
}

macro_rules! forms {
    ($($pattern:pat, $names:expr => $read:expr;)*) => {
        const FORMS: &[Form] = &[$(Form { names: || $names.to_vec(), read: $read }),*];
        const _EVERY_OPERATION_HAS_A_FORM: fn(&Op) = |op| match op { $($pattern => (),)* };
    };
}

forms! {
    Op::Constant(_), ["constant"] => |_, p| Ok(Op::Constant(p.literal()?));
    Op::Iota { .. }, ["iota"] => |_, p| {
        Ok(Op::Iota { axis: p.number("axis")?, ty: p.result_type()? })
    };
    Op::Unary(_), UnaryOp::ALL.map(UnaryOp::name) => |name, _| {
        Ok(Op::Unary(of_name(&UnaryOp::ALL, UnaryOp::name, name)))
    };
    Op::Binary(_), BinaryOp::ALL.map(BinaryOp::name) => |name, _| {
        Ok(Op::Binary(of_name(&BinaryOp::ALL, BinaryOp::name, name)))
    };
    Op::Compare(_), CompareOp::ALL.map(CompareOp::name) => |name, _| {
        Ok(Op::Compare(of_name(&CompareOp::ALL, CompareOp::name, name)))
    };
    Op::Select, ["select"] => |_, _| Ok(Op::Select);
    Op::Clamp, ["clamp"] => |_, _| Ok(Op::Clamp);
    Op::Convert { .. }, ["convert"] => |_, p| Ok(Op::Convert { dtype: p.dtype("dtype")? });
    Op::Bitcast { .. }, ["bitcast"] => |_, p| Ok(Op::Bitcast { dtype: p.dtype("dtype")? });
    Op::Broadcast { .. }, ["broadcast"] => |_, p| {
        Ok(Op::Broadcast { shape: p.shape("shape")?, axes: p.axes("axes")? })
    };
    Op::Reshape { .. }, ["reshape"] => |_, p| Ok(Op::Reshape { shape: p.shape("shape")? });
    Op::Transpose { .. }, ["transpose"] => |_, p| {
        Ok(Op::Transpose { permutation: p.axes("permutation")? })
    };
    Op::Reverse { .. }, ["reverse"] => |_, p| Ok(Op::Reverse { axes: p.axes("axes")? });
    Op::Concat { .. }, ["concat"] => |_, p| Ok(Op::Concat { axis: p.number("axis")? });
    Op::Pad { .. }, ["pad"] => |_, p| {
        let (low, high): (Amounts, Amounts) = (p.amounts("low")?, p.amounts("high")?);
        let interior = p.axes_or("interior", 0, low.len())?;
        Ok(Op::Pad { low, high, interior })
    };
    Op::Slice { .. }, ["slice"] => |_, p| {
        let (start, limit) = (p.axes("start")?, p.axes("limit")?);
        let stride = p.axes_or("stride", 1, start.len())?;
        Ok(Op::Slice { start, limit, stride })
    };
    Op::DynamicSlice { .. }, ["dynamic_slice"] => |_, p| {
        Ok(Op::DynamicSlice { sizes: p.shape("sizes")? })
    };
    Op::DynamicUpdateSlice, ["dynamic_update_slice"] => |_, _| Ok(Op::DynamicUpdateSlice);
    Op::Gather(_), ["gather"] => |_, p| {
        let (offset_dims, collapsed_slice_dims) = (p.axes("offset")?, p.axes("collapsed")?);
        let (operand_batching_dims, start_indices_batching_dims) = p.pair("batching")?;
        Ok(Op::Gather(GatherDims {
            offset_dims,
            collapsed_slice_dims,
            operand_batching_dims,
            start_indices_batching_dims,
            start_index_map: p.axes("map")?,
            slice_sizes: p.shape("sizes")?,
        }))
    };
    Op::Scatter(_), ScatterKind::ALL.map(ScatterKind::name) => |name, p| {
        let (update_window_dims, inserted_window_dims) = (p.axes("window")?, p.axes("inserted")?);
        let (operand_batching_dims, scatter_indices_batching_dims) = p.pair("batching")?;
        Ok(Op::Scatter(ScatterDims {
            kind: of_name(&ScatterKind::ALL, ScatterKind::name, name),
            update_window_dims,
            inserted_window_dims,
            operand_batching_dims,
            scatter_indices_batching_dims,
            scatter_dims_to_operand_dims: p.axes("map")?,
        }))
    };
    Op::Dot(_), ["dot"] => |_, p| {
        let (lhs_contract, rhs_contract) = p.pair("contract")?;
        let (lhs_batch, rhs_batch) =
            if p.has("batch") { p.pair("batch")? } else { Default::default() };
        let precision = p.precision()?;
        Ok(Op::Dot(DotDims { lhs_contract, rhs_contract, lhs_batch, rhs_batch, precision }))
    };
    Op::Conv(_), ["conv"] => |_, p| read_conv(p);
    Op::Fft(_), FftKind::ALL.map(FftKind::name) => |name, p| {
        let kind = of_name(&FftKind::ALL, FftKind::name, name);
        Ok(Op::Fft(FftOp { kind, lengths: p.axes("lengths")? }))
    };
    Op::Cholesky, ["cholesky"] => |_, _| Ok(Op::Cholesky);
    Op::TriangularSolve(_), ["triangular_solve"] => |_, p| {
        Ok(Op::TriangularSolve(TriangularSolveOp {
            left_side: p.either("left", "right")?,
            lower: p.either("lower", "upper")?,
            transpose_a: p.flag("transpose_a"),
            unit_diagonal: p.flag("unit_diagonal"),
        }))
    };
    Op::Reduce { .. }, ReduceOp::ALL.map(ReduceOp::name) => |name, p| {
        let op = of_name(&ReduceOp::ALL, ReduceOp::name, name);
        Ok(Op::Reduce { op, axes: p.axes("axes")? })
    };
    Op::ArgReduce { .. }, ArgOp::ALL.map(ArgOp::name) => |name, p| {
        let op = of_name(&ArgOp::ALL, ArgOp::name, name);
        Ok(Op::ArgReduce { op, axis: p.number("axis")? })
    };
    Op::Sort { .. }, ["sort"] => |_, p| Ok(Op::Sort { axis: p.number("axis")? });
    Op::Threefry, ["threefry2x32"] => |_, _| Ok(Op::Threefry);
    Op::StopGradient, ["stop_gradient"] => |_, _| Ok(Op::StopGradient);
    Op::Name(_), ["name"] => |_, p| Ok(Op::Name(p.keyed("name", Reader::name)?));
    Op::Collective(_), COLLECTIVES => read_collective;
    Op::Sharding(_), ["sharding_constraint", "full_to_shard", "shard_to_full"] => read_sharding;
    Op::CustomJvp(_), ["custom_jvp"] => |_, p| {
        let num_consts = p.number("consts")?;
        if p.has("enclosing") {
            let jvp = Rule::Enclosing(p.number("enclosing")?);
            return Ok(Op::CustomJvp(CustomJvpOp { call: p.body("call")?, jvp, num_consts }));
        }
        let (call, jvp) = (p.body("call")?, Rule::Own(p.body("jvp")?));
        Ok(Op::CustomJvp(CustomJvpOp { call, jvp, num_consts }))
    };
    Op::CustomVjp(_), ["custom_vjp"] => |_, p| {
        let num_consts = p.number("consts")?;
        let (call, fwd, bwd) = (p.body("call")?, p.body("fwd")?, p.body("bwd")?);
        Ok(Op::CustomVjp(CustomVjpOp { call, fwd, bwd, num_consts }))
    };
    Op::CustomLin(_), ["custom_lin"] => |_, p| {
        let num_known = p.number("known")?;
        Ok(Op::CustomLin(CustomLinOp { bwd: p.body("bwd")?, num_known }))
    };
    Op::Remat(_), ["checkpoint"] => |_, p| {
        let policy = read_policy(p)?;
        let barrier = p.flag("barrier");
        Ok(Op::Remat(RematOp { policy, barrier, body: p.body("body")? }))
    };
    Op::Callback(_), ["pure_callback", "io_callback", "debug_callback"] => read_callback;
    Op::Scan(_), ["scan"] => |_, p| {
        Ok(Op::Scan(ScanOp {
            length: p.number("length")?,
            num_consts: p.number("consts")?,
            num_carry: p.number("carry")?,
            reverse: p.flag("reverse"),
            unroll: if p.has("unroll") { p.number("unroll")? } else { 1 },
            body: p.body("body")?,
        }))
    };
    Op::While(_), ["while"] => |_, p| {
        let (num_cond_consts, num_body_consts) = p.numbers("consts")?;
        let (cond, body) = (p.body("cond")?, p.body("body")?);
        Ok(Op::While(WhileOp { cond, num_cond_consts, body, num_body_consts }))
    };
    Op::Cond(_), ["cond"] => |_, p| {
        let mut branches = vec![p.body("branch 0")?];
        while p.has_body() {
            branches.push(p.body(&format!("branch {}", branches.len()))?);
        }
        Ok(Op::Cond(CondOp { branches }))
    };
}

const COLLECTIVES: [&str; 8] = [
    "psum",
    "pmax",
    "pmin",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "ppermute",
    "axis_index",
];

fn read_collective(name: &str, p: &mut Params<'_, '_>) -> Result<Op> {
    let axes = match p.has("axes") {
        true => read_axes(p, "axes")?,
        false => [p.keyed("axis", named_axis)?].into_iter().collect(),
    };
    let groups = match p.has("groups") {
        true => Some(p.keyed("groups", positions)?),
        false => None,
    };
    let kind = match name {
        "psum" => Collective::AllReduce(AllReduceOp::Sum),
        "pmax" => Collective::AllReduce(AllReduceOp::Max),
        "pmin" => Collective::AllReduce(AllReduceOp::Min),
        "all_gather" => Collective::AllGather { at: p.number("at")? },
        "reduce_scatter" => Collective::ReduceScatter { at: p.number("at")? },
        "all_to_all" => {
            Collective::AllToAll { split: p.number("split")?, concat: p.number("concat")? }
        }
        "ppermute" => {
            let pair = |reader: &mut Reader<'_>| {
                let source = reader.number()?;
                reader.expect(":")?;
                Ok((source, reader.number()?))
            };
            let pairs = p.keyed("pairs", |reader| reader.list("(", ")", pair))?;
            Collective::Permute { pairs }
        }
        _ => Collective::Index,
    };
    Ok(Op::Collective(CollectiveOp { axes, groups, kind }))
}

fn named_axis(reader: &mut Reader<'_>) -> Result<Axis> {
    let name = reader.name()?;
    reader.expect(":")?;
    Ok(Axis::named(name, reader.number()?))
}

fn read_axes(p: &mut Params<'_, '_>, key: &str) -> Result<AxisVec> {
    Ok(p.keyed(key, |reader| reader.list("(", ")", named_axis))?.into_iter().collect())
}

/// Lists of positions.
fn positions(reader: &mut Reader<'_>) -> Result<Vec<Vec<usize>>> {
    reader.list("(", ")", |reader| reader.list("(", ")", Reader::number))
}

fn read_sharding(name: &str, p: &mut Params<'_, '_>) -> Result<Op> {
    let mesh = read_axes(p, "mesh")?;
    let (start, places) = p.keyed("spec", |reader| Ok((reader.at, positions(reader)?)))?;
    let axes = |places: Vec<usize>| places.into_iter().map(|place| mesh.get(place).copied());
    let spec = places.into_iter().map(|places| axes(places).collect()).collect::<Option<_>>();
    let Some(spec) = spec else {
        return Err(p.reader.fault(start, "the mesh has no axis with this position"));
    };
    let kind = match name {
        "sharding_constraint" => ShardingKind::Constraint,
        "full_to_shard" => ShardingKind::FullToShard,
        _ => ShardingKind::ShardToFull,
    };
    Ok(Op::Sharding(ShardingOp { kind, mesh, spec }))
}

/// The function itself is no part of a text: it must be alive in this process.
fn read_callback(name: &str, p: &mut Params<'_, '_>) -> Result<Op> {
    let (start, id) = p.keyed("id", |reader| Ok((reader.at, reader.number()?)))?;
    let Some(f) = HostFn::with_id(id) else {
        let text = format!(
            "there is no function {id}: a text with callbacks can be read only by the process that \
             wrote it, and while they are in use"
        );
        return Err(p.reader.fault(start, &text));
    };
    let mut vmap = VmapMethod::Sequential;
    if name != "debug_callback" {
        let (start, method) = p.keyed("vmap", |reader| Ok((reader.at, reader.word())))?;
        vmap = match method {
            "sequential" => VmapMethod::Sequential,
            "expand_dims" => VmapMethod::ExpandDims,
            "broadcast_all" => VmapMethod::BroadcastAll,
            other => {
                let text = format!("expected a method of vmap, found `{other}`");
                return Err(p.reader.fault(start, &text));
            }
        };
    }
    let kind = match name {
        "pure_callback" => CallbackKind::Pure(vmap),
        "io_callback" => CallbackKind::Io { ordered: p.flag("ordered"), vmap },
        _ => CallbackKind::Debug { ordered: p.flag("ordered") },
    };
    let token = p.flag("token");
    let results = p.results.iter().skip(usize::from(token)).map(|ty| (*ty).clone()).collect();
    Ok(Op::Callback(CallbackOp { f, results, kind, token }))
}

fn read_policy(p: &mut Params<'_, '_>) -> Result<RematPolicy> {
    let (start, word) = p.keyed("policy", |reader| Ok((reader.at, reader.word())))?;
    let names =
        |p: &mut Params<'_, '_>| p.keyed("names", |reader| reader.list("(", ")", Reader::name));
    Ok(match word {
        "nothing_saveable" => RematPolicy::NothingSaveable,
        "everything_saveable" => RematPolicy::EverythingSaveable,
        "dots_saveable" => RematPolicy::DotsSaveable,
        "dots_with_no_batch_dims_saveable" => RematPolicy::DotsWithNoBatchDimsSaveable,
        "save_only_these_names" => RematPolicy::SaveOnlyTheseNames(names(p)?),
        "save_anything_except_these_names" => RematPolicy::SaveAnythingExceptTheseNames(names(p)?),
        other => {
            let text = format!("expected a policy of checkpoint, found `{other}`");
            return Err(p.reader.fault(start, &text));
        }
    })
}

fn of_name<T: Copy>(all: &[T], name_of: fn(T) -> &'static str, name: &str) -> T {
    *all.iter().find(|&&op| name_of(op) == name).expect("a form has the names of its family")
}

fn read_conv(p: &mut Params<'_, '_>) -> Result<Op> {
    let (lhs_spec, rhs_spec, out_spec) = (p.axes("lhs")?, p.axes("rhs")?, p.axes("out")?);
    let strides = p.axes("strides")?;
    let padding = p.keyed("padding", |reader| {
        let pairs = reader.list("(", ")", |reader| {
            let low = reader.number()?;
            reader.expect(":")?;
            Ok((low, reader.number()?))
        });
        Ok(SmallVec::from_vec(pairs?))
    })?;
    let ones: Axes = strides.iter().map(|_| 1).collect();
    let (lhs_dilation, rhs_dilation) =
        if p.has("dilation") { p.pair("dilation")? } else { (ones.clone(), ones) };
    Ok(Op::Conv(ConvDims {
        lhs_spec,
        rhs_spec,
        out_spec,
        strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        feature_groups: p.number_or("feature_groups", 1)?,
        batch_groups: p.number_or("batch_groups", 1)?,
        precision: p.precision()?,
    }))
}

/// The operation `name`, at offset `at`.
pub(super) fn op(at: usize, name: &str, mut params: Params<'_, '_>) -> Result<Op> {
    let Some(form) = FORMS.iter().find(|form| (form.names)().contains(&name)) else {
        let names = FORMS.iter().flat_map(|form| (form.names)());
        let begins = |other: &str| name.starts_with(other) || other.starts_with(name);
        let nearest = names.map(|other| (levenshtein(name, other), !begins(other), other)).min();
        let hint = match nearest {
            Some((d, _, other)) if d <= 1 + name.len() / 3 => format!("; did you mean `{other}`?"),
            _ => String::new(),
        };
        let text = format!("expected an operation, found `{name}`{hint}");
        return Err(params.reader.fault(at, &text));
    };
    let op = (form.read)(name, &mut params)?;
    params.finish(name)?;
    Ok(op)
}

type Bodies<'t> = Vec<(usize, &'t str, Arc<Program>)>;

/// Parameters in an operation's brackets, read from left to right, and the Programs below it.
pub(super) struct Params<'t, 'r> {
    reader: Reader<'t>,
    results: &'r [&'r TensorType],
    bodies: std::iter::Peekable<std::vec::IntoIter<(usize, &'t str, Arc<Program>)>>,
}

impl<'t, 'r> Params<'t, 'r> {
    pub(super) fn new(
        reader: &Reader<'t>,
        (start, end): (usize, usize),
        results: &'r [&'r TensorType],
        bodies: Bodies<'t>,
    ) -> Params<'t, 'r> {
        Params { reader: reader.part(start, end), results, bodies: bodies.into_iter().peekable() }
    }

    /// The value after `key=`.
    fn keyed<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&mut Reader<'t>) -> Result<T>,
    ) -> Result<T> {
        self.reader.skip_blanks();
        if !self.has(key) {
            return Err(self.reader.expected(&format!("`{key}=`")));
        }
        self.reader.expect(key)?;
        self.reader.expect("=")?;
        read(&mut self.reader)
    }

    /// Returns true if `key=` comes next.
    fn has(&mut self, key: &str) -> bool {
        self.reader.skip_blanks();
        let start = self.reader.at;
        let here = self.reader.word() == key && self.reader.peek() == Some('=');
        self.reader.at = start;
        here
    }

    /// Returns true if the word `name` comes next, and then reads it.
    fn flag(&mut self, name: &str) -> bool {
        self.reader.skip_blanks();
        let start = self.reader.at;
        let here = self.reader.word() == name && self.reader.peek() != Some('=');
        if !here {
            self.reader.at = start;
        }
        here
    }

    /// Reads the word `yes` or `no`, and returns true if it is `yes`.
    fn either(&mut self, yes: &str, no: &str) -> Result<bool> {
        let found = self.flag(yes);
        if !found && !self.flag(no) {
            return Err(self.reader.expected(&format!("`{yes}` or `{no}`")));
        }
        Ok(found)
    }

    fn number(&mut self, key: &str) -> Result<usize> {
        self.keyed(key, Reader::number)
    }

    fn number_or(&mut self, key: &str, default: usize) -> Result<usize> {
        if self.has(key) { self.number(key) } else { Ok(default) }
    }

    /// `2/3`.
    fn numbers(&mut self, key: &str) -> Result<(usize, usize)> {
        self.keyed(key, |reader| {
            let first = reader.number()?;
            reader.expect("/")?;
            Ok((first, reader.number()?))
        })
    }

    fn axes(&mut self, key: &str) -> Result<Axes> {
        self.keyed(key, axes)
    }

    /// The list, or `count` times `default` if it is left out.
    fn axes_or(&mut self, key: &str, default: usize, count: usize) -> Result<Axes> {
        if self.has(key) { self.axes(key) } else { Ok(Axes::from_elem(default, count)) }
    }

    fn amounts(&mut self, key: &str) -> Result<Amounts> {
        self.keyed(key, |reader| Ok(Amounts::from_vec(reader.list("(", ")", Reader::number)?)))
    }

    /// `(0,1)/(2,3)`.
    fn pair(&mut self, key: &str) -> Result<(Axes, Axes)> {
        self.keyed(key, |reader| {
            let first = axes(reader)?;
            reader.expect("/")?;
            Ok((first, axes(reader)?))
        })
    }

    fn shape(&mut self, key: &str) -> Result<Shape> {
        self.keyed(key, Reader::shape)
    }

    fn dtype(&mut self, key: &str) -> Result<DType> {
        self.keyed(key, Reader::dtype)
    }

    /// `precision=highest`, if it is there.
    fn precision(&mut self) -> Result<Precision> {
        if !self.has("precision") {
            return Ok(Precision::Default);
        }
        let (start, word) = self.keyed("precision", |reader| Ok((reader.at, reader.word())))?;
        Precision::ALL.into_iter().find(|p| p.name() == word).ok_or_else(|| {
            let text = format!("expected default, high or highest, found `{word}`");
            self.reader.fault(start, &text)
        })
    }

    fn literal(&mut self) -> Result<Literal> {
        self.reader.skip_blanks();
        self.reader.literal()
    }

    /// The type of the one result.
    fn result_type(&self) -> Result<TensorType> {
        match self.results {
            [ty] => Ok((*ty).clone()),
            _ => Err(self.reader.fault(self.reader.at, "expected one result")),
        }
    }

    fn has_body(&mut self) -> bool {
        self.bodies.peek().is_some()
    }

    /// The next Program below, which must have this label.
    fn body(&mut self, label: &str) -> Result<Arc<Program>> {
        match self.bodies.next() {
            Some((_, found, body)) if found == label => Ok(body),
            Some((at, found, _)) => Err(self.misplaced(at, &format!("`{label}:`"), found)),
            None => {
                let text = format!("expected `{label}: {{` with a Program below this equation");
                Err(self.reader.fault(self.reader.at, &text))
            }
        }
    }

    fn misplaced(&self, at: usize, expected: &str, found: &str) -> Error {
        self.reader.fault(at, &format!("expected {expected}, found `{found}:`"))
    }

    /// Fails if parameters are left.
    fn finish(mut self, name: &str) -> Result<()> {
        self.reader.skip_blanks();
        if self.reader.peek().is_some() {
            return Err(self.reader.expected(&format!("no more parameters of {name}")));
        }
        match self.bodies.next() {
            Some((at, found, _)) => Err(self.misplaced(at, "the next equation", found)),
            None => Ok(()),
        }
    }
}

fn axes(reader: &mut Reader<'_>) -> Result<Axes> {
    Ok(Axes::from_vec(reader.list("(", ")", Reader::number)?))
}
