//! Words of doc comments, and names in the code.

use std::fs;
use std::path::{Path, PathBuf};

/// First words that name no item: "Whether it is open" instead of "True if it is open".
const BANNED_OPENINGS: [&str; 12] = [
    "What", "Whether", "How", "Where", "Which", "Those", "Of", "That", "Who", "Whose", "When",
    "Why",
];

pub fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The text of a line of a doc comment.
fn doc_text(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
    (!text.starts_with('/')).then(|| text.trim())
}

/// The numbers, from 1, of lines that begin a paragraph of a doc comment with a banned word.
fn banned_openings(source: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    let mut before: Option<&str> = None;
    for (number, line) in source.lines().enumerate() {
        let text = doc_text(line);
        if let Some(text) = text {
            let begins = before.is_none_or(|before| before.is_empty() || before.starts_with('#'));
            if text.starts_with("```") {
                in_code = !in_code;
            }
            let first = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("");
            if begins && !in_code && BANNED_OPENINGS.contains(&first) {
                found.push((number + 1, text));
            }
        }
        before = text;
    }
    found
}

#[test]
fn banned_openings_are_found() {
    let source = "//! Fine.\n//!\n//! What it is.\n\n/// A thing\n/// Which goes on.\n/// # Errors\n/// Of all\n\
                  fn f() {}\n/// ```\n/// How(1);\n/// ```\n";
    assert_eq!(banned_openings(source), [(3, "What it is."), (8, "Of all")]);
}

/// `expect_..` ends the trace or panics; `ensure_..` returns an error.
#[test]
fn functions_that_return_an_error_are_not_named_expect() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    rust_files(&root.join("src"), &mut files);
    let mut found = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        for function in text.split("fn expect_").skip(1) {
            let signature = function.split('{').next().unwrap();
            if signature.contains("-> Result<") {
                let name = signature.split(['(', '<']).next().unwrap();
                found.push(format!("{}: expect_{name}", file.display()));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn doc_comments_begin_with_what_the_item_is_or_does() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "derive/src", "malloc/src", "tools/src", "examples", "benches"] {
        rust_files(&root.join(folder), &mut files);
    }
    assert!(files.len() > 100, "{} files", files.len());
    let mut found = Vec::new();
    for file in files {
        let source = fs::read_to_string(&file).unwrap();
        let name = file.strip_prefix(root).unwrap().display();
        found
            .extend(banned_openings(&source).iter().map(|(n, text)| format!("{name}:{n}: {text}")));
    }
    assert!(found.is_empty(), "{} doc comments:\n{}", found.len(), found.join("\n"));
}

/// Names that no reader would guess. The standard ones are in `docs/glossary.md`.
const BANNED_NAMES: [&str; 19] = [
    "told",
    "goes_on",
    "going_on",
    "go_on",
    "turn",
    "turns",
    "playing",
    "Playing",
    "Acted",
    "Drawn",
    "gauge",
    "of_action",
    "lower_value",
    "cadence",
    "Cadence",
    "pace",
    "Pace",
    "meaning_flags",
    "PATIENCE",
];
/// Phrases that no sentence needs.
const BANNED_PHRASES: [&str; 6] =
    [" goes on.", "gone on", "by turns", "was told", "is told", "are told"];

/// The source without its comments and literals, which are blanked.
pub fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut code = String::with_capacity(source.len());
    let mut i = 0;
    while i < bytes.len() {
        let rest = &source[i..];
        let end = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            raw.find("\"#").map_or(rest.len(), |end| end + 5)
        } else if let Some(text) = rest.strip_prefix('"') {
            let mut escaped = false;
            let quote = text.find(|c: char| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            quote.map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("'\"'") {
            3
        } else if rest.starts_with("'\\\"'") {
            4
        } else {
            let c = rest.chars().next().expect("a character");
            code.push(c);
            i += c.len_utf8();
            continue;
        };
        code.extend(rest[..end].chars().filter(|c| *c == '\n'));
        code.push(' ');
        i += end;
    }
    code
}

/// The numbers of lines, from 1, that contain a banned name, and the name.
fn banned_names(source: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for (number, line) in code_only(source).lines().enumerate() {
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        for word in words {
            found.extend(
                BANNED_NAMES.iter().filter(|name| **name == word).map(|n| (number + 1, *n)),
            );
        }
    }
    found
}

#[test]
fn banned_names_are_found() {
    let source =
        "// told\nlet told = f(\"turn\"); // turn\nlet c = '\"'; turn();\n\"a\\\" told\nb\"; told";
    assert_eq!(banned_names(source), [(2, "told"), (3, "turn"), (5, "told")]);
}

fn files_of(folders: &[&str]) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    folders.iter().for_each(|folder| rust_files(&root.join(folder), &mut files));
    files
}

#[test]
fn names_are_those_that_a_reader_would_guess() {
    let mut found = Vec::new();
    for file in
        files_of(&["src", "derive/src", "malloc/src", "tools/src", "examples", "benches", "tests"])
    {
        let source = fs::read_to_string(&file).unwrap();
        let lines = banned_names(&source);
        found.extend(lines.iter().map(|(line, name)| format!("{}:{line}: {name}", file.display())));
    }
    assert!(found.is_empty(), "{} names:\n{}", found.len(), found.join("\n"));
}

#[test]
fn sentences_use_plain_words() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files =
        files_of(&["src", "derive/src", "malloc/src", "tools/src", "examples", "benches"]);
    files.push(root.join("README.md"));
    for folder in ["docs", "docs/algos", "docs/decisions"] {
        let pages = fs::read_dir(root.join(folder)).unwrap().map(|page| page.unwrap().path());
        files.extend(pages.filter(|page| page.extension().is_some_and(|kind| kind == "md")));
    }
    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let lines = text
            .lines()
            .enumerate()
            .filter(|(_, line)| BANNED_PHRASES.iter().any(|phrase| line.contains(phrase)));
        found.extend(lines.map(|(n, line)| format!("{}:{}: {line}", file.display(), n + 1)));
    }
    assert!(found.is_empty(), "{} sentences:\n{}", found.len(), found.join("\n"));
}
