"""Environments for the tests of Gymnasium's family: spaces of every kind, and faults."""

import multiprocessing
import os
import time

import gymnasium
import numpy as np
from gymnasium import spaces

VECTOR = spaces.Box(-1, 1, (3,), np.float32)


class Noise(gymnasium.Env):
    """Draws its observations; an episode ends with probability 1/8. The reward depends on the action."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}

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
        if isinstance(space, spaces.Text):
            return np.zeros(3, np.float32)  # no text
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


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError


def long_error():
    raise RuntimeError("x" * 200_000_000)


def colored_error():
    raise RuntimeError("\x1b[31mred\x1b[0m \ud800")


def unprintable_error():
    raise Unprintable


# Results of a step, each in its own way not what Gymnasium expects, or functions that raise.
OBS = np.zeros(3, np.float32)
ODD = [
    lambda: None,
    lambda: OBS,
    lambda: (OBS, 1.0, False, {}),
    lambda: (OBS, None, False, False, {}),
    lambda: (OBS, "1", False, False, {}),
    lambda: (OBS, np.zeros(2), False, False, {}),
    lambda: (OBS, {}, False, False, {}),
    lambda: (OBS, float("inf"), False, False, {}),
    lambda: (OBS, 1e300, False, False, {}),
    lambda: (OBS, 1.0, None, False, {}),
    lambda: (OBS, 1.0, False, "no", {}),
    lambda: (OBS, 1.0, np.array([True, False]), False, {}),
    lambda: (None, 1.0, False, False, {}),
    lambda: ([[1], [1, 2]], 1.0, False, False, {}),
    lambda: ({"x": OBS}, 1.0, False, False, {}),
    lambda: (OBS + np.inf, 1.0, False, False, {}),
    long_error,
    colored_error,
    unprintable_error,
]


class Odd(Noise):
    """Returns the results above, one after another, and then arrays of one element, which are taken."""

    def __init__(self, reset=None):
        super().__init__(VECTOR, spaces.Discrete(2))
        self.calls, self.first = 0, reset

    def reset(self, seed=None, options=None):
        first = super().reset(seed=seed)
        return {None: first, "obs": first[0], "none": None}[self.first]

    def step(self, action):
        self.calls += 1
        if self.calls <= len(ODD):
            return ODD[self.calls - 1]()
        return OBS, np.array([1.5]), np.array([False]), np.bool_(False), None


class Forking(Noise):
    """Forks in every step. The child returns from the step too, raises, or runs a function of its own."""

    def __init__(self, child, folder):
        super().__init__(VECTOR, spaces.Discrete(2))
        self.child, self.folder = child, folder

    def step(self, action):
        self.steps += 1
        if self.child == "process":
            path = os.path.join(self.folder, str(self.steps))
            child = multiprocessing.get_context("fork").Process(target=os.mkdir, args=(path,))
            child.start()
            child.join()
            assert child.exitcode == 0 and os.path.isdir(path)
        elif os.fork() == 0:
            if self.child == "raise":
                raise RuntimeError("in the child")
            if self.child == "exit":
                raise SystemExit(3)
            # What a child writes reaches nobody.
            return OBS + 1, -1.0, True, False, {}
        return OBS, float(self.steps), False, False, {}


class Bounded(Noise):
    """Actions between bounds that f32 rounds. The reward is 1 if every element is at one of its bounds."""

    def __init__(self, seed=0, boxes=40):
        rng = np.random.default_rng(seed)
        space = spaces.Dict({f"{k:02}": self.box(rng) for k in range(boxes)})
        super().__init__(VECTOR, spaces.Tuple((space, spaces.Box(np.array([-0.1, 0.1]), np.array([0.3, 0.7]), dtype=np.float64))))

    @staticmethod
    def box(rng):
        dtype = np.dtype(rng.choice(["f8", "f8", "f4", "f2", "i1", "u1", "i4", "i8", "u8"]))
        if dtype.kind == "f":
            scale = 10.0 ** rng.integers(*((-4, 4) if dtype.itemsize == 2 else (-30, 30)))
            ends = (rng.normal(size=(2, 3)) * scale).astype(dtype)
            low, high = ends.min(0), ends.max(0)
            if rng.random() < 0.3:
                high = np.nextafter(low, np.array(np.inf, dtype))
        else:
            limits = np.iinfo(dtype)
            ends = rng.integers(limits.min, limits.max, (2, 3), dtype, endpoint=True)
            low, high = ends.min(0), ends.max(0)
            if rng.random() < 0.3:
                low, high = np.full(3, limits.min, dtype), np.full(3, limits.max, dtype)
        return spaces.Box(low, high, dtype=dtype)

    def step(self, action):
        named, pair = action
        boxes = [*((self.action_space[0][name], part) for name, part in named.items()), (self.action_space[1], pair)]
        for box, part in boxes:
            assert box.contains(part), (box.low, part, box.high, box.dtype)
        ends = all(((part == box.low) | (part == box.high)).all() for box, part in boxes)
        self.steps += 1
        return OBS, float(ends), self.steps == 8, False, {}


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


class Unpainted(Noise):
    """Raises an error when it is to draw its third image."""

    def __init__(self, render_mode=None):
        super().__init__(VECTOR, spaces.Discrete(2), render_mode)
        self.images = 0

    def render(self):
        self.images += 1
        if self.images == 3:
            raise RuntimeError("out of paint")
        return super().render()


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
    "Colors": spaces.Box(0, 255, (40, 36, 3), np.uint8),
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
    "Colors": spaces.Box(-1, 1, (3,), np.float32),
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
gymnasium.register(
    "StartNoise-v0",
    Noise,
    kwargs={"observation_space": OBSERVATIONS["Dict"], "action_space": spaces.Discrete(3, start=1)},
    max_episode_steps=20,
)
gymnasium.register("Faulty-v0", Faulty)
gymnasium.register("Lonely-v0", Faulty)
gymnasium.register("Blind-v0", Blind, kwargs={"observation_space": VECTOR, "action_space": spaces.Discrete(2)})
gymnasium.register("Wide-v0", Wide)
gymnasium.register("Unpainted-v0", Unpainted, max_episode_steps=20)
gymnasium.register("Odd-v0", Odd, disable_env_checker=True)
gymnasium.register("Forking-v0", Forking)
gymnasium.register("Bounded-v0", Bounded)
FREE = spaces.Box(np.array([-np.inf, 0]), np.inf, (2,), np.float64)
DISCRETE, ARRAY = spaces.Discrete(5), spaces.Box(-1, 1, (2, 3), np.float64)
for name, observation_space, action_space in [
    ("Free", VECTOR, FREE),
    ("FreeDiscrete", DISCRETE, FREE),
    ("FreeArray", ARRAY, FREE),
    ("Narrow", VECTOR, spaces.Box(np.array([-0.1, 0.1]), np.array([0.3, 0.7]), dtype=np.float64)),
    ("DiscreteArray", ARRAY, DISCRETE),
    ("DiscreteDiscrete", DISCRETE, DISCRETE),
    ("Text", spaces.Text(5), DISCRETE),
    ("Sequence", spaces.Sequence(VECTOR), DISCRETE),
    ("NoSpace", None, DISCRETE),
]:
    own = {"observation_space": observation_space, "action_space": action_space}
    gymnasium.register(f"{name}-v0", Noise, kwargs=own, max_episode_steps=20, disable_env_checker=True)
gymnasium.register("Idle-v0", Noise, kwargs={"observation_space": VECTOR, "action_space": spaces.Tuple(())})
gymnasium.register("Mixed-v0", Noise, kwargs={"observation_space": VECTOR, "action_space": spaces.Tuple((VECTOR, spaces.Discrete(2)))})
