//! [`Tensor`], the traced value, and `bind`, the only place where an [`Equation`] is born.
//!
//! Tracing happens on a stack of frames, one per thread. A frame collects one [`Program`]. An
//! operand that belongs to a frame further down is *captured*: it becomes one more input of the
//! Program, and is passed in where the Program is used. So a closure may use any tensor of the
//! traces around it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;

use super::axis::Axis;
use super::check;
use super::op::Op;
use super::program::{Equation, Program, Var, Vars};
use super::types::{DType, Shape, TensorType};
use crate::error::{self, Loc, OperandNote, Origin, TraceError, fail};
use crate::tree::{Leaf, Path, Tree};

pub(crate) use podracer_derive::op;

/// A traced value: the name of a value that a compiled function will have.
///
/// It is `Copy` and a few bytes; its type is kept in the trace. Arithmetic is here, values are
/// not: there is no way to ask a `Tensor` for its elements, and none to branch on them but
/// [`where_`](crate::trace::ops::where_), [`cond`](crate::trace::control::cond) and the loops.
#[derive(Clone, Copy)]
pub struct Tensor {
    trace: u32,
    var: Var,
    at: Loc,
}

impl Leaf for Tensor {}

/// Rule by which a frame takes equations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameKind {
    /// It takes every equation bound while it is on top.
    Body,
    /// It takes equations with at least one operand of its own; others fall to the frame below.
    /// So a derivative traced in it splits by itself into a linear part, here, and the values
    /// that part needs, below.
    Linear,
}

struct Frame {
    id: u32,
    kind: FrameKind,
    program: Program,
    /// The line that made each variable.
    made_at: Vec<Loc>,
    captured: HashMap<(u32, Var), Var>,
    captures: Vec<Tensor>,
    /// Paths of the leaves of the argument, for messages; none if there is one leaf.
    paths: Vec<String>,
}

#[derive(Default)]
struct Stack {
    frames: Vec<Frame>,
    /// The line that rules bind at: that of the equation being transformed.
    line: Option<Loc>,
    /// The public function that is running, where it binds several operations.
    function: Option<&'static str>,
    /// Enclosing transformations, outermost first.
    notes: Vec<(&'static str, Loc)>,
    /// The named axes whose closures are running.
    axes: Vec<Axis>,
}

thread_local! {
    static STACK: RefCell<Stack> = RefCell::default();
}

/// Ends the trace with an error of `op` that concerns no operand.
#[track_caller]
pub(crate) fn fail_op(op: &str, problem: impl Into<String>) -> ! {
    fail_operands(op, problem, &[])
}

/// Ends the trace with an error of `op` that names the lines where `operands` were made.
#[track_caller]
pub(crate) fn fail_operands(
    op: &str,
    problem: impl Into<String>,
    operands: &[(&str, Tensor)],
) -> ! {
    let at = current_line(Location::caller());
    let operands = operands
        .iter()
        .filter(|(_, operand)| operand.at != at)
        .map(|&(name, operand)| operand.note(name.into()))
        .collect();
    let op = STACK.with_borrow(|stack| stack.function.unwrap_or(op).to_string());
    fail(TraceError { op, problem: problem.into(), at, operands, frames: notes() })
}

/// Keeps the name of a public function in messages until it is dropped; see [`function`].
pub(crate) struct FunctionScope(bool);

/// Names the public function of the library that is running: errors of the operations that it
/// binds carry its name and not theirs. The outermost function counts. `#[op]` calls it.
pub(crate) fn function(name: &'static str) -> FunctionScope {
    STACK.with_borrow_mut(|stack| {
        let outermost = stack.function.is_none();
        stack.function.get_or_insert(name);
        FunctionScope(outermost)
    })
}

impl Drop for FunctionScope {
    fn drop(&mut self) {
        if self.0 {
            STACK.with_borrow_mut(|stack| stack.function = None);
        }
    }
}

/// The enclosing transformations, innermost first.
fn notes() -> Vec<(String, Loc)> {
    STACK.with_borrow(|stack| {
        stack.notes.iter().rev().map(|&(name, at)| (name.to_string(), at)).collect()
    })
}

fn current_line(caller: Loc) -> Loc {
    STACK.with_borrow(|stack| stack.line.unwrap_or(caller))
}

/// Restores the stack when a trace ends, however it ends. Its functions do not depend on the closure
/// that runs meanwhile, so that they are compiled once.
pub(crate) struct Restore {
    frames: usize,
    notes: usize,
    axes: usize,
    line: Option<Loc>,
    function: Option<&'static str>,
}

impl Restore {
    fn new() -> Restore {
        Restore::after(|_| ())
    }

    /// Changes the stack until the value is dropped.
    fn after(change: impl FnOnce(&mut Stack)) -> Restore {
        STACK.with_borrow_mut(|stack| {
            let restore = Restore {
                frames: stack.frames.len(),
                notes: stack.notes.len(),
                axes: stack.axes.len(),
                line: stack.line,
                function: stack.function,
            };
            change(stack);
            restore
        })
    }

    /// Enters a transformation.
    fn within(name: &'static str, at: Loc) -> Restore {
        Restore::after(|stack| stack.notes.push((name, at)))
    }

    /// Brings `axis` into scope.
    fn within_axis(axis: Axis) -> Restore {
        Restore::after(|stack| stack.axes.push(axis))
    }

    /// Sets the line that every equation is bound at.
    fn at_line(at: Loc) -> Restore {
        Restore::after(|stack| stack.line = Some(at))
    }

    /// Binds equations at the lines that call for them.
    fn at_own_lines() -> Restore {
        Restore::after(|stack| (stack.line, stack.function) = (None, None))
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        STACK.with_borrow_mut(|stack| {
            stack.frames.truncate(self.frames);
            stack.notes.truncate(self.notes);
            stack.axes.truncate(self.axes);
            stack.line = self.line;
            stack.function = self.function;
        });
    }
}

/// Runs `f` as the outermost boundary of a trace: an error inside comes back as `Err`.
pub(crate) fn catch<R>(f: impl FnOnce() -> R) -> Result<R, Box<TraceError>> {
    let _restore = Restore::new();
    error::catch(f)
}

/// Runs `f` inside a transformation called `name`, which messages will mention.
pub(crate) fn within<R>(name: &'static str, at: Loc, f: impl FnOnce() -> R) -> R {
    let _restore = Restore::within(name, at);
    f()
}

/// Runs `f` with `axis` in scope.
pub(crate) fn within_axis<R>(axis: Axis, f: impl FnOnce() -> R) -> R {
    let _restore = Restore::within_axis(axis);
    f()
}

/// Runs `f` with all of `axes` in scope.
pub(crate) fn within_axes<R>(axes: &[Axis], f: impl FnOnce() -> R) -> R {
    let _restore = Restore::after(|stack| stack.axes.extend_from_slice(axes));
    f()
}

/// The axes in scope, outermost first.
pub(crate) fn axes_in_scope() -> Vec<Axis> {
    STACK.with_borrow(|stack| stack.axes.clone())
}

/// Returns true if `axis` is in scope.
pub(crate) fn in_scope(axis: Axis) -> bool {
    STACK.with_borrow(|stack| stack.axes.contains(&axis))
}

/// Runs `f` with every equation bound at the line `at`.
pub(crate) fn at_line<R>(at: Loc, f: impl FnOnce() -> R) -> R {
    let _restore = Restore::at_line(at);
    f()
}

/// Binds every equation at the caller's line until the value is dropped: `#[op(at_line)]` calls it.
/// The outermost line counts.
#[track_caller]
pub(crate) fn at_callers_line() -> Restore {
    Restore::at_line(current_line(Location::caller()))
}

/// Runs `f` with every equation bound at the line that called for it, as the user's own code.
fn at_own_lines<R>(f: impl FnOnce() -> R) -> R {
    let _restore = Restore::at_own_lines();
    f()
}

/// A Program traced in a frame of its own.
#[derive(Clone)]
pub(crate) struct Traced {
    /// Its inputs are the arguments, then the captures.
    pub program: Program,
    /// Tensors of the frames around that it uses.
    pub captures: Vec<Tensor>,
}

/// Traces `f` over arguments of the given types in a new frame. `f` returns its results.
pub(crate) fn trace_frame<R>(
    kind: FrameKind,
    types: &[TensorType],
    at: Loc,
    f: impl FnOnce(&[Tensor]) -> (Vec<Tensor>, R),
) -> (Traced, R) {
    let restore = Restore::new();
    let args = open_frame(kind, types, at);
    let (outputs, extra) = f(&args);
    let traced = close_frame(&outputs, at);
    drop(restore);
    (traced, extra)
}

/// Pushes a frame with inputs of these types, and returns them.
fn open_frame(kind: FrameKind, types: &[TensorType], at: Loc) -> Vec<Tensor> {
    // Shared by all threads, so that a tensor is never mistaken for one of another thread's trace.
    static NEXT_ID: AtomicU32 = AtomicU32::new(0);
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let args = STACK.with_borrow_mut(|stack| {
        let mut frame = Frame {
            id,
            kind,
            program: Program::default(),
            made_at: Vec::new(),
            captured: HashMap::new(),
            captures: Vec::new(),
            paths: Vec::new(),
        };
        let args = types.iter().map(|ty| frame.add_input(ty.clone(), at)).collect();
        stack.frames.push(frame);
        args
    });
    if let Some(problem) = types.iter().find_map(|ty| ty.ensure_addressable().err()) {
        at_line(at, || fail_op("argument", problem));
    }
    args
}

/// Names the inputs of the frame that [`open_frame`] pushed.
fn set_paths(paths: Vec<String>) {
    STACK.with_borrow_mut(|stack| {
        stack.frames.last_mut().expect("the frame pushed by open_frame").paths = paths;
    });
}

/// Pops the frame that [`open_frame`] pushed.
fn close_frame(outputs: &[Tensor], at: Loc) -> Traced {
    let frame = STACK.with_borrow_mut(|stack| {
        let index = stack.frames.len() - 1;
        let outputs: Vec<Var> =
            outputs.iter().map(|&output| stack.resolve(index, output, "output", at)).collect();
        let mut frame = stack.frames.pop().expect("the frame pushed by open_frame");
        frame.program.outputs = outputs;
        frame
    });
    Traced { program: frame.program, captures: frame.captures }
}

/// [`trace_frame`] for the user's closure over a tree: lines are the user's own.
pub(crate) fn trace_tree<A: Tree<Tensor>, B: Tree<Tensor>>(
    name: &'static str,
    at: Loc,
    example: &A::With<TensorType>,
    f: impl FnOnce(A) -> B,
) -> (Traced, B) {
    let types: Vec<TensorType> = crate::tree::leaves(example);
    trace_call(
        name,
        at,
        &types,
        paths_of(name, example),
        |args| {
            let mut args = args.iter().copied();
            example.map_leaves_ref(&Path::ROOT, &mut |_, _| args.next().expect("one type a leaf"))
        },
        f,
    )
}

/// Ends the trace where a closure leads back to itself, before the thread's stack overflows: that
/// would end the process.
fn refuse_endless(name: &'static str, at: Loc) {
    const MAX_TRACE_DEPTH: usize = 32;
    let same = |stack: &Stack| stack.notes.iter().filter(|note| **note == (name, at)).count();
    if STACK.with_borrow(same) < MAX_TRACE_DEPTH {
        return;
    }
    let problem = format!(
        "the function calls itself while it is traced, {MAX_TRACE_DEPTH} levels deep: the recursion does not \
         end. Write a loop over traced values as scan or while_loop. The functions of a custom_vjp \
         must not call it; let them compute the value themselves. The rule of a custom_jvp may \
         call its function, with the same captured values"
    );
    let mut frames = notes();
    frames.truncate(1);
    fail(TraceError { op: name.into(), problem, at, operands: vec![], frames })
}

/// Paths of the leaves of an argument, as messages have them: `argument[1].w`, and of a scan's body
/// `carry.w` and `input`. None are needed if there is one leaf.
pub(crate) fn paths_of<T: Leaf, M: Tree<T>>(name: &str, args: &M) -> Vec<String> {
    let paths = crate::tree::paths(args);
    if paths.len() < 2 {
        return Vec::new();
    }
    let path_in_words = |path: String| {
        let path = path.replacen('$', "argument", 1);
        let roots = [("argument[0]", "carry"), ("argument[1]", "input")];
        match roots.into_iter().find_map(|(root, word)| Some((word, path.strip_prefix(root)?))) {
            Some((word, "")) if name == "scan" => format!("the {word}"),
            Some((word, rest)) if name == "scan" => format!("{word}{rest}"),
            _ => path,
        }
    };
    paths.into_iter().map(path_in_words).collect()
}

/// [`trace_tree`] for an argument that `build` makes of its leaves, which have these paths.
pub(crate) fn trace_call<A, B: Tree<Tensor>>(
    name: &'static str,
    at: Loc,
    types: &[TensorType],
    paths: Vec<String>,
    build: impl FnOnce(&[Tensor]) -> A,
    f: impl FnOnce(A) -> B,
) -> (Traced, B) {
    refuse_endless(name, at);
    within(name, at, || {
        trace_frame(FrameKind::Body, types, at, |args| {
            set_paths(paths);
            let argument = build(args);
            let result = at_own_lines(|| f(argument));
            (crate::tree::leaves(&result), result)
        })
    })
}

impl Leaf for TensorType {}

impl Frame {
    fn add_var(&mut self, ty: TensorType, at: Loc) -> Var {
        self.made_at.push(at);
        self.program.add_var(ty)
    }

    fn tensor(&self, var: Var) -> Tensor {
        let at = self.made_at[var.index()];
        Tensor { trace: self.id, var, at }
    }

    fn add_input(&mut self, ty: TensorType, at: Loc) -> Tensor {
        let var = self.add_var(ty, at);
        self.program.inputs.push(var);
        self.tensor(var)
    }
}

impl Stack {
    fn frame_of(&self, tensor: Tensor) -> Option<usize> {
        self.frames.iter().rposition(|frame| frame.id == tensor.trace)
    }

    /// The variable of frame `index` that represents `tensor`, captured if need be.
    fn resolve(&mut self, index: usize, tensor: Tensor, op: &str, at: Loc) -> Var {
        if self.frames[index].id == tensor.trace {
            return tensor.var;
        }
        if let Some(&var) = self.frames[index].captured.get(&(tensor.trace, tensor.var)) {
            return var;
        }
        let Some(owner) = self.frame_of(tensor).filter(|&owner| owner < index) else {
            self.leaked(tensor, op, at)
        };
        let ty = self.frames[owner].program.ty(tensor.var).clone();
        let frame = &mut self.frames[index];
        let input = frame.add_input(ty, tensor.at);
        frame.captured.insert((tensor.trace, tensor.var), input.var);
        frame.captures.push(tensor);
        input.var
    }

    fn fail_outside_a_trace(&self, op: &str, at: Loc) -> ! {
        let problem = "a tensor operation outside a trace; call it inside a function given to \
                       jit, eager or interpret, as in `jit(|x: Tensor| x + 1.0).call(array)?`. \
                       Data on the host is an Array: Array::new, Array::from, Array::zeros";
        let op = self.function.unwrap_or(op).into();
        let problem = problem.into();
        fail(TraceError { op, problem, at, operands: vec![], frames: vec![] });
    }

    fn leaked(&self, tensor: Tensor, op: &str, at: Loc) -> ! {
        fail(TraceError {
            op: self.function.unwrap_or(op).into(),
            problem: "a tensor is used outside the trace that made it; return it from the traced \
                      function as a result instead of storing it elsewhere. Results of a compiled \
                      function are Arrays, which hold values"
                .into(),
            at: self.line.unwrap_or(at),
            operands: vec![OperandNote {
                name: "the tensor".into(),
                at: tensor.at,
                origin: Origin::EndedTrace,
            }],
            frames: self.notes.iter().rev().map(|&(n, at)| (n.to_string(), at)).collect(),
        })
    }
}

/// The results of an equation.
pub(crate) type Tensors = SmallVec<[Tensor; 2]>;

/// Adds the equation `op(inputs)` to the trace and gives its results. Ends the trace with an
/// error if the operands do not fit.
pub(crate) fn bind(op: Op, inputs: &[Tensor], caller: Loc) -> Tensors {
    let outcome = STACK.with_borrow_mut(|stack| {
        let at = stack.line.unwrap_or(caller);
        if stack.frames.is_empty() {
            if let Some(&tensor) = inputs.first() {
                stack.leaked(tensor, op.name(), at);
            }
            stack.fail_outside_a_trace(op.name(), at);
        }
        let mut index = stack.frames.len() - 1;
        while stack.frames[index].kind == FrameKind::Linear {
            let id = stack.frames[index].id;
            if inputs.iter().any(|input| input.trace == id) {
                break;
            }
            if index == 0 {
                stack.fail_outside_a_trace(op.name(), at);
            }
            index -= 1;
        }
        let vars: Vars =
            inputs.iter().map(|&input| stack.resolve(index, input, op.name(), at)).collect();
        let frame = &mut stack.frames[index];
        let inferred = {
            let types: SmallVec<[&TensorType; 4]> =
                vars.iter().map(|&var| frame.program.ty(var)).collect();
            check::infer(&op, &types)
        };
        let types = match inferred {
            Ok(types) => types,
            Err(problem) => return Err((stack.function.unwrap_or(op.name()), problem, at)),
        };
        let outputs: Vars = types.into_iter().map(|ty| frame.add_var(ty, at)).collect();
        let tensors = outputs.iter().map(|&var| frame.tensor(var)).collect();
        frame.program.equations.push(Equation { op, inputs: vars, outputs, at });
        Ok(tensors)
    });
    outcome.unwrap_or_else(|(name, problem, at)| {
        let operands = inputs
            .iter()
            .enumerate()
            .filter(|(i, input)| problem.operands.contains(i) && input.at != at)
            .map(|(i, input)| input.note(operand_name(name, i, inputs.len())))
            .collect();
        fail(TraceError { op: name.into(), problem: problem.text, at, operands, frames: notes() })
    })
}

fn operand_name(op: &str, index: usize, count: usize) -> String {
    match (index, count) {
        (_, 1) => "the operand".into(),
        (1, 2) if op == "dynamic_slice" => "the start".into(),
        (1, 2) if op == "gather" => "the indices".into(),
        (0, 2) if ["dynamic_slice", "gather"].contains(&op) => "the operand".into(),
        (0, 2) => "lhs".into(),
        (1, 2) => "rhs".into(),
        (i, _) => format!("operand {i}"),
    }
}

/// [`bind`] for operations of one result.
pub(crate) fn bind1(op: Op, inputs: &[Tensor], caller: Loc) -> Tensor {
    bind(op, inputs, caller)[0]
}

/// Adds the equations of `program` to the trace, applied to `args`, each at its own line.
pub(crate) fn inline(program: &Program, args: &[Tensor]) -> Vec<Tensor> {
    let mut env: Vec<Option<Tensor>> = vec![None; program.types.len()];
    for (&input, &arg) in program.inputs.iter().zip(args) {
        env[input.index()] = Some(arg);
    }
    let get = |env: &[Option<Tensor>], var: Var| env[var.index()].expect("defined before use");
    for equation in &program.equations {
        let inputs: SmallVec<[Tensor; 4]> =
            equation.inputs.iter().map(|&var| get(&env, var)).collect();
        let outputs = at_line(equation.at, || bind(equation.op.clone(), &inputs, equation.at));
        for (&var, output) in equation.outputs.iter().zip(outputs) {
            env[var.index()] = Some(output);
        }
    }
    program.outputs.iter().map(|&var| get(&env, var)).collect()
}

impl Program {
    /// The results of this Program applied to tensors: its equations become part of the trace. So a
    /// Program can be differentiated, batched or compiled like a closure. JAX's
    /// `jax.core.eval_jaxpr`.
    ///
    /// ```
    /// use podracer::{Array, Program, Tensor, grad, interpret};
    /// # fn main() -> podracer::Result<()> {
    /// let square = Program::parse("{ lambda a:f32[]. let b:f32[] = mul a a\n in (b) }")?;
    /// let slope = interpret(grad(|x: Tensor| square.apply(&[x])[0]));
    /// assert_eq!(slope.call(Array::from(3.0f32))?.item::<f32>()?, 6.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Ends the trace if the Program is not well-formed, or if `args` are not of the types that it
    /// takes.
    #[track_caller]
    pub fn apply(&self, args: &[Tensor]) -> Vec<Tensor> {
        if let Err(fault) = check::verify_computable(self) {
            fail_op("program", format!("the Program is not well-formed: {fault}"));
        }
        let types: Vec<TensorType> = args.iter().map(|arg| arg.ty()).collect();
        if !self.input_types().eq(&types) {
            let list =
                |types: &mut dyn Iterator<Item = String>| types.collect::<Vec<String>>().join(", ");
            let takes = list(&mut self.input_types().map(TensorType::to_string));
            let given = list(&mut types.iter().map(TensorType::to_string));
            fail_op("program", format!("the Program takes ({takes}), and was given ({given})"));
        }
        inline(self, args)
    }
}

impl Tensor {
    #[track_caller]
    fn with_type<R>(self, f: impl FnOnce(&TensorType) -> R) -> R {
        let caller = Location::caller();
        STACK.with_borrow(|stack| match stack.frame_of(self) {
            Some(index) => f(stack.frames[index].program.ty(self.var)),
            None => stack.leaked(self, "tensor", caller),
        })
    }

    /// The type: element type and shape.
    #[track_caller]
    pub fn ty(self) -> TensorType {
        self.with_type(TensorType::clone)
    }

    /// The sizes of the axes.
    #[track_caller]
    pub fn shape(self) -> Shape {
        self.with_type(|ty| ty.shape.clone())
    }

    /// The type of the elements.
    #[track_caller]
    pub fn dtype(self) -> DType {
        self.with_type(|ty| ty.dtype)
    }

    /// Number of axes.
    #[track_caller]
    pub fn rank(self) -> usize {
        self.with_type(TensorType::rank)
    }

    /// Number of elements.
    #[track_caller]
    pub fn numel(self) -> usize {
        self.with_type(TensorType::numel)
    }

    /// Identity of the tensor: its trace and variable.
    pub(crate) fn id(self) -> (u32, Var) {
        (self.trace, self.var)
    }

    /// The line that made it.
    pub(crate) fn made_at(self) -> Loc {
        self.at
    }

    /// The origin of this tensor, for a message that calls it `name`.
    fn note(self, name: String) -> OperandNote {
        let origin = STACK.with_borrow(|stack| {
            let Some(index) = stack.frame_of(self) else { return Origin::EndedTrace };
            let Frame { program, captures, paths, .. } = &stack.frames[index];
            match program.equations.iter().find(|e| e.outputs.contains(&self.var)) {
                Some(equation) => Origin::Op(equation.op.name().into()),
                None => {
                    let leaf = program.inputs.iter().position(|var| *var == self.var).unwrap_or(0);
                    let leaves = program.inputs.len() - captures.len();
                    Origin::Argument { leaf, leaves, path: paths.get(leaf).cloned() }
                }
            }
        });
        OperandNote { name, at: self.at, origin }
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        STACK.with_borrow(|stack| match stack.frame_of(*self) {
            Some(index) => write!(f, "Tensor({})", stack.frames[index].program.ty(self.var)),
            None => write!(f, "Tensor(of a trace that has ended, made at {})", self.at),
        })
    }
}
