//! The timeline of a run: what is in the file, and that it is a file that viewers take.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use podracer::algos::ppo;
use podracer::rl::Algorithm;
use podracer::{Array, Tensor, jit, timeline};
use serde_json::Value;

/// One recording at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Spans by the name of their row, and the whole list.
fn read(path: &std::path::Path) -> BTreeMap<String, Vec<(String, f64, f64)>> {
    let text = std::fs::read_to_string(path).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    let mut names = BTreeMap::new();
    for event in events.iter().filter(|event| event["name"] == "thread_name") {
        let name = event["args"]["name"].as_str().unwrap().to_string();
        assert!(names.insert(event["tid"].as_u64().unwrap(), name).is_none());
    }
    let mut rows = BTreeMap::<String, Vec<_>>::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let number = |key: &str| event[key].as_f64().unwrap();
        assert!(number("ts") >= 0.0 && number("dur") >= 0.0 && event["pid"] == 1);
        let row = names[&event["tid"].as_u64().unwrap()].clone();
        let name = event["name"].as_str().unwrap().to_string();
        rows.entry(row).or_default().push((name, number("ts"), number("ts") + number("dur")));
    }
    rows
}

/// Viewers draw spans of one row that overlap without one being inside the other wrongly.
fn expect_nested(spans: &[(String, f64, f64)]) {
    let mut spans = spans.to_vec();
    spans.sort_by(|a, b| a.1.total_cmp(&b.1).then(b.2.total_cmp(&a.2)));
    let mut open: Vec<f64> = Vec::new();
    for (name, start, end) in spans {
        // Times are rounded to a nanosecond.
        open.retain(|&outer| outer > start + 0.002);
        assert!(open.last().is_none_or(|&outer| end <= outer + 0.002), "{name} leaves its span");
        open.push(end);
    }
}

#[test]
fn spans_of_all_threads_are_recorded() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spans.json");
    drop(timeline::span("before"));
    let recording = timeline::start(&path).unwrap();
    let busy = timeline::start(&path).map(|_| ()).unwrap_err().to_string();
    assert!(busy.starts_with("a timeline is being recorded already"), "{busy}");
    {
        let _outer = timeline::span("outer");
        let _inner = timeline::span_of("read", "\"quoted\"\n\\");
    }
    std::thread::Builder::new()
        .name("helper".into())
        .spawn(|| drop(timeline::span("elsewhere")))
        .unwrap()
        .join()
        .unwrap();
    recording.finish().unwrap();
    drop(timeline::span("after"));
    let rows = read(&path);
    let own = std::thread::current().name().unwrap().to_string();
    let names: BTreeSet<&str> = rows[&own].iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, BTreeSet::from(["outer", "read \"quoted\"\n\\"]));
    assert_eq!(rows["helper"][0].0, "elsewhere");
    expect_nested(&rows[&own]);
    let error = timeline::start(dir.path().join("no/such/run.json")).map(|_| ()).unwrap_err();
    assert!(error.to_string().starts_with("cannot write "), "{error}");
    // A recording that could not start is none.
    drop(timeline::start(&path).unwrap());
    assert!(read(&path).is_empty());
}

#[test]
fn a_run_of_ppo_shows_its_programs_and_the_environments() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let (path, runs) = (dir.path().join("ppo.json"), dir.path().join("runs"));
    let flags = "--total-timesteps 128 --num-envs 4 --num-steps 16 --num-threads 2 --json";
    let (file, runs) = (path.to_str().unwrap(), runs.to_str().unwrap());
    let flags = flags.split(' ').chain(["--timeline", file, "--runs-dir", runs]);
    ppo::Args::from_flags(flags).unwrap().train().unwrap();
    let rows = read(&path);
    let own = std::thread::current().name().unwrap().to_string();
    let count = |row: &str, name: &str| rows[row].iter().filter(|span| span.0 == name).count();
    for program in ["ppo_init", "ppo_iteration"] {
        assert_eq!(count(&own, &format!("trace {program}")), 1);
        assert_eq!(count(&own, &format!("lower {program}")), 1);
    }
    assert_eq!(count(&own, "execute ppo_iteration"), 2);
    assert!(count(&own, "compile") >= 2 && count(&own, "to the host") >= 2);
    assert_eq!(count("device 0", "ppo_iteration"), 2);
    // The program calls the environments: in its own thread, or in one of the runtime's.
    let in_all_rows = |name: &str| rows.keys().map(|row| count(row, name)).sum::<usize>();
    assert_eq!((in_all_rows("env step"), in_all_rows("env recv")), (32, 33));
    rows.values().for_each(|spans| expect_nested(spans));
}

#[test]
fn results_are_the_same_with_a_timeline() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let f = jit(|x: Tensor| (x * 2.0, x.sum(..)));
    let run = || {
        let (double, sum) = f.call(Array::from([1.0f32, 2.0])).unwrap();
        (double.to_vec::<f32>().unwrap(), sum.item::<f32>().unwrap())
    };
    let before = run();
    let _recording = timeline::start(dir.path().join("run.json")).unwrap();
    assert_eq!(run(), before);
}
