//! Features of dependencies, as Cargo resolves them.

use std::collections::BTreeSet;
use std::process::Command;

/// Packages and features that `cargo tree` prints with these arguments.
fn tree(arguments: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["tree", "--locked", "--offline", "--prefix", "none", "--format", "{p} {f}"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.trim_end_matches(" (*)").to_string()).collect()
}

/// A feature that only tests turn on would compile the library twice: once for `cargo run`, and
/// once more for `cargo run --example`, `cargo test` and `cargo bench`.
#[test]
fn tests_change_no_feature_of_a_shared_dependency() {
    let library = tree(&["--package", "podracer", "--edges", "normal"]);
    let tests = tree(&["--workspace", "--edges", "normal,dev"]);
    let missing: Vec<&String> = library.difference(&tests).collect();
    assert!(missing.is_empty(), "other features in tests: {missing:#?}");
}
