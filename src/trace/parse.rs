//! Parser of Program text: [`Program::parse`] takes the text that [`Program`] prints, in every
//! form.
//!
//! A line is an equation: results with their types, `=`, the operation, its parameters in
//! brackets, its operands. Lines of the form `body: { lambda ...` below it are the Programs inside.
//! From `#` on a line is a comment. Every equation is checked as it is read, so that a message
//! points to a place in the text.

mod literal;
mod ops;
mod reader;

use std::collections::HashSet;
use std::panic::Location;
use std::sync::Arc;

use self::ops::Params;
use self::reader::Reader;
use super::check;
use super::literal::Literal;
use super::op::Op;
use super::print::bare_dtype;
use super::program::{Equation, Program, Var, Vars};
use super::types::{DType, TensorType};
use crate::error::{Error, Loc, Result};

/// The most variables of a text, Programs inside included.
const MAX_VARIABLES: u32 = 1 << 22;
/// The most Programs inside of each other.
const MAX_DEPTH: usize = 64;

impl Program {
    /// Parses the text of a Program: one printed with `{}` or `{:#}`, or
    /// [`Program::text_with_lines`].
    ///
    /// The text of [`Program::to_text`] gives an equal Program. In the shorter text constants have
    /// no names; each use of one becomes a constant of its own. The line of every equation is that
    /// of the call.
    ///
    /// ```
    /// use podracer::jit::run_program;
    /// use podracer::{Array, Mode, Program};
    /// # fn main() -> podracer::Result<()> {
    /// let program = Program::parse(
    ///     "{ lambda a:f32[2] b:f32[2]. let
    ///          c:f32[2] = mul a 2:f32[2]
    ///          d:f32[2] = add c b        # a comment
    ///        in (d) }",
    /// )?;
    /// let inputs = [Array::from([1.0f32, 2.0]), Array::from([0.5f32, -0.5])];
    /// let results = run_program(&program, &inputs, Mode::Interpret)?;
    /// assert_eq!(results[0].to_vec::<f32>()?, [2.5, 3.5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] with line, column, the text expected there and
    /// the text found, if the text is not that of a well-formed Program.
    #[track_caller]
    pub fn parse(text: &str) -> Result<Program> {
        let mut reader = Reader::new(text, "Program text");
        let at = Location::caller();
        let program = parse_program(&mut reader, at, 0)?;
        reader.skip_lines();
        reader.ensure_end()?;
        Ok(program)
    }
}

impl Literal {
    /// The literal of a text: `f32[3] [1, 2.5, -0]`, or `f32[3] 2` with one element for all, or the
    /// digits of the elements' bits after `0x`. Text printed with `{:#}` reads back bit for bit.
    ///
    /// ```
    /// use podracer::Literal;
    /// assert_eq!(Literal::parse("f32[3] [1, 2.5, -0]")?, Literal::from([1.0f32, 2.5, -0.0]));
    /// # Ok::<(), podracer::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] with line and column, if it is not such a text.
    pub fn parse(text: &str) -> Result<Literal> {
        let mut reader = Reader::new(text, "literal");
        reader.skip_lines();
        let literal = reader.literal()?;
        reader.skip_lines();
        reader.ensure_end()?;
        Ok(literal)
    }
}

/// An operand as it stands in the text.
enum Operand {
    Var(Var),
    Constant(Literal),
    /// A scalar at this offset of the text, whose type the equation determines.
    Bare(usize),
}

/// A Program in the making.
#[derive(Default)]
struct Body {
    program: Program,
    /// The variables that the text names.
    named: HashSet<Var>,
    /// Types of the constants that the text does not name. Until all names are known, variables
    /// from the end of the range represent them.
    unnamed: Vec<TensorType>,
}

/// The variable of unnamed constant `i`.
fn stand_in(i: usize) -> Var {
    Var(u32::MAX - i as u32)
}

impl Body {
    fn define(&mut self, reader: &Reader<'_>, at: usize, var: Var, ty: TensorType) -> Result<()> {
        if !self.named.insert(var) {
            return Err(reader.fault(at, "this variable is defined twice"));
        }
        let types = &mut self.program.types;
        if types.len() <= var.index() {
            if !reader.count_variables(var.index() + 1 - types.len()) {
                return Err(too_many_variables(reader, at));
            }
            types.resize(var.index() + 1, TensorType::scalar(DType::Bool));
        }
        types[var.index()] = ty;
        Ok(())
    }

    fn constant(&mut self, literal: Literal, at: Loc) -> Var {
        let var = stand_in(self.unnamed.len());
        self.unnamed.push(literal.ty().clone());
        self.program.equations.push(Equation {
            op: Op::Constant(literal),
            inputs: Vars::new(),
            outputs: Vars::from_slice(&[var]),
            at,
        });
        var
    }

    /// Gives the unnamed constants the numbers that no name has taken.
    fn finish(mut self) -> Program {
        let named = std::mem::take(&mut self.named);
        let mut free = (0..).map(Var).filter(|var| !named.contains(var));
        let mut given = Vec::with_capacity(self.unnamed.len());
        for ty in self.unnamed {
            let var = free.next().expect("numbers do not end");
            let types = &mut self.program.types;
            if types.len() <= var.index() {
                types.resize(var.index() + 1, TensorType::scalar(DType::Bool));
            }
            types[var.index()] = ty;
            given.push(var);
        }
        let replace = |var: &mut Var| {
            if let Some(&new) = given.get((u32::MAX - var.0) as usize) {
                *var = new;
            }
        };
        for equation in &mut self.program.equations {
            equation.inputs.iter_mut().chain(&mut equation.outputs).for_each(replace);
        }
        self.program.outputs.iter_mut().for_each(replace);
        self.program
    }

    fn ty(&self, var: Var) -> &TensorType {
        match self.unnamed.get((u32::MAX - var.0) as usize) {
            Some(ty) => ty,
            None => self.program.ty(var),
        }
    }
}

fn parse_program(reader: &mut Reader<'_>, at: Loc, depth: usize) -> Result<Program> {
    reader.skip_lines();
    if depth > MAX_DEPTH {
        return Err(
            reader.fault(reader.at, &format!("more than {MAX_DEPTH} Programs in one another"))
        );
    }
    let mut body = Body::default();
    reader.expect("{")?;
    reader.skip_lines();
    reader.expect("lambda")?;
    loop {
        reader.skip_lines();
        if reader.eat(".") {
            break;
        }
        let start = reader.at;
        let (var, ty) = typed_name(reader, "an input, as in `a:f32[2]`, or `.`")?;
        body.define(reader, start, var, ty)?;
        body.program.inputs.push(var);
    }
    reader.skip_lines();
    reader.expect("let")?;
    loop {
        reader.skip_lines();
        if reader.eat_in() {
            break;
        }
        equation(reader, &mut body, at, depth)?;
    }
    reader.skip_lines();
    while !reader.eat(")") {
        let start = reader.at;
        let var = match operand(reader, "a result or `)`")? {
            Operand::Var(var) if body.named.contains(&var) => var,
            Operand::Var(_) => return Err(undefined(reader, start)),
            Operand::Constant(literal) => body.constant(literal, at),
            Operand::Bare(_) => {
                return Err(reader.fault(start, "a constant result has a type, as in `0:f32[]`"));
            }
        };
        body.program.outputs.push(var);
        reader.skip_lines();
        if !reader.eat(",") && reader.peek() != Some(')') {
            return Err(reader.expected("`,` or `)`"));
        }
        reader.skip_lines();
    }
    reader.skip_lines();
    reader.expect("}")?;
    Ok(body.finish())
}

fn undefined(reader: &Reader<'_>, at: usize) -> crate::error::Error {
    reader.fault(at, "this variable is not defined above")
}

/// `a:f32[2]`.
fn typed_name(reader: &mut Reader<'_>, what: &str) -> Result<(Var, TensorType)> {
    let var = variable(reader, what)?;
    reader.expect(":")?;
    Ok((var, reader.tensor_type()?))
}

/// A variable by its name: `a`, ..., `z`, `ba`, ...: a number in the digits a to z.
fn variable(reader: &mut Reader<'_>, what: &str) -> Result<Var> {
    let start = reader.at;
    let name = reader.letters();
    if name.is_empty() {
        return Err(reader.expected(what));
    }
    if name.len() > 1 && name.starts_with('a') {
        return Err(reader.fault(start, "no name of several letters begins with `a`"));
    }
    let number = name.bytes().try_fold(0u32, |n, letter| {
        n.checked_mul(26)?.checked_add((letter - b'a') as u32).filter(|&n| n < MAX_VARIABLES)
    });
    match number {
        Some(number) => Ok(Var(number)),
        None => Err(too_many_variables(reader, start)),
    }
}

fn too_many_variables(reader: &Reader<'_>, at: usize) -> Error {
    let problem = format!(
        "this name makes more than {MAX_VARIABLES} variables, all names before it in the order \
         a, b, .., z, ba, bb, .. counted"
    );
    reader.fault(at, &problem)
}

/// `a`, `2:f32[3]`, `2`, or `inf:f32[]`.
fn operand(reader: &mut Reader<'_>, what: &str) -> Result<Operand> {
    let start = reader.at;
    if reader.letters().is_empty() || reader.peek() == Some(':') {
        reader.at = start;
        if !reader.skip_number() {
            return Err(reader.expected(what));
        }
        let value_end = reader.at;
        if !reader.eat(":") {
            return Ok(Operand::Bare(start));
        }
        let ty = reader.tensor_type()?;
        let end = std::mem::replace(&mut reader.at, start);
        let literal = reader.element(ty)?;
        if reader.at != value_end {
            return Err(reader.expected("`:`"));
        }
        reader.at = end;
        return Ok(Operand::Constant(literal));
    }
    reader.at = start;
    Ok(Operand::Var(variable(reader, what)?))
}

fn equation(reader: &mut Reader<'_>, body: &mut Body, at: Loc, depth: usize) -> Result<()> {
    let mut results: Vec<(usize, Var, TensorType)> = Vec::new();
    while !reader.eat("=") {
        let start = reader.at;
        let (var, ty) = typed_name(reader, "an equation, as in `b:f32[2] = sin a`, or `in (`")?;
        results.push((start, var, ty));
        reader.skip_blanks();
    }
    reader.skip_blanks();
    let op_at = reader.at;
    let name = reader.word();
    if name.is_empty() {
        return Err(reader.expected("an operation"));
    }
    let after_name = reader.at;
    let params = reader.bracketed()?.unwrap_or((after_name, after_name));
    let mut operands = Vec::new();
    loop {
        reader.skip_blanks();
        if reader.at_line_end() {
            break;
        }
        let start = reader.at;
        operands.push((start, operand(reader, "an operand")?));
    }
    let mut bodies = Vec::new();
    while let Some((start, label)) = reader.label() {
        bodies.push((start, label, Arc::new(parse_program(reader, at, depth + 1)?)));
    }
    let types: Vec<&TensorType> = results.iter().map(|(_, _, ty)| ty).collect();
    let op = ops::op(op_at, name, Params::new(reader, params, &types, bodies))?;

    let dtypes: Vec<Option<DType>> = operands
        .iter()
        .map(|(start, operand)| match operand {
            Operand::Var(var) if body.named.contains(var) => Ok(Some(body.ty(*var).dtype)),
            Operand::Var(_) => Err(undefined(reader, *start)),
            Operand::Constant(literal) if literal.ty().rank() > 0 => Ok(Some(literal.ty().dtype)),
            Operand::Constant(_) | Operand::Bare(_) => Ok(None),
        })
        .collect::<Result<_>>()?;
    let mut inputs = Vars::new();
    for (i, (_, operand)) in operands.into_iter().enumerate() {
        inputs.push(match operand {
            Operand::Var(var) => var,
            Operand::Constant(literal) => body.constant(literal, at),
            Operand::Bare(start) => {
                let dtype = bare_dtype(&op, i, &dtypes, types.first().map(|ty| ty.dtype));
                let Some(dtype) = dtype else {
                    return Err(reader.fault(start, "write the type, as in `2:i32[]`"));
                };
                let literal = reader.element_at(start, TensorType::scalar(dtype))?;
                body.constant(literal, at)
            }
        });
    }
    let operand_types: Vec<&TensorType> = inputs.iter().map(|&var| body.ty(var)).collect();
    let inferred = check::infer(&op, &operand_types)
        .map_err(|problem| reader.fault(op_at, &format!("{name}: {}", problem.text)))?;
    if inferred.len() != results.len() {
        let (gives, has) = (inferred.len(), results.len());
        let text = format!("{name} gives {gives} result(s), and the text has {has}");
        return Err(reader.fault(op_at, &text));
    }
    let mut outputs = Vars::new();
    for ((start, var, ty), inferred) in results.into_iter().zip(inferred) {
        if ty != inferred {
            return Err(reader.fault(start, &format!("{name} gives {inferred}, not {ty}")));
        }
        body.define(reader, start, var, ty)?;
        outputs.push(var);
    }
    body.program.equations.push(Equation { op, inputs, outputs, at });
    Ok(())
}
