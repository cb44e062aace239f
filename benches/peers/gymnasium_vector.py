"""Steps per second of Gymnasium's vector environments, for `cargo bench --bench gymnasium`.

Each line of standard input names an environment, a kind (sync, async, or alone: one environment in a plain
loop) and a number of environments; the answer is the steps per second of all of them together.
"""

import sys
import time
import warnings

import gymnasium
import numpy as np

SECONDS, DRAWN = 1.5, 256


def alone(env_id):
    env = gymnasium.make(env_id)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(DRAWN)]
    env.reset(seed=0)
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        steps += DRAWN
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


def main():
    warnings.filterwarnings("ignore")
    np.seterr(all="ignore")
    for line in sys.stdin:
        env_id, kind, num_envs = line.split()
        rate = alone(env_id) if kind == "alone" else vector(env_id, kind, int(num_envs))
        print(rate, flush=True)


if __name__ == "__main__":
    main()
