"""Steps environments of Gymnasium or PettingZoo for a pool of Podracer, which starts this script and
speaks first.

Arguments: the file descriptors of the pipe of requests, of the pipe of replies, and of the shared
memory. A message is a length (u32) and JSON of that length. The pool sends the settings of its
environments; the reply is "S" and a message with their spaces, or "E" and a message with the error.
The pool then sends the layout of the shared memory, and after that words (u32) without a length: an
environment's position in this process times 256, plus a command. The word FLUSH asks for a reply: "."
if every command since the last one succeeded, otherwise "!" and a message with the errors. Actions,
observations, rewards and flags lie in the shared memory. The script ends when the pool closes its pipe.

Each agent of a game of PettingZoo is one environment of the pool. The agents of a game are neighbors,
and the game takes a step when all of them have sent an action.
"""

import sys

# The working folder comes first for a script from standard input. There it would replace modules of
# Python and of packages: a random.py of the user would be Python's.
working_folder = [folder for folder in sys.path[:1] if folder == ""]
del sys.path[: len(working_folder)]

import functools
import importlib
import json
import mmap
import os
import select
import struct
import time
import traceback

STEP, STEP_AND_RESET, RESET, RENDER = 1, 2, 3, 4
FLUSH = 0xFFFFFFFF
# Seconds of polling for the next request before the process sleeps.
POLLING = 1e-4
# Seconds for which another process kept the core, from which on polling does not pay.
CORE_LOST = 1e-3
TERMINATED, TRUNCATED, WAS_RESET, OUT = 1, 2, 4, 8

requests, replies, memory = (int(word) for word in sys.argv[1:4])


def read_exactly(count):
    data = b""
    while len(data) < count:
        piece = os.read(requests, count - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data


def read_message():
    (length,) = struct.unpack("=I", read_exactly(4))
    return json.loads(read_exactly(length))


def write_all(data):
    try:
        while data:
            data = data[os.write(replies, data) :]
    except BrokenPipeError:
        sys.exit(0)


def write_message(tag, value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    write_all(tag + struct.pack("=I", len(data)) + data)


def describe(error):
    """The error with its traceback, without the frames of this script unless there are no others."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == describe.__code__.co_filename:
        frames = frames.tb_next
    frames = frames or error.__traceback__
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()


# ------------------------------------------------------------------------------------------ spaces


def bound(values):
    """A bound of a box as JSON: one number, or one for each element. null is infinite."""
    values = np.ravel(values).astype(np.float64)
    if values.size and (values == values[0]).all():
        values = values[:1]
    values = [value if np.isfinite(value) else None for value in values.tolist()]
    return values[0] if len(values) == 1 else values


def box(shape, dtype, low=None, high=None):
    return {"kind": "box", "shape": list(shape), "dtype": np.dtype(dtype).name, "low": low, "high": high}


def expect_shape(obs, shape):
    if obs.shape != shape:
        raise ValueError(f"the observation has shape {obs.shape}, the observation space {shape}")


def store_converted(row, obs, shape):
    """Stores an observation of another type than the space's, if no value changes its meaning."""
    obs = np.asarray(obs)
    expect_shape(obs, shape)
    obs = obs.reshape(row.shape)
    # Floats may be rounded; small integers would wrap around.
    if np.can_cast(obs.dtype, row.dtype, "same_kind" if row.dtype.kind == "f" else "safe"):
        row[...] = obs
        return
    converted = obs.astype(row.dtype)
    if not np.array_equal(converted, obs):
        raise ValueError(f"the observation is {obs.dtype}, which {row.dtype} of the space cannot hold")
    row[...] = converted


class ArrayObservation:
    """Observations of a Box, MultiDiscrete or MultiBinary: one array, stored as it is. Small integers
    stay images, other integers become f32."""

    def __init__(self, space):
        kept = space.dtype in (np.float32, np.float64, np.bool_) or (space.dtype == np.uint8 and len(space.shape) > 1)
        dtype = space.dtype if kept else np.dtype(np.float32)
        shape = space.shape
        self.spec = box(shape or (1,), dtype)
        if hasattr(space, "low"):
            self.spec.update(low=bound(space.low), high=bound(space.high))
        # The type and the shape of arrays that need no conversion.
        self.fast = (np.dtype(space.dtype), shape) if shape else (None, None)
        self.store = lambda row, obs: store_converted(row, obs, shape)


class DiscreteObservation:
    """Observations of a Discrete: one i32, counted from 0."""

    fast = (None, None)

    def __init__(self, space):
        start, n = int(space.start), int(space.n)
        self.spec = {"kind": "discrete", "n": n}

        def store(row, obs):
            value = int(obs) - start
            if not 0 <= value < n:
                raise ValueError(f"the observation is {obs}, outside of {space}")
            row[...] = value

        self.store = store


class FlatObservation:
    """Observations of a Dict or Tuple: a vector of f32, by gymnasium.spaces.utils.flatten."""

    fast = (None, None)

    def __init__(self, space):
        flat = gymnasium.spaces.utils.flatten_space(space)
        if not isinstance(flat, gymnasium.spaces.Box):
            raise ValueError(f"the observation space {space} has no fixed size; wrap the environment")
        flatten = gymnasium.spaces.utils.flatten
        shape = flat.shape
        self.spec = box(shape, np.float32, bound(flat.low), bound(flat.high))

        def store(row, obs):
            obs = flatten(space, obs)
            expect_shape(obs, shape)
            row[...] = obs

        self.store = store


def observation_of(space):
    spaces = gymnasium.spaces
    if isinstance(space, spaces.Discrete):
        return DiscreteObservation(space)
    if isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        return ArrayObservation(space)
    return FlatObservation(space)


class Actions:
    """Actions of one space: the leaves of a Dict or Tuple one after the other in one array."""

    def __init__(self, space):
        self.nvec, self.low, self.high, self.boxes, self.leaves = [], [], [], False, 0
        self.decode = self.decoder(space)
        if self.boxes and self.nvec:
            raise ValueError(f"the action space {space} has both choices and numbers; wrap the environment")
        self.width = len(self.low) if self.boxes else len(self.nvec)
        if not self.width:
            raise ValueError(f"the action space {space} has no elements; wrap the environment")
        self.single = isinstance(space, gymnasium.spaces.Discrete)
        self.start = space.start if self.single else 0
        if self.boxes:
            self.spec = box((self.width,), np.float32, bound(self.low), bound(self.high))
        elif self.single:
            self.spec = {"kind": "discrete", "n": self.nvec[0]}
        else:
            self.spec = {"kind": "multi_discrete", "nvec": self.nvec}

    def of(self, values):
        """Function that returns the action in `values`, the array of one environment."""
        if self.single and not int(self.start):
            return functools.partial(values.__getitem__, 0)
        return functools.partial(self.decode, values)

    def decoder(self, space):
        """Function from the array of all leaves to the action of `space`."""
        spaces = gymnasium.spaces
        first = len(self.low) + len(self.nvec)
        if isinstance(space, spaces.Dict):
            parts = [(name, self.decoder(part)) for name, part in space.spaces.items()]
            return lambda values: {name: decode(values) for name, decode in parts}
        if isinstance(space, spaces.Tuple):
            decoders = [self.decoder(part) for part in space.spaces]
            return lambda values: tuple(decode(values) for decode in decoders)
        if isinstance(space, spaces.Discrete):
            self.nvec.append(int(space.n))
            start = space.start
            return (lambda values: values[first] + start) if start else (lambda values: values[first])
        shape, dtype = space.shape, space.dtype
        if isinstance(space, spaces.Box):
            self.boxes = True
            self.low.extend(np.ravel(space.low))
            self.high.extend(np.ravel(space.high))
            end = len(self.low) + len(self.nvec)
            # A copy: the environment may keep it.
            return lambda values: values[first:end].astype(dtype).reshape(shape)
        if isinstance(space, spaces.MultiBinary):
            self.nvec.extend([2] * int(np.prod(shape)))
            start = 0
        elif isinstance(space, spaces.MultiDiscrete):
            self.nvec.extend(int(n) for n in np.ravel(space.nvec))
            start = getattr(space, "start", 0)
        else:
            raise ValueError(f"the action space {space} is not supported; wrap the environment")
        end = len(self.low) + len(self.nvec)
        return lambda values: values[first:end].astype(dtype).reshape(shape) + np.asarray(start, dtype)


class MaskedObservation:
    """Observations as a vector of f32, followed by the mask of allowed actions in info."""

    fast = (None, None)

    def __init__(self, space, nvec):
        flat = gymnasium.spaces.utils.flatten_space(space)
        flatten = gymnasium.spaces.utils.flatten
        if not nvec or not isinstance(flat, gymnasium.spaces.Box):
            raise ValueError("an action mask needs an action space of choices, and observations of a fixed size")
        size, firsts = flat.shape[0], np.cumsum([0, *nvec[:-1]])
        self.spec = box((size + sum(nvec),), np.float32)

        def store(row, obs, info, done):
            row[:size] = flatten(space, obs)
            row[size:] = 1
            if done:
                return
            mask = info.get("action_mask")
            if mask is None:
                raise ValueError('info has no "action_mask"')
            parts = mask if isinstance(mask, tuple) else (mask,)
            mask = np.concatenate([np.ravel(part) for part in parts])
            expect_shape(mask, (sum(nvec),))
            row[size:] = mask != 0
            if not np.add.reduceat(row[size:], firsts).all():
                raise ValueError(f"the action mask {mask} allows no action")

        self.store = store


# ------------------------------------------------------------------------------------ environments


def make_game(id, kwargs):
    """Makes a game of PettingZoo. The id is a module that has `parallel_env`, or a module, a colon and a
    function."""
    module, _, function = id.partition(":")
    module, function = importlib.import_module(module), function or "parallel_env"
    if not hasattr(module, function):
        raise SystemExit(
            f"the module {module.__name__} has no function {function}\n  help: the parallel API of PettingZoo is"
            " needed, which pettingzoo.utils.conversions.aec_to_parallel makes of other environments"
        )
    return getattr(module, function)(**kwargs)


def make(settings):
    """Makes one environment or game with its wrappers."""
    kwargs = dict(settings["kwargs"])
    if settings["pettingzoo"]:
        env = make_game(settings["id"], kwargs)
    else:
        if settings["max_episode_steps"] is not None:
            kwargs["max_episode_steps"] = settings["max_episode_steps"]
        env = gymnasium.make(settings["id"], **kwargs)
    for path, wrapper_kwargs in settings["wrappers"]:
        module, _, name = path.replace(":", ".").rpartition(".")
        wrapper = getattr(importlib.import_module(module), name)
        env = wrapper(env, **wrapper_kwargs)
    return env


def limits(env):
    """The step limit and the reward threshold of the environment, where it has them."""
    spec = getattr(env, "spec", None)
    steps, threshold = getattr(spec, "max_episode_steps", None), getattr(spec, "reward_threshold", None)
    return {
        "max_episode_steps": None if steps is None else int(steps),
        "reward_threshold": None if threshold is None else float(threshold),
    }


def spaces_of_agents(game):
    """The spaces that all agents of a game have."""
    if not getattr(game, "possible_agents", None):
        raise SystemExit("the game has no possible_agents\n  help: games with a fixed set of agents are supported")
    spaces = [(game.observation_space(agent), game.action_space(agent)) for agent in game.possible_agents]
    for agent, others in zip(game.possible_agents, spaces):
        if others != spaces[0]:
            raise SystemExit(
                f"the spaces of {agent} are {others[0]} and {others[1]}, those of {game.possible_agents[0]}"
                f" {spaces[0][0]} and {spaces[0][1]}\n  help: make them equal by wrappers, such as"
                " supersuit.pad_observations_v0 and supersuit.pad_action_space_v0"
            )
    return spaces[0]


def start(settings):
    """Makes the environments; returns them with the plans of their observations and actions."""
    global gymnasium, np
    pip = f"{sys.executable} -m pip install 'gymnasium>=0.29'"
    try:
        import gymnasium
        import numpy as np
    except ImportError as error:
        if error.name not in ("gymnasium", "numpy"):
            raise
        raise SystemExit(f"{sys.executable} has no package {error.name}\n  help: {pip}")
    # The user's modules are found there, after those of Python and of packages.
    sys.path += working_folder
    if tuple(int(word) for word in gymnasium.__version__.split(".")[:2]) < (0, 29):
        raise SystemExit(f"gymnasium {gymnasium.__version__} is older than 0.29\n  help: {pip}")
    try:
        envs = [make(settings) for _ in range(settings["count"])]
    except (ModuleNotFoundError, gymnasium.error.Error) as error:
        raise SystemExit(f"{type(error).__name__}: {error}\n  help: packages are those of {sys.executable}")
    if settings["pettingzoo"]:
        observation_space, action_space = spaces_of_agents(envs[0])
        return envs, observation_of(observation_space), Actions(action_space)
    actions = Actions(envs[0].action_space)
    if settings["action_mask"]:
        observation = MaskedObservation(envs[0].observation_space, actions.nvec)
        actions.spec = {"kind": "multi_discrete", "nvec": actions.nvec, "masked": True}
    else:
        observation = observation_of(envs[0].observation_space)
    return envs, observation, actions


def render(env):
    """An image of the environment: its height and width, then its bytes. Nothing if it has no images."""
    if getattr(env, "render_mode", None) is None:
        if "rgb_array" not in getattr(env, "metadata", {}).get("render_modes", ()):
            return b""
        # Some environments do more in each step if they are made with a mode.
        env.unwrapped.render_mode = "rgb_array"
    frame = np.asarray(env.render())
    if frame.ndim != 3 or frame.shape[2] != 3:
        raise ValueError(f"render returned an array of shape {frame.shape}, expected (height, width, 3)")
    frame = np.ascontiguousarray(frame, np.uint8)
    return struct.pack("=II", *frame.shape[:2]) + frame.tobytes()


# ------------------------------------------------------------------------------------------- steps


class Server:
    """Runs the commands of the pool."""

    def __init__(self, settings, envs, observation, actions, layout):
        shared = mmap.mmap(memory, layout["bytes"])
        names, stride = settings["envs"], layout["obs_stride"]
        spec = observation.spec
        shape, dtype = ((), "int32") if spec["kind"] == "discrete" else (spec["shape"], spec["dtype"])

        def column(name, format, count=layout["envs"]):
            start = layout[name]
            return memoryview(shared)[start : start + count * struct.calcsize(format)].cast(format)

        def rows(name):
            return [np.ndarray(shape, dtype, shared, layout[name] + env * stride) for env in names]

        store = observation.store
        if not settings["action_mask"]:
            # Only masks need more than the observation.
            store = lambda row, obs, info, done: observation.store(row, obs)
        values = np.ndarray(
            (layout["envs"], actions.width), "float32" if actions.boxes else "int64", shared, layout["actions"]
        )
        self.envs, self.names = envs, names
        self.rows, self.store = rows("obs"), store
        self.seeds = column("seeds", "q")
        # The position of the environment in a call, for a process that hangs or is killed.
        self.current = column("current", "i", layout["processes"])[settings["process"] :]
        columns = (column("rewards", "d"), column("flags", "B"))
        takers = [actions.of(values[name]) for name in names]
        all_rows = list(zip(self.rows, rows("final_obs")))
        self.games = []
        if settings["pettingzoo"]:
            agents = len(names) // len(envs)
            for first, env in zip(range(0, len(names), agents), envs):
                own = slice(first, first + agents)
                self.games.append(Game(env, names[own], takers[own], all_rows[own], observation.store, *columns))
            self.envs = [env for env in envs for _ in range(agents)]
            self.steps = [functools.partial(game.step, agent) for game in self.games for agent in range(agents)]
            self.resets = [functools.partial(game.reset, agent) for game in self.games for agent in range(agents)]
        else:
            self.steps = [
                stepper(env, name, take_action, rows, observation, store, *columns)
                for env, name, take_action, rows in zip(envs, names, takers, all_rows)
            ]
            self.resets = [functools.partial(self.reset_env, k) for k in range(len(names))]

    def reset_env(self, k, seed):
        obs, info = self.envs[k].reset(seed=seed)
        self.store(self.rows[k], obs, info, False)

    def reset(self, k):
        seed = self.seeds[self.names[k]]
        self.resets[k](None if seed < 0 else seed)

    def serve(self):
        failures, rest = [], b""
        current, names, steps = self.current, self.names, self.steps
        read = Requests().read
        while data := read():
            data = rest + data
            whole = len(data) & ~3
            data, rest = data[:whole], data[whole:]
            if not data:
                continue
            for word in memoryview(data).cast("I"):
                if word == FLUSH:
                    current[0] = -1
                    failures += [failure for game in self.games for failure in game.incomplete()]
                    if failures:
                        write_message(b"!", failures)
                        failures = []
                    else:
                        write_all(b".")
                    continue
                k = current[0] = word >> 8
                command = word & 255
                try:
                    if command == STEP_AND_RESET:
                        steps[k](True)
                    elif command == STEP:
                        steps[k](False)
                    elif command == RESET:
                        self.reset(k)
                    elif command == RENDER:
                        write_message(b"R", render(self.envs[k]))
                except BaseException as error:
                    failed = [game for game in self.games if game.stepping]
                    for game in failed:
                        game.stepping = False
                    text = describe(error)
                    failures += [[name, text] for name in (failed[0].names if failed else [names[k]])]


class Requests:
    """Waits for requests. It polls before it sleeps, because waking a process takes longer than a step of many
    environments, and lets others use the core in between. If others keep the core, it sleeps at once for a
    number of requests that doubles each time."""

    def __init__(self):
        self.poller = select.poll()
        self.poller.register(requests, select.POLLIN)
        # Requests before the next poll, and after the next loss of the core.
        self.asleep, self.pause = 0, 16

    def read(self):
        if self.asleep:
            self.asleep -= 1
        else:
            self.poll()
        return os.read(requests, 1 << 16)

    def poll(self):
        ready, now = self.poller.poll, time.perf_counter
        time_now = began = now()
        while not ready(0) and time_now - began < POLLING:
            os.sched_yield()
            before, time_now = time_now, now()
            if time_now - before > CORE_LOST:
                self.asleep, self.pause = self.pause, min(2 * self.pause, 1 << 14)
                return
        self.pause = max(self.pause // 2, 16)


def stepper(env, name, take_action, rows, observation, store, rewards, flags):
    """Function that steps one environment."""
    env_step, env_reset = env.step, env.reset
    row, last_row = rows
    own, shape = observation.fast
    ndarray = np.ndarray

    def step(reset):
        result = env_step(take_action())
        if len(result) != 5:
            raise ValueError(
                f"step returned {len(result)} values, expected 5: observation, reward, terminated, truncated, info"
            )
        obs, reward, terminated, truncated, info = result
        rewards[name] = reward
        if not (terminated or truncated):
            if type(obs) is ndarray and obs.dtype is own and obs.shape == shape:
                row[...] = obs
            else:
                store(row, obs, info, False)
            return
        ends = (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
        if reset:
            store(last_row, obs, info, True)
            obs, info = env_reset()
            store(row, obs, info, False)
            ends |= WAS_RESET
        else:
            store(row, obs, info, True)
        flags[name] = ends

    return step


class Game:
    """A game of PettingZoo's parallel API, with the environments of the pool that are its agents.

    All agents end their episodes in the same step. An agent that is out of the game before the others gets
    observations of zeros and rewards of 0 until then, and the flag OUT.
    """

    def __init__(self, env, names, takers, rows, store, rewards, flags):
        self.env, self.agents, self.names, self.takers = env, env.possible_agents, names, takers
        self.rows, self.put, self.rewards, self.flags = rows, store, rewards, flags
        self.obs = {}
        # Positions of agents that have sent no action; the flags of agents that are out.
        self.missing, self.ends = set(range(len(names))), [0] * len(names)
        # Number of resets of the game, and its value at the last reset of each agent.
        self.episode, self.episodes = 0, [0] * len(names)
        # True while the game takes a step, whose error is that of all agents.
        self.stepping = False

    def start(self, seed):
        self.obs, _ = self.env.reset(seed=seed)
        self.ends = [0] * len(self.names)
        self.episode += 1

    def store(self, agent, row):
        obs = self.obs.get(self.agents[agent])
        if obs is None:
            row[...] = 0
        else:
            self.put(row, obs)

    def reset(self, agent, seed):
        """Resets an agent. The first one starts the episode of all."""
        if self.episodes[agent] == self.episode:
            self.start(seed)
        self.episodes[agent] = self.episode
        self.missing.add(agent)
        self.store(agent, self.rows[agent][0])

    def step(self, agent, reset):
        """Notes that an agent has sent its action. The last one steps the game."""
        if self.episodes[agent] != self.episode:
            raise ValueError("another agent of this game was reset, and this one was not")
        self.missing.discard(agent)
        if self.missing:
            return
        self.missing = set(range(len(self.names)))
        self.stepping = True
        self.step_all(reset)
        self.stepping = False

    def step_all(self, reset):
        """Steps the game with the actions of its agents."""
        live = set(self.env.agents)
        actions = {name: take() for name, take in zip(self.agents, self.takers) if name in live}
        results = self.env.step(actions)
        if len(results) != 5:
            raise ValueError(
                f"step returned {len(results)} values, expected 5: observations, rewards, terminations, truncations,"
                " infos"
            )
        self.obs, rewards, terminations, truncations, _ = results
        over = not self.env.agents
        for k, name in enumerate(self.agents):
            self.rewards[self.names[k]] = rewards.get(name, 0.0) if name in live else 0.0
            if name in live:
                terminated, truncated = terminations.get(name, False), truncations.get(name, False)
                self.ends[k] = (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
            elif name in self.env.agents:
                self.ends[k] = 0
        if not over:
            for k in range(len(self.names)):
                self.store(k, self.rows[k][0])
                if self.ends[k]:
                    self.flags[self.names[k]] = OUT
            return
        # An agent without an end of its own ends with the game.
        ends = [end or TERMINATED for end in self.ends]
        for k in range(len(self.names)):
            self.store(k, self.rows[k][1 if reset else 0])
        if reset:
            self.start(None)
            self.episodes = [self.episode] * len(self.names)
            for k in range(len(self.names)):
                self.store(k, self.rows[k][0])
        for name, end in zip(self.names, ends):
            self.flags[name] = end | (WAS_RESET if reset else 0)

    def incomplete(self):
        """Errors of agents that have sent an action for a step that others have not."""
        if not 0 < len(self.missing) < len(self.names):
            return
        for k in set(range(len(self.names))) - self.missing:
            yield self.names[k], "another agent of this game has no action: send those of all agents"
        self.missing = set(range(len(self.names)))


def main():
    settings = read_message()
    try:
        envs, observation, actions = start(settings)
    except SystemExit as error:
        write_message(b"E", str(error.code))
        return
    except BaseException as error:
        write_message(b"E", describe(error))
        return
    spec = {"observation": observation.spec, "action": actions.spec, "width": actions.width, **limits(envs[0])}
    spec["agents"] = len(envs[0].possible_agents) if settings["pettingzoo"] else 1
    write_message(b"S", spec)
    server = Server(settings, envs, observation, actions, read_message())
    server.serve()
    for env in envs:
        env.close()


main()
