//! Explanations of recompilations: the new signature beside the nearest one seen before.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::ArgumentLeaf;
use crate::error::{Error, Loc, Result};
use crate::output;
use crate::trace::types::TensorType;
use crate::tree::{self, Tree};

/// Key of one compilation: the structure and the types of the argument, and the first call with
/// them.
#[derive(Debug, Clone)]
pub(crate) struct Signature {
    structure: u64,
    paths: Vec<String>,
    types: Vec<TensorType>,
    /// Text that names the devices of each leaf, if its signature depends on them.
    placements: Vec<Option<String>>,
    call: Loc,
}

impl Signature {
    /// The signature of an argument with these leaves.
    pub(crate) fn new<L: ArgumentLeaf, M: Tree<L>>(
        args: &M,
        structure: u64,
        leaves: &[&L],
        call: Loc,
    ) -> Signature {
        Signature {
            structure,
            paths: tree::paths(args),
            types: leaves.iter().map(|leaf| leaf.ty().clone()).collect(),
            placements: leaves.iter().map(|leaf| leaf.placement()).collect(),
            call,
        }
    }

    /// Returns true if both have the same structure, types and devices.
    fn same(&self, other: &Signature) -> bool {
        self.structure == other.structure
            && self.types == other.types
            && self.placements == other.placements
    }
}

/// The signatures that a function was compiled for, and the limits and options on them.
#[derive(Default)]
pub(crate) struct Signatures {
    /// If true, every compilation after the first is explained on the standard error.
    pub(crate) explain: bool,
    /// Maximum number of signatures.
    pub(crate) most: Option<usize>,
    seen: Mutex<Seen>,
    recompiles: Mutex<VecDeque<Recompile>>,
}

/// Signatures and explanations that a function remembers, the latest.
const REMEMBERED: usize = 1024;

#[derive(Default)]
struct Seen {
    /// Number of explanations so far.
    count: usize,
    latest: VecDeque<Numbered>,
}

struct Numbered {
    /// Counted from 1.
    number: usize,
    signature: Signature,
    /// True if its executable was evicted because the cache was full.
    evicted: bool,
}

impl Signatures {
    /// Takes note of a new signature, and of why it is one; refuses one too many. Returns its
    /// number.
    pub(crate) fn note(&self, function: &str, now: Signature) -> Result<usize> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = seen.latest.iter_mut().find(|seen| seen.signature.same(&now)) {
            // It failed to compile before, and is tried again; or its executable was dropped.
            if std::mem::take(&mut known.evicted) {
                self.record(Recompile {
                    function: function.into(),
                    signature: known.number,
                    call: now.call,
                    before: known.signature.call,
                    differences: vec![Difference::Evicted],
                });
            }
            return Ok(known.number);
        }
        let recompile = explain(function, &seen, &now);
        if let Some(limit) = self.most.filter(|&limit| seen.count >= limit) {
            let reason = match recompile {
                Some(recompile) => recompile.to_string(),
                None => format!("{function}: the call in {} would be the first", now.call),
            };
            return Err(Error::Argument(format!(
                "more than {limit} traces, which assert_max_traces({limit}) does not allow\n{reason}"
            )));
        }
        seen.count += 1;
        let number = seen.count;
        push(&mut seen.latest, Numbered { number, signature: now, evicted: false });
        if let Some(recompile) = recompile {
            self.record(recompile);
        }
        Ok(number)
    }

    fn record(&self, recompile: Recompile) {
        if self.explain || asked_for() {
            output::stderr_line(format_args!("podracer: {recompile}"));
        }
        push(&mut self.recompiles.lock().unwrap_or_else(PoisonError::into_inner), recompile);
    }

    /// Marks the signatures with these numbers as evicted: their executables were dropped because
    /// the cache was full.
    pub(crate) fn forget(&self, numbers: impl Iterator<Item = usize>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for number in numbers {
            if let Some(seen) = seen.latest.iter_mut().find(|seen| seen.number == number) {
                seen.evicted = true;
            }
        }
    }

    /// Returns the explanations of all compilations after the first, at most the latest 1024.
    pub(crate) fn recompiles(&self) -> Vec<Recompile> {
        let recompiles = self.recompiles.lock().unwrap_or_else(PoisonError::into_inner);
        recompiles.iter().cloned().collect()
    }
}

/// Adds to a list that forgets its oldest items.
fn push<T>(list: &mut VecDeque<T>, item: T) {
    if list.len() == REMEMBERED {
        list.pop_front();
    }
    list.push_back(item);
}

/// Explanation of one recompilation: why a function was traced and compiled again; see
/// [`Jit::explain`](crate::Jit::explain).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recompile {
    /// The function's name.
    pub function: String,
    /// The number of this signature, counted from 1.
    pub signature: usize,
    /// The line of the call that brought it.
    pub call: Loc,
    /// The line of the call that brought the nearest signature seen before.
    pub before: Loc,
    /// Differences from the nearest signature.
    pub differences: Vec<Difference>,
}

/// One difference between two signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// The leaf at this path has another type.
    Type {
        /// Path of the leaf in the argument.
        path: String,
        /// The type before.
        before: TensorType,
        /// The type now.
        now: TensorType,
    },
    /// The leaf at this path is on other devices, or is divided and was not, or the reverse.
    Place {
        /// Path of the leaf in the argument.
        path: String,
        /// Text that names the devices of the leaf before.
        before: String,
        /// Text that names the devices of the leaf now.
        now: String,
    },
    /// This path is new.
    Added(String),
    /// This path is gone.
    Removed(String),
    /// The leaves are the same ones, but the static part of the structure differs: a static field,
    /// an enum's variant; or the default precision around the call does.
    Static,
    /// There is none: this signature was compiled before, and its executable was dropped because
    /// the function was called with more signatures than it keeps
    /// ([`Jit::cache_capacity`](crate::Jit::cache_capacity)).
    Evicted,
}

impl Difference {
    /// Returns the distance that this difference puts between two signatures: another size is near,
    /// another structure far.
    fn distance(&self) -> usize {
        match self {
            Difference::Type { before, now, .. } => {
                let same = before.dtype == now.dtype && before.rank() == now.rank();
                let sizes = before.shape.iter().zip(now.shape.iter());
                sizes.filter(|(before, now)| before != now).count() + if same { 0 } else { 100 }
            }
            Difference::Place { .. } => 10,
            Difference::Added(_) | Difference::Removed(_) | Difference::Static => 1000,
            Difference::Evicted => 0,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Type { path, before, now } => {
                write!(f, "{path}: {before} before, {now} now")?;
                if before.dtype != now.dtype {
                    return write!(f, " (another dtype)");
                }
                if before.rank() != now.rank() {
                    return write!(f, " (another rank)");
                }
                let axes = (0..now.rank()).filter(|&axis| before.shape[axis] != now.shape[axis]);
                let axes: Vec<String> = axes.map(|axis| axis.to_string()).collect();
                let axis = if axes.len() == 1 { "axis" } else { "axes" };
                write!(f, " ({axis} {})", axes.join(", "))
            }
            Difference::Place { path, before, now } => {
                write!(f, "{path}: {before} before, {now} now")
            }
            Difference::Added(path) => write!(f, "{path}: was not there before"),
            Difference::Removed(path) => write!(f, "{path}: is not there any more"),
            Difference::Evicted => write!(f, "compiled before and dropped since"),
            Difference::Static => {
                write!(
                    f,
                    "the leaves are the same; a static field, an enum's variant or the default \
                     precision around the call differs"
                )
            }
        }
    }
}

/// Differences that are listed one by one.
const LISTED: usize = 8;

impl fmt::Display for Recompile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recompile { function, signature, call, before, differences } = self;
        if differences == &[Difference::Evicted] {
            return write!(
                f,
                "{function}: signature {signature}, at the call in {call}, was compiled for the call \
                 in {before} and dropped since: there are more signatures than cache_capacity"
            );
        }
        write!(
            f,
            "{function}: signature {signature}, at the call in {call}, differs from that of "
        )?;
        write!(f, "the call in {before}:")?;
        for difference in differences.iter().take(LISTED) {
            write!(f, "\n  {difference}")?;
        }
        if differences.len() > LISTED {
            write!(f, "\n  and {} more", differences.len() - LISTED)?;
        }
        Ok(())
    }
}

/// The differences between `now` and the nearest of the signatures before; `None` if there is none.
fn explain(function: &str, seen: &Seen, now: &Signature) -> Option<Recompile> {
    // Among equally near signatures, the latest is chosen.
    let before = seen.latest.iter().rev().map(|seen| &seen.signature);
    let (nearest, differences) =
        before.map(|before| (before, differences(before, now))).min_by_key(
            |(_, differences)| differences.iter().map(Difference::distance).sum::<usize>(),
        )?;
    Some(Recompile {
        function: function.into(),
        signature: seen.count + 1,
        call: now.call,
        before: nearest.call,
        differences,
    })
}

fn differences(before: &Signature, now: &Signature) -> Vec<Difference> {
    let mut list = Vec::new();
    let indices: HashMap<&String, usize> =
        before.paths.iter().enumerate().map(|(i, path)| (path, i)).collect();
    let new: HashSet<&String> = now.paths.iter().collect();
    for (i, path) in now.paths.iter().enumerate() {
        let Some(&old) = indices.get(path) else {
            list.push(Difference::Added(path.clone()));
            continue;
        };
        if before.types[old] != now.types[i] {
            list.push(Difference::Type {
                path: path.clone(),
                before: before.types[old].clone(),
                now: now.types[i].clone(),
            });
        }
        if let (Some(before), Some(now)) = (&before.placements[old], &now.placements[i])
            && before != now
        {
            let (before, now) = (before.clone(), now.clone());
            list.push(Difference::Place { path: path.clone(), before, now });
        }
    }
    let gone = before.paths.iter().filter(|path| !new.contains(path));
    list.extend(gone.map(|path| Difference::Removed(path.clone())));
    if before.structure != now.structure && before.paths == now.paths {
        list.push(Difference::Static);
    }
    list
}

/// Returns true if the environment asks for every explanation on the standard error.
fn asked_for() -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    *ASKED.get_or_init(|| {
        std::env::var("PODRACER_EXPLAIN")
            .is_ok_and(|value| !["", "0", "off", "no", "false"].contains(&value.as_str()))
    })
}
