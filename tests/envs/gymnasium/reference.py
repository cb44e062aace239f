"""Steps environments with Gymnasium or EnvPool itself: settings on standard input, results on standard output, in JSON.

Every step resets an environment whose episode ended, as a pool does that resets in the same step.
"""

import importlib
import json
import sys

import gymnasium
import numpy as np
from gymnasium import spaces


def unflatten(space, values):
    """The action of `space` from the numbers that the pool was given, which are taken out of `values`."""
    if isinstance(space, spaces.Dict):
        return {name: unflatten(part, values) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(unflatten(part, values) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return np.int64(space.start + values.pop(0))
    count = int(np.prod(space.shape))
    taken = np.array([values.pop(0) for _ in range(count)], space.dtype).reshape(space.shape)
    return taken + getattr(space, "start", 0) if isinstance(space, spaces.MultiDiscrete) else taken


def numbers(space, obs):
    if isinstance(space, spaces.Discrete):
        return [float(obs - space.start)]
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        obs = spaces.flatten(space, obs)
        return [float(x) for x in obs.astype(np.float32)]
    if obs.dtype == np.uint8 and obs.ndim == 3 and obs.shape[2] == 3:
        obs = np.moveaxis(obs, 2, 0)
    return [float(x) for x in np.ravel(obs)]


class EnvPoolEnv:
    """One environment of EnvPool, without the axis of environments."""

    def __init__(self, settings, seed):
        import envpool

        kwargs = dict(settings["kwargs"])
        keys = kwargs.pop("filter_keys", None)
        self.env = envpool.make(settings["id"], env_type="gymnasium", num_envs=1, seed=[seed], **kwargs)
        self.action_space, self.observation_space, self.keys = self.env.action_space, self.env.observation_space, keys
        if keys:
            left = {key: self.observation_space[key] for key in keys}
            self.observation_space = left[keys[0]] if len(keys) == 1 else spaces.Dict(list(left.items()))

    def one(self, obs):
        if self.keys and len(self.keys) == 1:
            obs = obs[self.keys[0]]
        if isinstance(obs, dict):
            return {key: self.one_of(obs[key], space) for key, space in self.observation_space.spaces.items()}
        return obs[0]

    def one_of(self, obs, space):
        if isinstance(space, spaces.Dict):
            return {key: self.one_of(obs[key], part) for key, part in space.spaces.items()}
        return obs[0]

    def reset(self):
        obs, info = self.env.reset(np.zeros(1, np.int32))
        return self.one(obs), info

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(np.asarray(action)[None])
        return self.one(obs), reward[0], terminated[0], truncated[0], info


def main():
    settings = json.load(sys.stdin)
    results = {"first": [], "steps": []}
    envs = []
    for seed in settings["seeds"]:
        if settings["family"] == "envpool":
            envs.append(EnvPoolEnv(settings, seed))
            results["first"].append(numbers(envs[-1].observation_space, envs[-1].reset()[0]))
            continue
        env = gymnasium.make(settings["id"], **settings["kwargs"])
        for path, kwargs in settings["wrappers"]:
            module, name = path.rsplit(".", 1)
            env = getattr(importlib.import_module(module), name)(env, **kwargs)
        obs, _ = env.reset(seed=seed)
        results["first"].append(numbers(env.observation_space, obs))
        envs.append(env)
    for actions in settings["actions"]:
        rows = []
        for env, action in zip(envs, actions):
            obs, reward, terminated, truncated, _ = env.step(unflatten(env.action_space, list(action)))
            row = {"reward": float(reward), "terminated": bool(terminated), "truncated": bool(truncated), "last": None}
            if terminated or truncated:
                row["last"] = numbers(env.observation_space, obs)
                obs, _ = env.reset()
            row["obs"] = numbers(env.observation_space, obs)
            rows.append(row)
        results["steps"].append(rows)
    json.dump(results, sys.stdout)


main()
