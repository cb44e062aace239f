//! Words of doc comments.

use std::fs;
use std::path::{Path, PathBuf};

/// First words that name no item: "Whether it is open" instead of "True if it is open".
const BANNED_OPENINGS: [&str; 12] = [
    "What", "Whether", "How", "Where", "Which", "Those", "Of", "That", "Who", "Whose", "When",
    "Why",
];

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
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

#[test]
fn doc_comments_begin_with_what_the_item_is_or_does() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "derive/src", "examples", "benches"] {
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
