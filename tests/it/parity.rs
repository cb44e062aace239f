//! The names of JAX, optax and Flax that this library has, and the section of `docs/jax-parity.md` that
//! lists them. The compiler checks that a name is there: a row is a path, or a call that compiles.
//! `UPDATE_GOLDEN=1` writes the section anew.

mod lax;
mod numpy;
mod others;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// A public name of JAX and the item or the expression that stands for it.
pub struct Row {
    module: &'static str,
    name: &'static str,
    ours: Ours,
}

pub enum Ours {
    /// A module of this library, and an item in it.
    Item(&'static str, &'static str),
    /// An expression.
    Call(&'static str),
}

/// Rows of items: `items!(rows, "jax.numpy", numpy: interp, concat = concatenate)`.
macro_rules! items {
    ($rows:ident, $module:literal, $ours:ident: $($name:ident $(= $item:ident)?),* $(,)?) => {
        $(items!(one $rows $module $ours $name $($item)?);)*
    };
    (one $rows:ident $module:literal $ours:ident $name:ident) => {
        items!(one $rows $module $ours $name $name);
    };
    (one $rows:ident $module:literal $ours:ident $name:ident $item:ident) => {{
        #[allow(unused_imports)]
        use $ours::$item as _;
        $rows.push($crate::parity::Row {
            module: $module,
            name: stringify!($name),
            ours: $crate::parity::Ours::Item(stringify!($ours), stringify!($item)),
        });
    }};
}
pub(crate) use items;

/// Rows of expressions over tensors: `calls!(rows, "jax.numpy": add => |x, y| x + y)`.
macro_rules! calls {
    ($rows:ident, $module:literal: $($name:ident => |$($x:ident),+| $body:expr),* $(,)?) => {
        $({
            let _ = |$($x: podracer::Tensor),+| {
                let _ = $body;
            };
            $rows.push($crate::parity::Row {
                module: $module,
                name: stringify!($name),
                ours: $crate::parity::Ours::Call(stringify!($body)),
            });
        })*
    };
}
pub(crate) use calls;

fn rows() -> Vec<Row> {
    let mut rows = lax::rows();
    rows.extend(numpy::rows());
    rows.extend(others::rows());
    rows
}

/// The public names, by module in the order of the file.
fn names() -> Vec<(&'static str, Vec<&'static str>)> {
    let names = include_str!("../fixtures/parity/names.txt").lines();
    let names = names.map(|line| line.split_once(' ').unwrap());
    let optax = include_str!("../fixtures/optim/names.txt").lines().map(|name| ("optax", name));
    let mut modules: Vec<(&str, Vec<&str>)> = Vec::new();
    for (module, name) in names.chain(optax) {
        match modules.last_mut() {
            Some((last, names)) if *last == module => names.push(name),
            _ => modules.push((module, vec![name])),
        }
    }
    modules
}

/// The path of a module of this library as users write it.
fn path_of(module: &str) -> &str {
    match module {
        "ops" => "trace::ops",
        "numpy" => "trace::numpy",
        "special" => "trace::special",
        "control" => "trace::control",
        "remat" => "trace::remat",
        "init" => "nn::init",
        "podracer" => "podracer",
        other => other,
    }
}

/// Words joined by commas, in lines of at most 108 characters.
fn wrapped(lead: &str, words: &[String]) -> String {
    let (mut text, mut line) = (String::new(), lead.to_string());
    for (i, word) in words.iter().enumerate() {
        let end = if i + 1 == words.len() { "" } else { "," };
        if line.len() + word.len() + end.len() + 1 > 108 {
            text.push_str(line.trim_end());
            text.push('\n');
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        let _ = write!(line, "{word}{end}");
    }
    text + &line + "\n"
}

/// Names in backquotes.
fn quoted<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    names.into_iter().map(|name| format!("`{name}`")).collect()
}

/// The part of a module: names that are the same, the table of the others, and the missing ones.
fn section(module: &str, names: &[&'static str], rows: &BTreeMap<&str, &Ours>) -> String {
    let (mut same, mut methods, mut others) = (BTreeMap::<&str, Vec<&str>>::new(), vec![], vec![]);
    let mut missing = Vec::new();
    for &name in names {
        match rows.get(name) {
            None => missing.push(name),
            Some(Ours::Item(ours, item)) if *item == name || item.trim_end_matches('_') == name => {
                same.entry(path_of(ours)).or_default().push(name);
            }
            Some(Ours::Call(call)) if call.starts_with(&format!("x.{name}(")) => methods.push(name),
            Some(Ours::Item(ours, item)) => {
                others.push((name, format!("`{}::{item}`", path_of(ours))));
            }
            Some(Ours::Call(call)) => {
                let call = call.split_whitespace().collect::<Vec<_>>().join(" ");
                let in_braces =
                    |call: &str| Some(call.strip_prefix("{ ")?.strip_suffix(" }")?.into());
                let call: String = in_braces(&call).unwrap_or(call);
                others.push((name, format!("`{}`", call.replace('|', "\\|"))));
            }
        }
    }
    let there = names.len() - missing.len();
    let mut text = format!("### {module}: {there} of {}\n\n", names.len());
    if !methods.is_empty() {
        text += &wrapped("Methods of `Tensor`:", &quoted(methods));
        text.push('\n');
    }
    for (ours, names) in same {
        text += &wrapped(&format!("In `{ours}`:"), &quoted(names));
        text.push('\n');
    }
    if !others.is_empty() {
        text += "| JAX | Podracer |\n|---|---|\n";
        // Names of one expression share a row.
        let mut merged: Vec<(Vec<&str>, String)> = Vec::new();
        for (name, ours) in others {
            match merged.iter_mut().find(|(_, known)| *known == ours) {
                Some((names, _)) => names.push(name),
                None => merged.push((vec![name], ours)),
            }
        }
        for (names, ours) in merged {
            let _ = writeln!(text, "| {} | {ours} |", quoted(names).join(", "));
        }
        text.push('\n');
    }
    if !missing.is_empty() {
        text += &wrapped("Missing:", &quoted(missing));
        text.push('\n');
    }
    text
}

const BEGIN: &str = "<!-- Names: written by tests/it/parity.rs -->\n";
const END: &str = "<!-- End of names -->\n";

fn page() -> String {
    let rows = rows();
    let mut by_module: BTreeMap<&str, BTreeMap<&str, &Ours>> = BTreeMap::new();
    for row in &rows {
        by_module.entry(row.module).or_default().insert(row.name, &row.ours);
    }
    let (mut table, mut sections, mut sums) = (String::new(), String::new(), [0, 0]);
    let none = BTreeMap::new();
    let mut line = |module: &str, there: usize, count: usize| {
        let percent = 100.0 * there as f64 / count as f64;
        let _ = writeln!(table, "| {module} | {count} | {there} | {percent:.0} % |");
    };
    for (module, names) in names() {
        let ours = by_module.get(module).unwrap_or(&none);
        let there = names.iter().filter(|name| ours.contains_key(*name)).count();
        sums = [sums[0] + there, sums[1] + names.len()];
        line(module, there, names.len());
        sections += &match module {
            "optax" => format!("### optax: {there} of {}\n\nSee [below](#optax).\n\n", names.len()),
            _ => section(module, &names, ours),
        };
    }
    line("sum", sums[0], sums[1]);
    format!("| module | names | there | |\n|---|---:|---:|---:|\n{table}\n{sections}")
}

#[test]
fn the_page_lists_the_names_that_are_there() {
    let path = "docs/jax-parity.md";
    let text = std::fs::read_to_string(path).unwrap();
    let (head, rest) = text.split_once(BEGIN).unwrap();
    let (listed, tail) = rest.split_once(END).unwrap();
    let expected = format!("\n{}", page());
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    if update {
        std::fs::write(path, format!("{head}{BEGIN}{expected}{END}{tail}")).unwrap();
    } else {
        assert!(listed == expected, "{path} differs; UPDATE_GOLDEN=1 writes it anew");
    }
}

#[test]
fn rows_are_names_of_jax_each_once() {
    let names: BTreeSet<(&str, &str)> = names()
        .into_iter()
        .flat_map(|(module, names)| names.into_iter().map(move |name| (module, name)))
        .collect();
    let (mut seen, mut faults) = (BTreeSet::new(), Vec::new());
    for Row { module, name, .. } in rows() {
        if !names.contains(&(module, name)) {
            faults.push(format!("{module}.{name} is no function of JAX"));
        }
        if !seen.insert((module, name)) {
            faults.push(format!("{module}.{name} has two rows"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(seen.len() > 400, "{} rows", seen.len());
}

/// Functions and methods in an expression.
fn functions_in(call: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut names = Vec::new();
    for (end, _) in call.match_indices('(') {
        let head = &call[..end];
        let start = head.rfind(|c| !is_part(c)).map_or(0, |at| at + 1);
        if start < end && !head[start..].starts_with(char::is_uppercase) {
            names.push(&head[start..]);
        }
    }
    names
}

/// Rust sources of files and folders, without comments.
fn words_of(path: &str, words: &mut BTreeSet<String>) {
    let path = std::path::Path::new(path);
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            words_of(entry.unwrap().path().to_str().unwrap(), words);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        let text = std::fs::read_to_string(path).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        words.extend(code.flat_map(|line| line.split(move |c| !is_part(c))).map(String::from));
    }
}

/// Tests that compare with numbers of JAX, optax and Flax.
const COMPARED: &[&str] = &[
    "tests/it/complex.rs",
    "tests/it/names",
    "tests/it/layers",
    "tests/it/complex/factorizations.rs",
    "tests/it/jax",
    "tests/it/elementary/functions.rs",
    "tests/it/transforms",
    "tests/it/transforms.rs",
    "tests/recipes/unary.rs",
    "tests/recipes/binary.rs",
    "tests/it/conv_formulas.rs",
    "src/random/tests.rs",
    "src/random/tests",
    "src/nn/tests.rs",
    "src/nn/tests",
    "src/optim/tests.rs",
    "src/optim/tests",
    "src/losses/tests.rs",
    "src/losses/tests",
];

/// Items that have no numbers to compare: shapes, structure of trees, the size of an axis and the
/// division of a value, which tests/devices/sharding.rs checks; and operations by their own name,
/// which many of the functions compared are made of.
const WITHOUT_NUMBERS: &[&str] = &[
    "Tree",
    "all_leaves",
    "axis_size",
    "broadcast",
    "broadcast_in_dim",
    "broadcast_shapes",
    "flatten_one_level",
    "flatten_one_level_with_keys",
    "gather",
    "into_leaves",
    "iota",
    "is_leaf",
    "is_tree_node",
    "leaves_with_path",
    "map_with_path",
    "pad_interior",
    "paths",
    "rebuild",
    "reduce_associative",
    "scatter",
    "structure",
    "with_sharding_constraint",
];

#[test]
fn names_that_are_there_are_compared_with_jax() {
    let mut words = BTreeSet::new();
    for path in COMPARED.iter().filter(|path| std::path::Path::new(path).exists()) {
        words_of(path, &mut words);
    }
    let mut missing = BTreeSet::new();
    // The page of optax has a test of its own; its optimizers are compared, with what they chain.
    for row in rows().into_iter().filter(|row| row.module != "optax") {
        let functions = match row.ours {
            Ours::Item(_, item) => vec![item],
            Ours::Call(call) => functions_in(call),
        };
        for function in functions {
            if !words.contains(function) && !WITHOUT_NUMBERS.contains(&function) {
                missing.insert(function);
            }
        }
    }
    assert!(missing.is_empty(), "no comparison with JAX: {missing:?}");
}
