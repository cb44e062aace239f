//! Measurements for a machine with a GPU: their commands, and the tables of their results.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use podracer::algos::registry;
use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn run(args: &[&str]) -> Output {
    // As a script, by its path: `python3` is found as users find it.
    let output = Command::new(root().join("benches/gpu/run")).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn strings(row: &Value, key: &str) -> Vec<String> {
    let words = row[key].as_array().into_iter().flatten();
    words.map(|word| word.as_str().unwrap().to_string()).collect()
}

#[test]
fn tables_of_gpus_are_the_output_of_the_command() {
    let docs = tempfile::tempdir().unwrap();
    fs::create_dir(docs.path().join("results")).unwrap();
    for file in ["gpus.md", "results/gpu.jsonl"] {
        fs::copy(root().join("docs").join(file), docs.path().join(file)).unwrap();
    }
    run(&["--write-docs", docs.path().to_str().unwrap()]);
    let read = |docs: &Path| fs::read_to_string(docs.join("gpus.md")).unwrap();
    let page = read(&root().join("docs"));
    let advice = "run `benches/gpu/run --write-docs`";
    pretty_assertions::assert_eq!(page, read(docs.path()), "{advice}");
    // Figures are in their row, with the ratio of the sides; rows without one say so.
    let figures = [("Podracer", 1500.0), ("LeanRL", 750.0)].map(|(side, figure)| {
        let line = serde_json::json!({
            "row": "leanrl_sac", "side": side, "figure": figure, "unit": "steps/s", "card": "card",
            "commit": "abc", "date": "day", "sitting": "time",
        });
        format!("{line}\n")
    });
    fs::write(docs.path().join("results/gpu.jsonl"), figures.concat()).unwrap();
    run(&["--write-docs", docs.path().to_str().unwrap()]);
    let written = read(docs.path());
    let (measured, rest): (Vec<&str>, Vec<&str>) = written
        .lines()
        .filter(|line| line.starts_with("| `") && line.matches(" | ").count() == 6)
        .partition(|line| line.starts_with("| `leanrl_sac` |"));
    let row = "| 1,500 | 750 (LeanRL) | 2.00x | card, abc, day |";
    assert_eq!(measured, [format!("| `leanrl_sac` | SAC, HalfCheetah-v4 | steps/s {row}")]);
    assert!(rest.len() > 40, "{} rows", rest.len());
    for line in rest {
        assert!(line.ends_with("| not measured | - | - | - |"), "{line}");
    }
}

#[test]
fn commands_of_gpu_rows_are_known() {
    let output = String::from_utf8(run(&["--list"]).stdout).unwrap();
    let rows: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: BTreeSet<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), rows.len(), "names are unique");
    let benches = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    for row in &rows {
        let ours = strings(row, "ours");
        match row["kind"].as_str().unwrap() {
            "bench" => {
                assert!(benches.contains(&format!("[[bench]]\nname = \"{}\"", ours[0])), "{row}");
            }
            "pool" => drop(podracer::envs::make(&ours[0]).unwrap()),
            _ => {
                let entry = registry::find(&ours[0]).unwrap();
                let settings = (entry.settings)(ours.iter().map(Into::into).collect());
                assert!(settings.is_ok(), "{row}: {}", settings.unwrap_err());
            }
        }
    }
    let results = fs::read_to_string(root().join("docs/results/gpu.jsonl")).unwrap();
    for line in results.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(names.contains(line["row"].as_str().unwrap()), "{line}");
    }
    let chosen = run(&["--list", "--dry-run", "--rows", "pong_1,leanrl_t*"]).stdout;
    let chosen = String::from_utf8(chosen).unwrap();
    assert_eq!(chosen.lines().count(), 4, "{chosen}");
    let unknown = Command::new(root().join("benches/gpu/run")).args(["--rows", "pong_9"]).output();
    let unknown = unknown.unwrap();
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no row is named pong_9"));
    assert_eq!(unknown.status.code(), Some(2));
}
