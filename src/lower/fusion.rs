//! Equations of a Program that one native function computes together: layers of networks.
//!
//! [`Fusion`] finds them before the Program is written as text. Each equation has at most one [`Role`] in
//! one [`ConvLayer`]; an equation without one is written as the operation that it is.

mod conv;

use std::collections::HashMap;

pub use self::conv::ConvLayer;
use crate::trace::program::{Equation, Program, Var};

/// The layers of a Program, by the variables that their equations define.
pub struct Fusion<'a> {
    roles: HashMap<Var, Role<'a>>,
}

/// Role of an equation in a layer.
#[derive(Clone, Copy)]
pub enum Role<'a> {
    /// Its result is used inside the layer alone.
    Absorbed,
    /// Its result is the layer's.
    Result(ConvLayer<'a>),
    /// The comparison of the sum with zero, for the ReLU and its derivative. The result's, which
    /// is positive in the same places, gives the same.
    Mask(ConvLayer<'a>),
}

impl<'a> Fusion<'a> {
    /// Finds the layers of a Program without those of its sub-Programs. `conv_threads`: threads for
    /// oneDNN's convolutions, 0 for none of them.
    pub fn of(program: &'a Program, conv_threads: usize) -> Fusion<'a> {
        let mut roles = HashMap::new();
        if conv_threads > 0 {
            conv::add_roles(program, conv_threads, &mut roles);
        }
        Fusion { roles }
    }

    /// The role of an equation, if it is part of a layer.
    pub fn role(&self, equation: &Equation) -> Option<Role<'a>> {
        self.roles.get(equation.outputs.first()?).copied()
    }
}

/// The equations of a Program around its variables.
struct Graph<'a> {
    program: &'a Program,
    /// The equation that defines each variable.
    maker: Vec<Option<&'a Equation>>,
    /// The equations that use each variable, once for each operand.
    users: Vec<Vec<&'a Equation>>,
    is_output: Vec<bool>,
}

impl<'a> Graph<'a> {
    fn of(program: &'a Program) -> Graph<'a> {
        let count = program.types.len();
        let (mut maker, mut users) = (vec![None; count], vec![Vec::new(); count]);
        let mut is_output = vec![false; count];
        for equation in &program.equations {
            equation.outputs.iter().for_each(|var| maker[var.index()] = Some(equation));
            equation.inputs.iter().for_each(|var| users[var.index()].push(equation));
        }
        program.outputs.iter().for_each(|var| is_output[var.index()] = true);
        Graph { program, maker, users, is_output }
    }

    /// The equation that defines a variable; arguments have none.
    fn maker(&self, var: Var) -> Option<&'a Equation> {
        self.maker[var.index()]
    }

    /// The only equation that uses a variable, if there is one and the Program does not return it.
    fn only_user(&self, var: Var) -> Option<&'a Equation> {
        match (&self.users[var.index()][..], self.is_output[var.index()]) {
            (&[user], false) => Some(user),
            _ => None,
        }
    }
}
