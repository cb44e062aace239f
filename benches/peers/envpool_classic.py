"""EnvPool's steps per second for the settings of `benches/envs.rs`, beside ours.

usage: python -m venv /tmp/gymenv && /tmp/gymenv/bin/pip install envpool gymnasium
       /tmp/gymenv/bin/python benches/peers/envpool_classic.py [ENV_ID ...]

Runs `cargo bench --bench envs` for each setting right before EnvPool, twice in turn, and prints a
table with the ratios of the better medians: a busy machine only ever makes either slower.
Actions are drawn beforehand; a repeat is 0.4 s; the median of 5 after a warm-up.
"""

import json
import os
import subprocess
import sys
import time
import warnings

import envpool
import numpy as np

warnings.filterwarnings("ignore")
REPEATS, REPEAT, DRAWN = 5, 0.4, 256


def rates(env_id, num_envs, batch_size, num_threads):
    env = envpool.make(env_id, env_type="gymnasium", num_envs=num_envs, batch_size=batch_size,
                       num_threads=num_threads, seed=1)
    rng, space = np.random.default_rng(0), env.action_space
    if hasattr(space, "n"):
        actions = rng.integers(0, space.n, size=(DRAWN, batch_size)).astype(np.int32)
    else:
        actions = rng.uniform(-1, 1, size=(DRAWN, batch_size) + space.shape).astype(np.float32)
    synchronous = batch_size == num_envs
    if synchronous:
        env.reset()
    else:
        env.async_reset()
    calls, found = 0, []
    for _ in range(REPEATS + 1):
        began, first = time.perf_counter(), calls
        while time.perf_counter() - began < REPEAT:
            for _ in range(16):
                if synchronous:
                    env.step(actions[calls % DRAWN])
                else:
                    env.send(actions[calls % DRAWN], env.recv()[-1]["env_id"])
                calls += 1
        found.append((calls - first) * batch_size / (time.perf_counter() - began))
    return sorted(found[1:])


def podracer(*setting):
    here = os.path.dirname(os.path.abspath(__file__))
    command = ["cargo", "bench", "--quiet", "--bench", "envs", "--"] + [str(x) for x in setting]
    output = subprocess.run(command, cwd=here, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output)


def main():
    print("envpool", envpool.__version__, "cores", os.cpu_count())
    print("| environment | envs | batch | threads asked (used) | podracer | min - max | envpool | min - max | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for env_id in sys.argv[1:] or ["CartPole-v1"]:
        for num_envs in (8, 64, 1024):
            for batch_size in (num_envs, num_envs // 2):
                for num_threads in (0, 1, 2):
                    row(env_id, num_envs, batch_size, num_threads)


def row(*setting):
    ours, theirs = [], []
    for _ in range(2):
        ours.append(podracer(*setting))
        theirs.append(rates(*setting))
    ours = max(ours, key=lambda x: x["steps_per_s"])
    theirs = max(theirs, key=lambda x: x[REPEATS // 2])
    median = theirs[REPEATS // 2]
    env_id, num_envs, batch_size, num_threads = setting
    print(f"| {env_id} | {num_envs} | {batch_size} | {num_threads} ({ours['threads_used']}) "
          f"| {ours['steps_per_s']:,.0f} | {ours['min']:,.0f} - {ours['max']:,.0f} "
          f"| {median:,.0f} | {theirs[0]:,.0f} - {theirs[-1]:,.0f} "
          f"| {ours['steps_per_s'] / median:.1f} |", flush=True)


if __name__ == "__main__":
    main()
