//! What the documents at the root promise.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use podracer::algos::registry;
use podracer::native::Lock;

use crate::words::rust_files;

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
    let commands = ["cargo run --release --example ppo_envpool_jit", "cargo test --workspace"];
    for command in commands {
        assert!(readme.contains(&format!("```sh\n{command}\n```")), "{command}");
    }
    // The gate runs the README's command, not one of its own.
    assert!(read(".ci/run").contains("grep -m 1 '^cargo test ' README.md"));
    // The same first command everywhere.
    for page in ["docs/getting-started.md", "docs/faq.md"] {
        let text = read(page);
        let (_, first) = text.split_once("```sh\n").unwrap();
        assert!(first.starts_with(&format!("{}\n```", commands[0])), "{page}");
    }
}

#[test]
fn the_readme_counts_the_traced_environments() {
    let ids = podracer::envs::traced::list_envs();
    let names: BTreeSet<&str> = ids.iter().map(|id| id.rsplit_once("-v").unwrap().0).collect();
    assert_eq!(names.len(), 10);
    let readme = read("README.md").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(readme.contains("and ten traced environments"));
}

/// The anchor of a heading, as renderers of Markdown make it.
fn anchor_of(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Files below a folder of the repository, by their paths from its root. Build outputs and hidden
/// folders but `.ci` are left out.
fn files_in(folder: &str) -> Vec<String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if entry.file_type().unwrap().is_file() {
            files.push(path);
        } else if !["target", "runs", "videos"].contains(&&*name)
            && (!name.starts_with('.') || name == ".ci")
        {
            files.extend(files_in(&path));
        }
    }
    files
}

/// Every Markdown file of the repository.
fn markdown() -> Vec<String> {
    files_in("").into_iter().filter(|file| file.ends_with(".md")).collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut links = 0;
    for file in markdown() {
        let text = read(&file);
        assert!(text.is_ascii(), "{file}");
        let folder =
            file.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            let (page, anchor) = link.split_once('#').unwrap_or((link, ""));
            let page = if page.is_empty() { file.clone() } else { folder.clone() + page };
            let target = Path::new(env!("CARGO_MANIFEST_DIR")).join(&page);
            assert!(target.exists(), "{file} links to {link}");
            let found = anchor.is_empty()
                || read(&page)
                    .lines()
                    .any(|line| line.starts_with('#') && anchor_of(line) == anchor);
            assert!(found, "{file} links to {link}, and {page} has no such heading");
            links += 1;
        }
    }
    assert!(links > 100, "{links} links");
}

/// Words of a document that name files: between backticks, or in the commands of a block.
fn file_names(text: &str) -> Vec<&str> {
    let (mut names, mut in_block, mut in_commands) = (Vec::new(), false, false);
    for line in text.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            (in_block, in_commands) = (!in_block, !in_block && language == "sh");
        } else if in_commands {
            names.extend(line.split_whitespace());
        } else if !in_block {
            names.extend(line.split('`').skip(1).step_by(2).flat_map(str::split_whitespace));
        }
    }
    let placeholder = |name: &str| {
        let marks = ["NAME", "FAMILY", "OUT", "DIR", "..", "..."];
        name.split(['/', '.']).any(|part| marks.contains(&part))
            || name.contains(['{', '}', '<', '>', '*', '$', '=', '"'])
    };
    names.retain(|name| !placeholder(name));
    names.into_iter().map(|name| name.trim_matches([',', ';', ':', '(', ')', '.'])).collect()
}

/// Names that look like paths of this repository and are of something else.
const OTHER_FILES: [(&str, &str); 1] = [("docs/custom-environment.md", "src/main.rs")];

#[test]
fn documents_name_files_that_exist() {
    let (files, mut count) = (files_in(""), 0);
    let folders: BTreeSet<&str> =
        files.iter().filter_map(|file| Some(file.split_once('/')?.0)).collect();
    for page in markdown().iter().map(String::as_str).chain(["NOTICE"]) {
        for name in file_names(&read(page)) {
            let (path, _) = name.split_once([':', '#']).unwrap_or((name, ""));
            let path = path.trim_end_matches('/');
            let in_folder = path.split_once('/').is_some_and(|(first, _)| folders.contains(first));
            let known = if in_folder {
                Path::new(env!("CARGO_MANIFEST_DIR")).join(path).exists()
            } else if path.ends_with(".rs") {
                files.iter().any(|file| file == path || file.ends_with(&format!("/{path}")))
            } else {
                continue;
            };
            count += 1;
            assert!(known || OTHER_FILES.contains(&(page, path)), "{page} names {name}");
        }
    }
    assert!(count > 200, "{count} names");
}

/// The book's table of contents has every page of `docs`, and nothing else.
#[test]
fn summary_lists_every_page() {
    let summary = read("docs/SUMMARY.md");
    let links = summary.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let listed: BTreeSet<String> = links.map(String::from).collect();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let mut pages = BTreeSet::new();
    for folder in ["", "algos/", "decisions/"] {
        for entry in fs::read_dir(docs.join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") && name != "SUMMARY.md" {
                pages.insert(format!("{folder}{name}"));
            }
        }
    }
    assert_eq!(listed, pages);
}

const GUIDES: [&str; 9] = [
    "getting-started",
    "jax-users",
    "cleanrl-users",
    "custom-environment",
    "custom-robot",
    "custom-algorithm",
    "language-model",
    "faq",
    "glossary",
];

#[test]
fn guides_open_with_a_command_are_narrow_and_compiled() {
    let (library, readme) = (read("src/lib.rs"), read("README.md"));
    for guide in GUIDES {
        let text = read(&format!("docs/{guide}.md"));
        let mut paragraphs = text.split("\n\n").skip(1);
        assert!(paragraphs.next().unwrap().starts_with("For everyone who "), "{guide}");
        assert!(paragraphs.next().unwrap().starts_with("```sh\n"), "{guide}");
        for (i, line) in text.lines().enumerate() {
            assert!(line.len() <= 110, "docs/{guide}.md:{}: {} characters", i + 1, line.len());
        }
        let compiled = library.contains(&format!("include_str!(\"../docs/{guide}.md\")"));
        assert!(compiled || !text.contains("```rust"), "src/lib.rs does not compile {guide}");
        assert!(readme.contains(&format!("(docs/{guide}.md)")), "README does not link {guide}");
    }
}

/// Rust sources of a folder and the folders in it, joined.
fn sources_of(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &sources_of(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &fs::read_to_string(&path).unwrap();
        }
    }
    text
}

#[test]
fn the_faq_names_every_environment_variable() {
    let (faq, root) = (read("docs/faq.md"), Path::new(env!("CARGO_MANIFEST_DIR")));
    let mut variables = BTreeSet::new();
    for folder in ["src", "tests", "tools", "benches", "examples"] {
        let text = sources_of(&root.join(folder));
        for (start, _) in text.match_indices("PODRACER_") {
            let rest = &text[start..];
            let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_');
            variables.insert(rest[..end.unwrap_or(rest.len())].trim_end_matches('_').to_string());
        }
    }
    variables.retain(|name| name != "PODRACER" && !name.starts_with("PODRACER_TEST"));
    assert!(variables.len() > 10, "{variables:?}");
    for name in variables {
        assert!(faq.contains(&format!("`{name}`")), "docs/faq.md does not name {name}");
    }
}

/// The published package has every file that its sources take in when they are compiled. Fixtures of
/// unit tests stay in the repository.
#[test]
fn included_files_are_published() {
    let root = fs::canonicalize(env!("CARGO_MANIFEST_DIR")).unwrap();
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let list = ["package", "--list", "--allow-dirty", "--offline", "--package", "podracer"];
    let output = Command::new(cargo).args(list).current_dir(&root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let published = String::from_utf8(output.stdout).unwrap();
    let published: BTreeSet<&str> = published.lines().collect();
    let mut files = Vec::new();
    rust_files(&root.join("src"), &mut files);
    let (mut included, mut missing) = (0, Vec::new());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for part in text.split("include_").skip(1) {
            let Some((_, rest)) = part.split_once("!(\"") else { continue };
            let (path, _) = rest.split_once('"').unwrap();
            let path = fs::canonicalize(file.parent().unwrap().join(path)).unwrap();
            let path = path.strip_prefix(&root).unwrap().to_str().unwrap();
            included += 1;
            if !published.contains(path) && !path.starts_with("tests/fixtures/") {
                missing.push(format!("{path}, of {}", file.display()));
            }
        }
    }
    assert!(included > 15, "{included} files");
    assert!(missing.is_empty(), "excluded in Cargo.toml: {missing:#?}");
}

/// The guide to operations quotes lines that are in the sources.
#[test]
fn excerpts_of_the_guide_to_operations_are_in_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = sources_of(&root.join("src")) + &sources_of(&root.join("tests"));
    let lines: BTreeSet<&str> = sources.lines().map(str::trim).collect();
    let guide = read("docs/adding-an-op.md");
    let mut count = 0;
    for rest in guide.split("```rust,ignore\n").skip(1) {
        let excerpt = rest.lines().map(str::trim).take_while(|line| *line != "```");
        for line in excerpt.filter(|line| !line.is_empty() && *line != "// ...") {
            assert!(lines.contains(line), "docs/adding-an-op.md quotes: {line}");
            count += 1;
        }
    }
    assert!(count > 20, "{count} lines");
}

/// The README and the pages of the algorithms.
fn pages() -> Vec<String> {
    let mut pages = vec!["README.md".to_string()];
    for folder in ["docs", "docs/algos"] {
        let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let names = names.filter(|name| name.ends_with(".md"));
        pages.extend(names.map(|name| format!("{folder}/{name}")));
    }
    pages
}

/// The word after each `mark` in `text`.
fn words_after<'a>(text: &'a str, mark: &str) -> Vec<&'a str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let rests = text.split(mark).skip(1);
    rests.filter_map(|rest| rest.split(|c| !is_part(c)).next()).collect()
}

#[test]
fn commands_in_documents_name_examples_and_algorithms_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut commands = [0, 0];
    for page in pages() {
        let text = read(&page);
        for name in words_after(&text, "--example ") {
            commands[0] += 1;
            let file = root.join("examples").join(format!("{name}.rs"));
            assert!(name == "NAME" || file.exists(), "{page}: --example {name}");
        }
        for name in words_after(&text, "--release -- train ") {
            commands[1] += 1;
            // Without a name the command lists the algorithms.
            let known = ["", "NAME"].contains(&name) || registry::find(name).is_ok();
            assert!(known, "{page}: train {name}");
        }
    }
    assert!(commands[0] > 20 && commands[1] > 50, "{commands:?} commands");
}

/// Every example has the command that runs it, and the README lists it.
#[test]
fn examples_show_their_command_and_are_in_the_readme() {
    let readme = read("README.md");
    let mut count = 0;
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let doc: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
        assert!(doc.contains(&format!("cargo run --release --example {name}")), "{name}");
        assert!(readme.contains(&format!("[`{name}`](examples/{name}.rs)")), "{name}");
        count += 1;
    }
    assert_eq!(count, 14);
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

/// The names in backquotes of a text.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Every public function of optax is in one of the lists of `docs/jax-parity.md`, and those that the
/// page says are there are functions of this library.
#[test]
fn the_lists_of_optax_are_complete_and_true() {
    let page = read("docs/jax-parity.md");
    let (_, section) = page.split_once("\n## optax\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let (there, rest) = section.split_once("\nUnder another name").unwrap();
    let (renamed, missing) = rest.split_once("\nMissing of optax:\n").unwrap();
    let there: BTreeSet<&str> =
        there.lines().filter(|line| line.starts_with("| ")).flat_map(quoted).collect();
    let renamed: BTreeSet<&str> = renamed
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(quoted)
        .collect();
    let missing: BTreeSet<&str> = quoted(missing).collect();

    let mut files = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    rust_files(&root.join("src/optim"), &mut files);
    rust_files(&root.join("src/losses"), &mut files);
    let mut sources: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    sources.push_str(&read("src/optim.rs"));
    for name in &there {
        let function = [format!("\npub fn {name}("), format!("\npub fn {name}<")];
        let of_macro = format!(" {name} {{");
        let found = function.iter().any(|text| sources.contains(text.as_str()))
            || sources.contains(&of_macro);
        assert!(found, "docs/jax-parity.md says that {name} is there");
        assert!(!missing.contains(name), "{name} is there and missing");
    }
    let names = read("tests/fixtures/optim/names.txt");
    let mut unlisted = Vec::new();
    for name in names.lines() {
        if !there.contains(name) && !renamed.contains(name) && !missing.contains(name) {
            unlisted.push(name);
        }
    }
    assert!(there.len() > 100, "{} names", there.len());
    assert!(unlisted.is_empty(), "docs/jax-parity.md lists none of {unlisted:?}");
    let unknown: Vec<_> =
        missing.iter().filter(|name| !names.lines().any(|known| known == **name)).collect();
    assert!(unknown.is_empty(), "not functions of optax: {unknown:?}");
}

/// The repository names no address of its own: `tools/release` writes it where packages have it.
#[test]
fn a_release_names_its_address_and_has_no_relative_links() {
    let folder = tempfile::tempdir().unwrap();
    let release = |address: &str, name: &str| {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/release"));
        command.args(["--no-check", address]).arg(folder.path().join(name)).output().unwrap()
    };
    for address in ["", "example.org/podracer", "https://example.org/a b", "https://a.b/|e id|"] {
        assert_eq!(release(address, "refused").status.code(), Some(2), "{address}");
    }
    let address = "https://example.org/some/podracer";
    let output = release(address, "copy");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(release(address, "copy").status.code(), Some(2), "a folder that is there");

    let copied = |path: &str| fs::read_to_string(folder.path().join("copy").join(path)).unwrap();
    let readme = copied("README.md");
    let mut links = 0;
    for (_, link) in readme.match_indices("](").map(|(at, _)| readme[at..].split_at(2)) {
        assert!(link.starts_with(address), "{}", link.lines().next().unwrap_or_default());
        links += 1;
    }
    assert!(links > 40, "{links} links");
    assert!(readme.contains(&format!("]({address}/raw/v0.1.0/docs/figures/halfcheetah.gif)")));
    for (page, outside) in
        [("docs/faq.md", "](../"), ("docs/decisions/0009-unsafe-code.md", "](../../")]
    {
        let page = copied(page);
        assert!(!page.contains(outside) && page.contains(&format!("]({address}/blob/v0.1.0/")));
    }
    for manifest in ["Cargo.toml", "derive/Cargo.toml", "malloc/Cargo.toml"] {
        assert!(copied(manifest).contains("\nrepository.workspace = true\n"), "{manifest}");
    }
    assert!(copied("Cargo.toml").contains(&format!("\nrepository = \"{address}\"\n")));
    assert!(copied("pyproject.toml").contains(&format!("\nRepository = \"{address}\"\n")));
}
