//! Rules that call the function they belong to.
//!
//! Such a rule is finite, because the call inside names the function around it instead of holding
//! its rule once more: [`Rule::Enclosing`]. Each derivative unrolls it by one level.

use std::sync::Arc;

use crate::trace::graph::map_subprograms;
use crate::trace::op::{CustomJvpOp, Op, Rule};
use crate::trace::program::Program;

/// Replaces the rule of every custom_jvp in `program`. `f` gets each rule and the number of rules
/// around its equation, counted from `program`; inner rules are replaced before outer ones.
fn map_rules(mut program: Program, depth: usize, f: &dyn Fn(Rule, usize) -> Rule) -> Program {
    for equation in &mut program.equations {
        if let Op::CustomJvp(custom) = &mut equation.op {
            let call = Arc::unwrap_or_clone(std::mem::take(&mut custom.call));
            custom.call = Arc::new(map_rules(call, depth, f));
            let rule = match custom.jvp.clone() {
                Rule::Own(rule) => {
                    Rule::Own(Arc::new(map_rules(Arc::unwrap_or_clone(rule), depth + 1, f)))
                }
                Rule::Enclosing(level) => Rule::Enclosing(level),
            };
            custom.jvp = f(rule, depth);
        } else {
            map_subprograms(&mut equation.op, &|body| map_rules(body, depth, f));
        }
    }
    program
}

/// Returns true if a rule in the program is that of a function outside of it. `depth` is the number
/// of rules inside of which the program is, counted from the one that is searched.
fn refers_outside(program: &Program, depth: usize) -> bool {
    program.equations.iter().any(|equation| match &equation.op {
        Op::CustomJvp(custom) => {
            refers_outside(&custom.call, depth)
                || match &custom.jvp {
                    Rule::Own(rule) => refers_outside(rule, depth + 1),
                    Rule::Enclosing(level) => *level >= depth,
                }
        }
        op => op.subprograms().any(|body| refers_outside(body, depth)),
    })
}

impl CustomJvpOp {
    /// Returns true if its rule calls it, or a function around it.
    pub(crate) fn is_recursive(&self) -> bool {
        match &self.jvp {
            Rule::Own(rule) => refers_outside(rule, 0),
            Rule::Enclosing(_) => true,
        }
    }

    /// The rule, to replace the operation: calls of the function in it have their rules. `None` if
    /// the rule is that of an enclosing function.
    pub(crate) fn unrolled(&self) -> Option<Arc<Program>> {
        let Rule::Own(rule) = &self.jvp else { return None };
        if !self.is_recursive() {
            return Some(rule.clone());
        }
        let unroll = |found: Rule, depth: usize| match found {
            Rule::Enclosing(level) if level == depth => {
                // One more copy, nested in `depth` more rules: it must still refer to the same
                // enclosing rules.
                let whole = map_rules((**rule).clone(), 0, &|found, inside| match found {
                    Rule::Enclosing(level) if level > inside => Rule::Enclosing(level + depth),
                    other => other,
                });
                Rule::Own(Arc::new(whole))
            }
            // The enclosing rule is gone.
            Rule::Enclosing(level) if level > depth => Rule::Enclosing(level - 1),
            other => other,
        };
        Some(Arc::new(map_rules((**rule).clone(), 0, &unroll)))
    }
}
