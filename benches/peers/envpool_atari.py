"""Atari steps per second: ours, EnvPool's and ale-py's own vector environment, in turn.

usage: python -m venv /tmp/atarienv
       /tmp/atarienv/bin/pip install envpool==1.2.5 ale-py==0.12.1 gymnasium
       cargo bench --bench envs --no-run
       /tmp/atarienv/bin/python benches/peers/envpool_atari.py BENCH [ROUNDS]

BENCH is the executable that cargo names. For each setting the three run one after the other, ROUNDS
times (3); a run is 5 repeats of 0.4 s and more after a warm-up. The table has the median and the
range of all repeats, and the median over rounds of the ratio to EnvPool: a busy machine slows all
three, but not always alike. All have EnvPool's defaults: 4 frames, 84x84 gray, a stack of 4.
"""

import json
import statistics
import subprocess
import sys
import time
import warnings

import envpool
import numpy as np
from ale_py.vector_env import AtariVectorEnv

warnings.filterwarnings("ignore")
REPEATS, REPEAT, DRAWN = 5, 0.4, 256


def rates(step, batch):
    found, calls = [], 0
    for _ in range(REPEATS + 1):
        began, first = time.perf_counter(), calls
        while time.perf_counter() - began < REPEAT:
            for _ in range(8):
                step(calls % DRAWN)
                calls += 1
        found.append((calls - first) * batch / (time.perf_counter() - began))
    return found[1:]


def of_envpool(game, num_envs, batch, threads):
    env = envpool.make(f"{game}-v5", env_type="gymnasium", num_envs=num_envs, batch_size=batch,
                       num_threads=threads, seed=1)
    count = env.action_space.n
    actions = np.random.default_rng(0).integers(0, count, (DRAWN, batch)).astype(np.int32)
    if batch == num_envs:
        env.reset()
        return rates(lambda k: env.step(actions[k]), batch)
    env.async_reset()
    return rates(lambda k: env.send(actions[k], env.recv()[-1]["env_id"]), batch)


def of_ale(game, num_envs, batch, threads):
    if batch != num_envs:
        return None
    name = "".join("_" + c.lower() if c.isupper() else c for c in game).lstrip("_")
    env = AtariVectorEnv(name, num_envs=num_envs, num_threads=threads, reward_clipping=False)
    count = env.single_action_space.n
    actions = np.random.default_rng(0).integers(0, count, (DRAWN, num_envs))
    env.reset(seed=1)
    found = rates(lambda k: env.step(actions[k]), num_envs)
    env.close()
    return found


def of_podracer(bench, game, num_envs, batch, threads):
    command = [bench, f"{game}-v5", str(num_envs), str(batch), str(threads)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    said = json.loads(said)
    return [said["min"], said["steps_per_s"], said["max"]]


def main():
    bench, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    print("| game | envs | batch | threads | podracer | envpool | ale-py | podracer / envpool |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for game in ("Pong", "Breakout"):
        for num_envs in (8, 32):
            for batch in (num_envs, num_envs // 2):
                for threads in (1, 2):
                    row(bench, rounds, game, num_envs, batch, threads)


def row(bench, rounds, *setting):
    ours, theirs, ale, ratios = [], [], [], []
    for _ in range(rounds):
        ours.append(of_podracer(bench, *setting))
        theirs.append(of_envpool(*setting))
        ale.append(of_ale(*setting))
        ratios.append(statistics.median(ours[-1]) / statistics.median(theirs[-1]))

    def shown(runs):
        if runs[0] is None:
            return "-"
        values = [value for run in runs for value in run]
        middle = statistics.median(statistics.median(run) for run in runs)
        return f"{middle:,.0f} ({min(values):,.0f} - {max(values):,.0f})"

    game, num_envs, batch, threads = setting
    print(f"| {game} | {num_envs} | {batch} | {threads} | {shown(ours)} | {shown(theirs)} "
          f"| {shown(ale)} | {statistics.median(ratios):.2f} |", flush=True)


if __name__ == "__main__":
    main()
