"""Steps per second of Gymnasium's vector environments, for `cargo bench --bench gymnasium`.

Each line of standard input names an environment, a kind (sync, async, loops, or envpool) and a number of
environments; the answer is the steps per second of all of them together. For loops, two processes step half of
the environments each in a plain loop. For envpool, EnvPool steps the environment `envpool:ID` in two threads.
"""

import itertools
import multiprocessing
import sys
import time
import warnings

import gymnasium
import numpy as np

SECONDS, DRAWN = 1.5, 256


def loop(env_id, count):
    envs = [gymnasium.make(env_id) for _ in range(count)]
    envs[0].action_space.seed(0)
    actions = [[envs[0].action_space.sample() for _ in envs] for _ in range(DRAWN)]
    for k, env in enumerate(envs):
        env.reset(seed=k)
    steps, began, calls = 0, time.perf_counter(), itertools.cycle(actions)
    while time.perf_counter() - began < SECONDS:
        for _ in range(16):
            for env, action in zip(envs, next(calls)):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
        steps += 16 * count
    return steps / (time.perf_counter() - began)


def vector(env_id, kind, num_envs):
    cls = {"sync": gymnasium.vector.SyncVectorEnv, "async": gymnasium.vector.AsyncVectorEnv}[kind]
    envs = cls([lambda: gymnasium.make(env_id)] * num_envs)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(DRAWN)]
    envs.reset(seed=0)
    for action in actions[:32]:
        envs.step(action)
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        for action in actions[:16]:
            envs.step(action)
        steps += 16 * num_envs
    rate = steps / (time.perf_counter() - began)
    envs.close()
    return rate


def envpool_vector(env_id, num_envs):
    import envpool

    envs = envpool.make(env_id.removeprefix("envpool:"), env_type="gymnasium", num_envs=num_envs, num_threads=2)
    envs.action_space.seed(0)
    actions = [np.stack([envs.action_space.sample() for _ in range(num_envs)]) for _ in range(DRAWN)]
    envs.reset()
    steps, began, calls = 0, time.perf_counter(), itertools.cycle(actions)
    while time.perf_counter() - began < SECONDS:
        for _ in range(16):
            envs.step(next(calls))
        steps += 16 * num_envs
    return steps / (time.perf_counter() - began)


def main():
    warnings.filterwarnings("ignore")
    np.seterr(all="ignore")
    for line in sys.stdin:
        env_id, kind, num_envs = line.split()
        if kind == "loops":
            with multiprocessing.Pool(2) as pool:
                rate = sum(pool.starmap(loop, [(env_id, int(num_envs) // 2)] * 2, chunksize=1))
        elif kind == "envpool":
            rate = envpool_vector(env_id, int(num_envs))
        else:
            rate = vector(env_id, kind, int(num_envs))
        print(rate, flush=True)


if __name__ == "__main__":
    main()
