//! What the documents at the root promise.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use podracer::lower::native::Lock;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn notice_names_every_part_and_every_direct_dependency() {
    let notice = read("NOTICE");
    for part in &Lock::get().parts {
        let line =
            format!("{} {} (part \"{}\"): {}", part.package, part.version, part.name, part.license);
        assert!(notice.contains(&line), "NOTICE lacks: {line}");
    }
    let words: Vec<&str> = notice.split([' ', ',', '\n']).collect();
    let manifest = read("Cargo.toml");
    let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
    let names = dependencies
        .lines()
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.starts_with('#') && !line.contains("path ="))
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name);
    for name in names {
        assert!(words.contains(&name), "NOTICE does not name {name}");
    }
}

#[test]
fn the_readme_says_how_to_train_and_test() {
    let readme = read("README.md");
    let commands =
        ["cargo run --release --example ppo_envpool_jit", "cargo test --release --workspace"];
    for command in commands {
        assert!(readme.contains(&format!("```sh\n{command}\n```")), "{command}");
    }
    // The gate runs the README's command, not one of its own.
    assert!(read(".ci/run").contains("grep -m 1 '^cargo test ' README.md"));
    for variable in [
        "PODRACER_HOME",
        "PODRACER_PJRT_PLUGIN",
        "PODRACER_OFFLINE",
        "PODRACER_CACHE",
        "PODRACER_CACHE_MAX_SIZE",
    ] {
        assert!(readme.contains(&format!("| `{variable}` |")), "{variable}");
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    for (file, folder) in [
        ("README.md", ""),
        ("docs/from-scratch.md", "docs/"),
        ("docs/decisions/0001-foundations.md", "docs/decisions/"),
        ("docs/decisions/0009-unsafe-code.md", "docs/decisions/"),
        ("SECURITY.md", ""),
    ] {
        let text = read(file);
        assert!(text.is_ascii(), "{file}");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(link);
            assert!(target.exists(), "{file} links to {link}");
        }
    }
}

#[test]
fn the_tour_names_files_that_exist() {
    for file in ["docs/from-scratch.md", "docs/adding-an-op.md"] {
        let text = read(file);
        for name in
            text.split('`').filter(|name| name.ends_with(".rs") && !name.contains(['{', ' ']))
        {
            if name.contains("FAMILY") {
                continue;
            }
            let root = Path::new(env!("CARGO_MANIFEST_DIR"));
            let places = ["", "src"].map(|folder| root.join(folder).join(name));
            assert!(places.iter().any(|place| place.exists()), "{file} names {name}");
        }
    }
}

/// The words of Rust sources, without their comments.
fn words_of(paths: &[&str]) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    for path in paths {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let files: Vec<_> = match path.is_dir() {
            true => fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect(),
            false => vec![path],
        };
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            for line in code {
                let is_part = |c: char| c.is_alphanumeric() || c == '_';
                words.extend(line.split(|c| !is_part(c)).map(String::from));
            }
        }
    }
    words
}

/// Functions in rows of `docs/jax-parity.md` that say "the same" are called in the tests that compare
/// with JAX's numbers.
#[test]
fn functions_that_are_the_same_as_in_jax_are_compared_with_it() {
    let page = read("docs/jax-parity.md");
    let compared = words_of(&[
        "tests/it/jax",
        "tests/it/elementary/functions.rs",
        "tests/it/transforms/collectives.rs",
    ]);
    let (mut missing, mut count) = (Vec::new(), 0);
    let same = page.lines().filter(|line| line.starts_with("| `") && line.contains("the same"));
    for row in same {
        for name in row.split('`').skip(1).step_by(2).filter(|name| !name.contains('=')) {
            let name = name.rsplit('.').next().unwrap().split('(').next().unwrap();
            count += 1;
            if !compared.contains(name) {
                missing.push(name);
            }
        }
    }
    assert!(count > 80, "the table has {count} such functions");
    assert!(missing.is_empty(), "no comparison with JAX: {missing:?}");
}
