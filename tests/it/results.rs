//! Tables and figures of the documentation are those of the results file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Maximum size of `docs/results`, in bytes.
const MAX_FOLDER: u64 = 1 << 20;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn tables_and_figures_are_the_output_of_the_command() {
    let copy = tempfile::tempdir().unwrap();
    for folder in ["results", "algos"] {
        fs::create_dir(copy.path().join(folder)).unwrap();
        for path in files_in(&docs().join(folder)) {
            fs::copy(&path, copy.path().join(folder).join(path.file_name().unwrap())).unwrap();
        }
    }
    fs::copy(docs().join("results.md"), copy.path().join("results.md")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_podracer"));
    let output = command.args(["benchmark", "--write-docs"]).arg(copy.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let advice = "run `podracer benchmark --write-docs`";
    let (page, written) = (docs().join("results.md"), copy.path().join("results.md"));
    pretty_assertions::assert_eq!(read(&page), read(&written), "{advice}");
    let figures = |docs: &Path| files_in(&docs.join("figures/results"));
    let name = |path: &PathBuf| path.file_name().unwrap().to_owned();
    let (ours, theirs) = (figures(&docs()), figures(copy.path()));
    let names = |paths: &[PathBuf]| paths.iter().map(name).collect::<Vec<_>>();
    assert_eq!(names(&ours), names(&theirs), "{advice}");
    for (own, written) in ours.iter().zip(&theirs) {
        assert!(read(own) == read(written), "{}: {advice}", own.display());
    }
}

#[test]
fn the_folder_of_results_is_small() {
    let sizes = files_in(&docs().join("results")).into_iter().map(|path| path.metadata().unwrap());
    let total: u64 = sizes.map(|file| file.len()).sum();
    assert!((1..MAX_FOLDER).contains(&total), "docs/results has {total} bytes");
}
