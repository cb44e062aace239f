//! Order of the modules: imports run downward only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::words::{code_only, rust_files};

/// Modules of `src/`, lowest first; the modules inside `trace` and `rl` in their place. A module imports from
/// modules before it, also in its tests. The facades `lib.rs` and `trace.rs` only declare and re-export.
const ORDER: [&str; 77] = [
    "error",
    "tree",
    "output",
    "files",
    "watch",
    "timeline",
    // Programs: data, text and checks.
    "trace::types",
    "trace::axis",
    "trace::narrow",
    "trace::literal",
    "trace::host",
    "trace::op",
    "trace::mesh",
    "trace::program",
    "trace::print",
    "trace::check",
    "trace::parse",
    // Tracing, and the functions that add operations.
    "trace::tensor",
    "trace::load",
    "trace::graph",
    "trace::callback",
    "trace::eval",
    "trace::control",
    "trace::custom",
    "trace::ops",
    "trace::testing",
    // Transformations.
    "trace::remat",
    "trace::jvp",
    "trace::linearize",
    "trace::transpose",
    "trace::vmap",
    "trace::shard_map",
    "trace::jacobian",
    // Functions composed of all these.
    "trace::associative",
    "trace::numpy",
    // Compilation and execution.
    "native",
    "lower",
    "doctor",
    "runtime",
    "distributed",
    "array",
    "jit",
    "random",
    "pmap",
    "export",
    // Learning.
    "distributions",
    "losses",
    "optim",
    "spaces",
    "nn",
    "envs",
    "rl::statistics",
    "rl::files",
    "rl::interrupt",
    "rl::returns",
    "rl::settings",
    "rl::checkpoint",
    "rl::environments",
    "rl::buffers",
    "rl::rollouts",
    "rl::logging",
    "rl::policy",
    "rl::summary",
    "rl::commands",
    "rl::algorithm",
    "rl::run",
    "rl::hostile",
    "rl::program_policy",
    "rl::sweep",
    "rl::anakin",
    "rl::sebulba",
    "rl::prelude",
    "algos",
    "tests",
    // Facades.
    "rl",
    "trace",
    "podracer",
];

type ModulePath = Vec<String>;

/// The paths that begin with `crate`, `self` or `super` in code without comments and literals, each
/// with its line, from 1. Groups are written out, and a glob is its module.
fn paths(code: &str) -> Vec<(usize, ModulePath)> {
    let mut tokens: Vec<(usize, &str)> = Vec::new();
    for (i, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while !rest.is_empty() {
            let word = |c: char| c.is_alphanumeric() || c == '_';
            let length = match rest.find(|c| !word(c)) {
                Some(0) if rest.starts_with("::") => 2,
                Some(0) => rest.chars().next().map_or(1, char::len_utf8),
                Some(end) => end,
                None => rest.len(),
            };
            tokens.push((i + 1, &rest[..length]));
            rest = rest[length..].trim_start();
        }
    }
    let mut found = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        let starts = ["crate", "self", "super"].contains(&tokens[i].1)
            && tokens.get(i + 1).is_some_and(|next| next.1 == "::")
            && (i == 0 || tokens[i - 1].1 != "::");
        if starts { i = path(&tokens, i, &[], &mut found) } else { i += 1 }
    }
    found
}

/// Reads one path from token `i`, below `prefix`, and returns the index after it.
fn path(
    tokens: &[(usize, &str)],
    mut i: usize,
    prefix: &[String],
    found: &mut Vec<(usize, ModulePath)>,
) -> usize {
    let mut path = prefix.to_vec();
    let line = tokens[i].0;
    loop {
        match tokens[i].1 {
            "{" => {
                i += 1;
                while tokens[i].1 != "}" {
                    i = if tokens[i].1 == "," {
                        i + 1
                    } else {
                        self::path(tokens, i, &path, found)
                    };
                }
                return i + 1;
            }
            "*" => {
                i += 1;
                break;
            }
            "self" if !path.is_empty() => {
                i += 1;
                break;
            }
            word if word.starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                path.push(word.to_string());
                i += 1;
            }
            _ => break,
        }
        let continues = tokens.get(i).is_some_and(|token| token.1 == "::")
            && tokens.get(i + 1).is_some_and(|next| {
                next.1.starts_with(|c: char| c.is_alphabetic() || "_{*".contains(c))
            });
        if !continues {
            break;
        }
        i += 1;
    }
    if tokens.get(i).is_some_and(|token| token.1 == "as") {
        i += 2;
    }
    found.push((line, path));
    i
}

#[test]
fn paths_are_found() {
    let code = "use crate::{a::{self, b as c}, d};\nlet x = super::e::F::new(self::g);\n\
                use super::*; crate::m!(); self.f();";
    let found = paths(code);
    let texts: Vec<String> =
        found.iter().map(|(line, path)| format!("{line} {}", path.join("::"))).collect();
    let expected = [
        "1 crate::a",
        "1 crate::a::b",
        "1 crate::d",
        "2 super::e::F::new",
        "2 self::g",
        "3 super",
        "3 crate::m",
    ];
    assert_eq!(texts, expected);
}

/// The sources of the library without comments and literals, by module.
struct Library {
    sources: BTreeMap<ModulePath, (String, String)>,
    /// The item that a re-exported name, or the name of an exported macro, stands for.
    reexports: BTreeMap<ModulePath, ModulePath>,
}

impl Library {
    /// The library with or without its tests.
    fn read(with_tests: bool) -> Library {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = Vec::new();
        rust_files(&root, &mut files);
        let mut sources = BTreeMap::new();
        let mut tests: BTreeSet<ModulePath> = BTreeSet::new();
        for file in files {
            let name = file.strip_prefix(&root).unwrap().to_str().unwrap().to_string();
            let mut module: ModulePath =
                name.trim_end_matches(".rs").split('/').map(String::from).collect();
            if module.last().is_some_and(|last| last == "mod" || last == "lib") {
                module.pop();
            }
            if module.first().is_some_and(|first| first == "bin") {
                continue;
            }
            let code = code_only(&fs::read_to_string(&file).unwrap());
            let mut kept = String::new();
            let mut lines = code.lines();
            while let Some(line) = lines.next() {
                let of_tests = ["#[cfg(test)]", "#[cfg(all(test, "];
                let is_of_tests = of_tests.iter().any(|start| line.trim().starts_with(start));
                if is_of_tests && !with_tests {
                    let item = lines.next().unwrap_or("");
                    let (_, name) = item.split_once("mod ").unwrap_or(("", ""));
                    if name.ends_with('{') {
                        break;
                    }
                    tests.insert([&module[..], &[name.trim_end_matches(';').to_string()]].concat());
                    kept += "\n";
                } else {
                    kept += line;
                }
                kept += "\n";
            }
            sources.insert(module, (format!("src/{name}"), kept));
        }
        sources.retain(|module, _| !(1..=module.len()).any(|end| tests.contains(&module[..end])));
        let mut library = Library { sources, reexports: BTreeMap::new() };
        library.reexports = library.find_reexports();
        library
    }

    fn find_reexports(&self) -> BTreeMap<ModulePath, ModulePath> {
        let mut reexports = BTreeMap::new();
        for (module, (_, code)) in &self.sources {
            for statement in code.split(';') {
                let Some((before, names)) = statement.split_once("use ") else { continue };
                if !before.trim_end().ends_with("pub") && !before.trim_end().ends_with("pub(crate)")
                {
                    continue;
                }
                let relative =
                    ["crate", "self", "super"].iter().all(|start| !names.starts_with(start));
                let start = if relative { "self::" } else { "" };
                for (_, path) in paths(&format!("{start}{names}")) {
                    let target = self.absolute(module, &path);
                    let name = target.last().expect("a name").clone();
                    let item = [&module[..], &[name]].concat();
                    // The prelude, a module inside the root, re-exports names of the root.
                    if item != target {
                        reexports.insert(item, target);
                    }
                }
            }
            for exported in code.split("#[macro_export]").skip(1) {
                let (_, name) = exported.split_once("macro_rules! ").expect("a macro");
                let name = name.split_whitespace().next().expect("a name").to_string();
                reexports.insert(vec![name.clone()], [&module[..], &[name]].concat());
            }
        }
        reexports
    }

    /// The path from the root of the crate.
    fn absolute(&self, module: &[String], path: &[String]) -> ModulePath {
        let mut base = if path[0] == "crate" { vec![] } else { module.to_vec() };
        let mut rest = path;
        while let Some(first) = rest.first() {
            match first.as_str() {
                "super" => drop(base.pop()),
                "crate" | "self" => {}
                _ => break,
            }
            rest = &rest[1..];
        }
        base.extend_from_slice(rest);
        base
    }

    /// The length of the longest module that `path` begins with.
    fn module_length(&self, path: &[String]) -> usize {
        (0..=path.len()).rev().find(|&end| self.sources.contains_key(&path[..end])).unwrap_or(0)
    }

    /// The module that defines an item.
    fn defining_module(&self, mut path: ModulePath) -> ModulePath {
        // A name may be re-exported several times on its way up.
        for _ in 0..8 {
            let end = self.module_length(&path);
            let Some(target) = path.get(..=end).and_then(|name| self.reexports.get(name)) else {
                break;
            };
            path = [target, &path[end + 1..]].concat();
        }
        path.truncate(self.module_length(&path));
        path
    }
}

fn component_of(module: &[String]) -> String {
    match module {
        [] => "podracer".into(),
        [first, second, ..] if first == "trace" || first == "rl" => format!("{first}::{second}"),
        [first, ..] => first.clone(),
    }
}

#[test]
fn imports_run_downward() {
    let library = Library::read(true);
    let position = |component: &str| ORDER.iter().position(|known| *known == component);
    let (mut upward, mut imports) = (Vec::new(), 0);
    for (module, (file, code)) in &library.sources {
        let from = component_of(module);
        if ["podracer", "trace", "rl"].contains(&from.as_str()) {
            continue;
        }
        let Some(here) = position(&from) else {
            upward.push(format!("{file}: {from} is not in ORDER of tests/it/imports.rs"));
            continue;
        };
        for (line, path) in paths(code) {
            let absolute = library.absolute(module, &path);
            // `pub(in crate::rl)` names a module that encloses this one.
            let encloses = module.starts_with(&absolute);
            let to = component_of(&library.defining_module(absolute));
            imports += 1;
            if from == to || encloses {
                continue;
            }
            if position(&to).is_none_or(|there| there > here) {
                upward.push(format!("{file}:{line}: {from} imports {}, of {to}", path.join("::")));
            }
        }
    }
    assert!(imports > 3000, "{imports} imports");
    assert!(upward.is_empty(), "{} imports run upward:\n{}", upward.len(), upward.join("\n"));
}

/// The imports between modules of one folder, by folder. A module and its submodules count as one;
/// imports to and from the folder's own file do not count.
fn imports_of_folders(
    library: &Library,
) -> BTreeMap<ModulePath, BTreeMap<String, BTreeSet<String>>> {
    let mut folders: BTreeMap<ModulePath, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (module, (_, code)) in &library.sources {
        for (_, path) in paths(code) {
            let to = library.defining_module(library.absolute(module, &path));
            let shared = module.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(from), Some(to)) = (module.get(shared), to.get(shared)) {
                let folder = folders.entry(module[..shared].to_vec()).or_default();
                folder.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    }
    folders
}

/// A way along the imports of a folder that begins and ends at `start`.
fn circle(imports: &BTreeMap<String, BTreeSet<String>>, start: &str) -> Option<Vec<String>> {
    let mut seen = BTreeSet::new();
    let mut ways = vec![vec![start.to_string()]];
    while let Some(way) = ways.pop() {
        for next in imports.get(way.last().expect("a module")).into_iter().flatten() {
            let longer = [&way[..], std::slice::from_ref(next)].concat();
            if next == start {
                return Some(longer);
            }
            if seen.insert(next) {
                ways.push(longer);
            }
        }
    }
    None
}

#[test]
fn circles_are_found() {
    let edges = [("a", "b"), ("b", "c"), ("c", "b"), ("d", "a")];
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in edges {
        imports.entry(from.into()).or_default().insert(to.into());
    }
    let circles = ["a", "b", "c", "d"].map(|start| circle(&imports, start).map(|way| way.concat()));
    assert_eq!(circles, [None, Some("bcb".into()), Some("cbc".into()), None]);
}

#[test]
fn modules_of_one_folder_import_in_no_circle() {
    let folders = imports_of_folders(&Library::read(false));
    assert!(folders.len() > 20, "{} folders", folders.len());
    let mut circles = Vec::new();
    for (folder, imports) in &folders {
        let found = imports.keys().filter_map(|start| circle(imports, start)).min_by_key(Vec::len);
        circles.extend(found.map(|way| format!("{}: {}", folder.join("::"), way.join(" -> "))));
    }
    assert!(circles.is_empty(), "modules that import in a circle:\n{}", circles.join("\n"));
}

/// A file inside of a folder imports from the file that defines an item. Through the names that the
/// folder's own file re-exports, it would import upward.
#[test]
fn files_import_from_homes_not_through_their_folder() {
    let library = Library::read(false);
    let mut found = Vec::new();
    for (module, (file, code)) in &library.sources {
        if module.len() < 2 || module.ends_with(&["prelude".to_string()]) {
            continue;
        }
        // A macro's users import through any name.
        for (line, path) in paths(&code.replace("$crate", "")) {
            let path = library.absolute(module, &path);
            let end = library.module_length(&path);
            let through = &path[..end];
            let is_above = end > 0 && end < module.len() && module.starts_with(through);
            let item = path.get(..=end).and_then(|item| library.reexports.get(item));
            // Items of other crates have no home here.
            let item = item.filter(|home| library.module_length(home) + 1 == home.len());
            if let (true, Some(home)) = (is_above, item) {
                found.push(format!("{file}:{line}: {} is {}", path.join("::"), home.join("::")));
            }
        }
    }
    assert!(found.is_empty(), "{} imports:\n{}", found.len(), found.join("\n"));
}

/// Files that read only what the system wrote (`/proc`), or what the command itself wrote.
const READS_OWN_FILES: [&str; 6] = [
    "src/distributed/arrivals.rs",
    "src/export/compiler.rs",
    "src/lower/cache.rs",
    "src/rl/buffers/memory.rs",
    "src/rl/logging/tensorboard.rs",
    "src/bin/podracer/benchmark/provenance.rs",
];

/// A pipe blocks its reader for ever, and `/dev/zero` has no end.
#[test]
fn files_are_opened_as_regular_ones() {
    let mut found = Vec::new();
    let mut files = Vec::new();
    rust_files(Path::new("src"), &mut files);
    for file in files {
        let name = file.to_str().unwrap().to_string();
        let is_tests = ["/tests.rs", "rl/hostile.rs"].iter().any(|end| name.ends_with(end));
        if READS_OWN_FILES.contains(&&*name) || is_tests {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let code = code_only(&text);
        let code = code.split("#[cfg(test)]").next().unwrap();
        for call in ["fs::read(", "fs::read_to_string(", "File::open("] {
            // `ResultsFile::open(` is another function.
            let own = |at: usize| !code[..at].ends_with(char::is_alphanumeric);
            if code.match_indices(call).any(|(at, _)| own(at)) {
                found.push(format!("{name} has {call}..): use files::read or files::open_regular"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
