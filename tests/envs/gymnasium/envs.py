"""Environments for the tests of Gymnasium's family: spaces of every kind, and faults."""

import os
import time

import gymnasium
import numpy as np
from gymnasium import spaces

VECTOR = spaces.Box(-1, 1, (3,), np.float32)


class Noise(gymnasium.Env):
    """Draws its observations; an episode ends with probability 1/8. The reward depends on the action."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, observation_space, action_space, render_mode=None):
        self.observation_space, self.action_space = observation_space, action_space
        self.render_mode = render_mode
        self.steps = 0

    def draw(self, space=None):
        space = self.observation_space if space is None else space
        draw = self.np_random.integers
        if isinstance(space, spaces.Dict):
            return {name: self.draw(part) for name, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self.draw(part) for part in space.spaces)
        if isinstance(space, spaces.Discrete):
            return int(space.start + draw(space.n))
        if isinstance(space, spaces.MultiDiscrete):
            return draw(space.nvec).astype(space.dtype)
        if isinstance(space, spaces.MultiBinary):
            return draw(2, size=space.shape).astype(space.dtype)
        if np.issubdtype(space.dtype, np.floating):
            return self.np_random.uniform(-1, 1, space.shape).astype(space.dtype)
        return draw(2 if space.dtype == bool else 256, size=space.shape).astype(space.dtype)

    def mask(self):
        if not isinstance(self.action_space, spaces.Discrete):
            return {}
        mask = self.np_random.integers(2, size=self.action_space.n).astype(np.int8)
        mask[0] = 1
        return {"action_mask": mask}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.draw(), self.mask()

    def step(self, action):
        assert self.action_space.contains(action), action
        flat = spaces.utils.flatten(self.action_space, action)
        self.steps += 1
        reward = float(np.dot(flat, np.arange(1, len(flat) + 1)))
        end = self.np_random.random()
        return self.draw(), reward, bool(end < 0.1), bool(0.1 < end < 0.125), self.mask()

    def render(self):
        assert self.render_mode == "rgb_array"
        return np.full((4, 6, 3), self.steps, np.uint8)


class Faulty(Noise):
    """Does something wrong in step `at`, if the file `only` does not exist or names this process."""

    def __init__(self, fault="none", at=3, marker=None):
        super().__init__(VECTOR, spaces.Discrete(2))
        self.fault, self.at = fault, at
        # Of several environments only the one that makes the file is at fault.
        self.faulty = True
        if marker is not None:
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                self.faulty = False
        if fault == "make":
            raise RuntimeError("the engine is missing")

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if not self.faulty or self.steps != self.at:
            return obs, reward, False, False, info
        if self.fault == "raise":
            raise RuntimeError("out of fuel")
        if self.fault == "exit":
            raise SystemExit(3)
        if self.fault == "kill":
            os.kill(os.getpid(), 9)
        if self.fault == "hang":
            time.sleep(3600)
        if self.fault == "shape":
            obs = np.zeros((1,), np.float32)
        if self.fault == "type":
            obs = np.array(["a", "b", "c"])
        if self.fault == "reward":
            reward = None
        if self.fault == "nan":
            reward = float("nan")
        if self.fault == "arity":
            return obs, reward, False, info
        return obs, reward, False, False, info


class Doubled(gymnasium.RewardWrapper):
    """Multiplies the reward."""

    def __init__(self, env, factor=2):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward


class Blind(Noise):
    """Has no images."""

    metadata = {"render_modes": []}


class Wide(Noise):
    """Shows integers that the type of its space cannot hold."""

    def __init__(self, **kwargs):
        super().__init__(spaces.Box(0, 255, (2, 2), np.uint8), spaces.Discrete(2), **kwargs)

    def draw(self, space=None):
        return np.full((2, 2), 300, np.uint16)


OBSERVATIONS = {
    "Vector": VECTOR,
    "Double": spaces.Box(-np.inf, np.inf, (2,), np.float64),
    "Scalar": spaces.Box(-1, 1, (), np.float32),
    "Image": spaces.Box(0, 255, (4, 84, 84), np.uint8),
    "Board": spaces.Box(0, 1, (5, 5, 2), bool),
    "Bytes": spaces.Box(0, 255, (5,), np.uint8),
    "Discrete": spaces.Discrete(5, start=-2),
    "MultiDiscrete": spaces.MultiDiscrete([3, 4]),
    "MultiBinary": spaces.MultiBinary(3),
    "Dict": spaces.Dict({"b": spaces.Discrete(3, start=1), "a": VECTOR, "c": spaces.Tuple((VECTOR, spaces.MultiBinary(2)))}),
}
ACTIONS = {
    "Vector": spaces.Discrete(3),
    "Double": spaces.Box(np.array([-1, -2]), np.array([1, 2]), dtype=np.float64),
    "Scalar": spaces.Box(-1, 1, (2, 2), np.float32),
    "Image": spaces.Discrete(4, start=-1),
    "Board": spaces.MultiBinary(4),
    "Bytes": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "Discrete": spaces.Discrete(2),
    "MultiDiscrete": spaces.Tuple((spaces.Discrete(2, start=3), spaces.MultiDiscrete([3, 2]))),
    "MultiBinary": spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "y": spaces.Box(0, 3, (1, 2))}),
    "Dict": spaces.Discrete(2),
}
for name in OBSERVATIONS:
    gymnasium.register(
        f"{name}Noise-v0",
        Noise,
        kwargs={"observation_space": OBSERVATIONS[name], "action_space": ACTIONS[name]},
        max_episode_steps=20,
    )
gymnasium.register("Faulty-v0", Faulty)
gymnasium.register("Lonely-v0", Faulty)
gymnasium.register("Blind-v0", Blind, kwargs={"observation_space": VECTOR, "action_space": spaces.Discrete(2)})
gymnasium.register("Wide-v0", Wide)
gymnasium.register("Idle-v0", Noise, kwargs={"observation_space": VECTOR, "action_space": spaces.Tuple(())})
gymnasium.register("Mixed-v0", Noise, kwargs={"observation_space": VECTOR, "action_space": spaces.Tuple((VECTOR, spaces.Discrete(2)))})
