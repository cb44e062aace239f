//! Tests that could pass without testing: helpers of other tests, and tests that return early.

use std::path::Path;
use std::{env, fs};

/// Functions with `#[test]` in a source: the attributes above the name, the name, and the body.
fn tests_in(source: &str) -> Vec<(&str, &str, &str)> {
    let mut tests = Vec::new();
    for (at, mark) in source.match_indices("#[test]\n") {
        let line = source[..at].rfind('\n').map_or(0, |at| at + 1);
        let indent = &source[line..at];
        let rest = &source[at + mark.len()..];
        let Some((attributes, rest)) = rest.split_once("fn ") else { continue };
        let Some((name, rest)) = rest.split_once('(') else { continue };
        let end = rest.find(&format!("\n{indent}}}\n")).unwrap_or(rest.len());
        tests.push((attributes, name, &rest[..end]));
    }
    tests
}

/// Returns why a test may pass without testing, if it may.
fn vacuous(attributes: &str, body: &str) -> Option<&'static str> {
    if attributes.contains("#[ignore") {
        return None;
    }
    let returns = ["return;", "return }", "return,"].iter().any(|text| body.contains(text));
    let asks = ["env::var", "cfg!(", ".exists()"].iter().any(|text| body.contains(text));
    if returns && asks {
        return Some(
            "returns where its environment has or lacks something: ignore it, fail, or use cfg",
        );
    }
    body.trim_start_matches([')', ' ', '{']).trim().is_empty().then_some("has no body")
}

fn visit(folder: &Path, found: &mut Vec<String>, count: &mut usize) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            visit(&path, found, count);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            for (attributes, name, body) in tests_in(&source) {
                *count += 1;
                let reason = vacuous(attributes, body);
                found.extend(reason.map(|reason| format!("{}: {name} {reason}", path.display())));
            }
        }
    }
}

#[test]
fn no_test_passes_because_of_what_its_environment_lacks() {
    let (mut found, mut count) = (Vec::new(), 0);
    for folder in ["src", "tests", "derive", "malloc", "tools"] {
        visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut found, &mut count);
    }
    assert!(count > 800, "{count} tests");
    assert!(found.is_empty(), "{found:#?}");
}

/// The rule finds a helper that is a test, and leaves an ignored one alone.
#[test]
fn a_test_that_returns_at_once_is_found() {
    let source =
        "#[test]\nfn child() {\n    if env::VAR(\"A\").is_none() {\n        return;\n    }\n}\n";
    let source = source.replace("VAR", "var_os");
    let [(attributes, "child", body)] = tests_in(&source)[..] else { panic!("{source}") };
    assert!(vacuous(attributes, body).is_some());
    assert!(vacuous("#[ignore = \"run by another\"]\n", body).is_none());
    assert!(vacuous("", ") { assert!(true); ").is_none());
}
