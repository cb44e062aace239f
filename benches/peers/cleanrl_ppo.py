"""CartPole-v1: our ppo_envpool_jit beside CleanRL's ppo.py on PyTorch, in turn.

usage: cleanrl_ppo.py PPO_PY PYTHON [ROUNDS]

PPO_PY is CleanRL's script, PYTHON an interpreter with its requirements (torch, gymnasium 0.29,
tyro, tensorboard). Ours must be built: cargo build --release --example ppo_envpool_jit.
Both run with CleanRL's defaults; steps per second are those of steady training, start-up and
compilation left out. Prints every round, medians, and the ratio.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

OURS = os.path.join(os.path.dirname(__file__), "../../target/release/examples/ppo_envpool_jit")
BATCH = 512


def ours(mode, steps):
    with tempfile.TemporaryDirectory() as runs:
        command = [OURS, "--json", "--mode", mode, "--runs-dir", runs, "--total-timesteps", str(steps)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    summary = json.loads(out.strip().splitlines()[-1])
    return summary["global_step"] / (summary["wall_s"] - summary["compile_s"])


def theirs(python, script, seconds):
    """Steps per second between the end of the fifth iteration and the end of the window."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [python, "-u", script], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        iterations, start = 0, None
        for line in process.stdout:
            if not line.startswith("SPS:"):
                continue
            iterations += 1
            if iterations == 5:
                start = time.perf_counter()
            elif start is not None and time.perf_counter() - start > seconds:
                break
        elapsed = time.perf_counter() - start
        process.kill()
        process.wait()
    return (iterations - 5) * BATCH / elapsed


def main():
    script, python = os.path.abspath(sys.argv[1]), sys.argv[2]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    ours("jit", 5000)
    ours("eager", 1024)
    rows = {"podracer jit": [], "podracer eager": [], "CleanRL ppo.py (torch)": []}
    for _ in range(rounds):
        rows["podracer jit"].append(ours("jit", 300_000))
        rows["podracer eager"].append(ours("eager", 4096))
        rows["CleanRL ppo.py (torch)"].append(theirs(python, script, 10))
    peer = statistics.median(rows["CleanRL ppo.py (torch)"])
    for name, values in rows.items():
        median = statistics.median(values)
        listed = ", ".join(f"{value:,.0f}" for value in values)
        print(f"{name:24} {median:>10,.0f} steps/s  {median / peer:6.2f}x  ({listed})")


if __name__ == "__main__":
    main()
