//! Completion of the command's words in a shell.

use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_podracer");

/// The words that bash offers for the last of `words`.
fn offered(words: &[&str]) -> Vec<String> {
    let words = words.join(" ");
    let script = format!(
        "source <({PROGRAM} completions bash)\n\
         COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_TYPE=9\n\
         _clap_complete_podracer podracer \"${{COMP_WORDS[COMP_CWORD]}}\" ''\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect()
}

#[test]
fn bash_completes_commands_algorithms_flags_and_environments() {
    assert_eq!(offered(&["podracer", "tr"]), ["train"]);
    assert_eq!(offered(&["podracer", "train", "dqn_a"]), ["dqn_anakin", "dqn_atari"]);
    assert_eq!(offered(&["podracer", "train", "ppo", "--learning"]), ["--learning-rate"]);
    assert_eq!(offered(&["podracer", "train", "ppo", "--env-id", "Pend"])[0], "Pendulum-v1");
    assert_eq!(offered(&["podracer", "eval", "--episo"]), ["--episodes"]);
    assert_eq!(offered(&["podracer", "tune", "dqn_a"]), ["dqn_anakin", "dqn_atari"]);
    assert_eq!(
        offered(&["podracer", "benchmark", "--algos", "crossq"])[0],
        "crossq_continuous_action"
    );
    assert_eq!(offered(&["podracer", "compare", "--algos", "td3"]), ["td3_continuous_action"]);
    assert_eq!(offered(&["podracer", "envs", "Pend"])[0], "Pendulum-v1");
}

#[test]
fn every_shell_has_a_script() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = Command::new(PROGRAM).args(["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(script.contains("PODRACER_COMPLETE") && script.contains(PROGRAM), "{script}");
    }
    let output = Command::new(PROGRAM).args(["completions", "tcsh"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
