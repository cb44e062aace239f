"""Steps environments of Gymnasium, PettingZoo or EnvPool for a pool of Podracer, which starts this script and
speaks first.

Arguments: the file descriptors of the pipe of requests, of the pipe of replies, and of the shared
memory. A message is a length (u32) and JSON of that length. The pool sends the settings of its
environments; the reply is "S" and a message with their spaces, or "E" and a message with the error.
The pool then sends the layout of the shared memory, and after that words (u32) without a length: an
environment's position in this process times 256, plus a command. The word FLUSH asks for a reply: "."
if every command since the last one succeeded, otherwise "!" and a message with the errors. Actions,
observations, rewards and flags lie in the shared memory. The script ends when the pool closes its pipe.
A process that an environment forked ends when it returns into this script.

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
import warnings

STEP, STEP_AND_RESET, RESET, RENDER = 1, 2, 3, 4
FLUSH = 0xFFFFFFFF
# Seconds of polling for the next request before the process sleeps.
POLLING = 1e-4
# Seconds for which another process kept the core, from which on polling does not pay.
CORE_LOST = 1e-3
TERMINATED, TRUNCATED, WAS_RESET, OUT = 1, 2, 4, 8
IMAGE_MODES = ("rgb_array", "rgb_array_list")

requests, replies, memory = (int(word) for word in sys.argv[1:4])
# Not empty in a process that an environment forked.
forked = []
os.register_at_fork(after_in_child=lambda: forked.append(True))


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


def leave(error=None):
    """Ends a process that the environment forked: the pool, its pipes and its memory are those of the parent."""
    code = error.code if isinstance(error, SystemExit) else error and 1
    os._exit(code if isinstance(code, int) else int(code is not None))


def is_own(filename):
    """True for the name of this script."""
    return filename == is_own.__code__.co_filename


def describe(error):
    """The error with its traceback, without the frames of this script."""
    rest, seen = [error], set()
    while rest:
        one = rest.pop()
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        while one.__traceback__ is not None and is_own(one.__traceback__.tb_frame.f_code.co_filename):
            one.__traceback__ = one.__traceback__.tb_next
        # A long text would be copied many times.
        if any(isinstance(word, str) and len(word) > MAX_TEXT for word in one.args):
            one.args = tuple(shortened(word, MAX_TEXT) if isinstance(word, str) else word for word in one.args)
        rest += [one.__cause__, one.__context__]
    if isinstance(error, Refused):
        return shortened(str(error), MAX_TEXT)
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return shortened("".join(lines).rstrip(), MAX_TEXT)


def without_own_lines(format):
    """The format of warnings, without lines of this script."""

    def formatted(message, category, filename, lineno, line=None):
        if is_own(filename):
            return f"{category.__name__}: {message}\n"
        return format(message, category, filename, lineno, line)

    return formatted


# ------------------------------------------------------------------------------------ environments


def make_game(id, kwargs):
    """Makes a game of PettingZoo. The id is a module that has `parallel_env`, or a module, a colon and a
    function."""
    module, _, function = id.partition(":")
    module, function = importlib.import_module(module), function or "parallel_env"
    if not hasattr(module, function):
        raise Refused(
            f"the module {module.__name__} has no function {function}\n  help: the parallel API of PettingZoo is"
            " needed, which pettingzoo.utils.conversions.aec_to_parallel makes of other environments"
        )
    return getattr(module, function)(**kwargs)


def make(settings):
    """Makes one environment or game with its wrappers."""
    kwargs = dict(settings["kwargs"])
    if settings["family"] == "pettingzoo":
        env = make_game(settings["id"], kwargs)
    else:
        if settings["max_episode_steps"] is not None:
            kwargs["max_episode_steps"] = settings["max_episode_steps"]
        env = gymnasium.make(settings["id"], **kwargs)
    for path, wrapper_kwargs in settings["wrappers"]:
        module, _, name = path.replace(":", ".").rpartition(".")
        wrapper = getattr(importlib.import_module(module), name)
        env = wrapper(env, **wrapper_kwargs)
    if forked:
        leave()
    return env


def limits(env):
    """The step limit and the reward threshold of the environment, where it has them."""
    spec = getattr(env, "spec", None)
    steps, threshold = getattr(spec, "max_episode_steps", None), getattr(spec, "reward_threshold", None)
    return {
        "max_episode_steps": None if steps is None else int(number("its max_episode_steps", steps)),
        "reward_threshold": None if threshold is None else number("its reward_threshold", threshold),
    }


def checked_spaces(observation_space, action_space):
    """The spaces, if they are Gymnasium's."""
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        if not isinstance(space, gymnasium.spaces.Space):
            of = f"{type(space).__module__}.{type(space).__qualname__}"
            raise Refused(f"its {name} is {shown(space)} of {of}, expected a space of gymnasium.spaces")
    return observation_space, action_space


def spaces_of_agents(game):
    """The spaces that all agents of a game have."""
    agents = list(getattr(game, "possible_agents", None) or ())
    if not agents:
        raise Refused("the game has no possible_agents\n  help: games with a fixed set of agents are supported")
    if len(set(agents)) < len(agents):
        raise Refused(f"the game has an agent twice in its possible_agents {shown(agents)}")
    spaces = [checked_spaces(game.observation_space(agent), game.action_space(agent)) for agent in agents]
    for agent, others in zip(agents, spaces):
        if others != spaces[0]:
            raise Refused(
                f"the spaces of {agent} are {others[0]} and {others[1]}, those of {agents[0]}"
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
        raise Refused(f"{sys.executable} has no package {error.name}\n  help: {pip}")
    # The user's modules are found there, after those of Python and of packages.
    sys.path += working_folder
    if tuple(int(word) for word in gymnasium.__version__.split(".")[:2]) < (0, 29):
        raise Refused(f"gymnasium {gymnasium.__version__} is older than 0.29\n  help: {pip}")
    if settings["family"] == "envpool":
        return start_envpool(settings)
    try:
        envs = [make(settings) for _ in range(settings["count"])]
    except (ModuleNotFoundError, gymnasium.error.Error) as error:
        raise Refused(f"{type(error).__name__}: {error}\n  help: packages are those of {sys.executable}")
    if settings["family"] == "pettingzoo":
        observation_space, action_space = spaces_of_agents(envs[0])
        observation = observation_of(observation_space, settings)
        observation.space = observation_space
        return envs, observation, Actions(action_space)
    first = envs[0]
    spaces = getattr(first, "observation_space", None), getattr(first, "action_space", None)
    observation_space, action_space = checked_spaces(*spaces)
    actions = Actions(action_space)
    if settings["action_mask"]:
        observation = MaskedObservation(observation_space, actions.nvec)
        actions.spec = {"kind": "multi_discrete", "nvec": actions.nvec, "masked": True}
    else:
        observation = observation_of(observation_space, settings)
    observation.space = observation_space
    return envs, observation, actions


def render(env):
    """An image of the environment: its height, width and frames per second, then its bytes. Nothing if it has no
    images."""
    mode = getattr(env, "render_mode", None)
    if mode is None:
        if "rgb_array" not in ((getattr(env, "metadata", None) or {}).get("render_modes") or ()):
            return b""
        # Some environments do more in each step if they are made with a mode.
        env.unwrapped.render_mode = mode = "rgb_array"
    if mode not in IMAGE_MODES:
        return b""
    picture = env.render()
    if forked:
        leave()
    if isinstance(picture, list) and mode == "rgb_array_list":
        # The frames since the last call.
        picture = picture[-1] if picture else None
    frame = np.asarray(picture)
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype.kind not in "biuf":
        what = f"an array of shape {frame.shape}" if frame.ndim else shown(picture)
        raise ValueError(f"render returned {what}, expected numbers of shape (height, width, 3)")
    frame = np.ascontiguousarray(frame, np.uint8)
    fps = (getattr(env, "metadata", None) or {}).get("render_fps")
    fps = round(fps) if isinstance(fps, (int, float)) and 1 <= fps <= 1000 else 30
    return struct.pack("=III", *frame.shape[:2], fps) + frame.tobytes()


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
            rows = [np.ndarray(shape, dtype, shared, layout[name] + env * stride) for env in names]
            axes = getattr(observation, "axes", None)
            return [row.transpose(axes) for row in rows] if axes else rows

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
        if settings["family"] == "envpool":
            self.start_vector(settings, observation, actions, values, layout, shared, columns)
            return
        all_rows = list(zip(self.rows, rows("final_obs")))
        self.games = []
        if settings["family"] == "pettingzoo":
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

    def start_vector(self, settings, observation, actions, values, layout, shared, columns):
        """All environments are those of one object of EnvPool."""
        count, stride, spec = layout["envs"], layout["obs_stride"], observation.spec
        discrete = spec["kind"] == "discrete"
        shape, dtype = ((), np.dtype("int32")) if discrete else (tuple(spec["shape"]), np.dtype(spec["dtype"]))
        inner = np.empty(shape, dtype).strides

        def matrix(name):
            return np.ndarray((count, *shape), dtype, shared, layout[name], (stride, *inner))

        numbers = [np.asarray(column) for column in columns]
        vector = Vector(
            settings, self.envs[0], observation, actions, values, matrix("obs"), matrix("final_obs"), *numbers
        )
        self.envs, self.games = [OneOf(vector, k) for k in range(count)], [vector]
        self.steps = [functools.partial(vector.step, k) for k in range(count)]
        self.resets = [functools.partial(vector.reset, k) for k in range(count)]

    def reset_env(self, k, seed):
        result = self.envs[k].reset(seed=seed)
        if forked:
            leave()
        obs, info = parts_of("reset", result, "observation, info")
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
                    failures += [failure for game in self.games for failure in game.flush()]
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
                    if forked:
                        leave(error)
                    failed = [game for game in self.games if getattr(game, "stepping", False)]
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
        if forked:
            leave()
        if type(result) is not tuple or len(result) != 5:
            result = parts_of("step", result, "observation, reward, terminated, truncated, info")
        obs, reward, terminated, truncated, info = result
        try:
            rewards[name] = reward
        except TypeError:
            rewards[name] = number("the reward", reward)
        if terminated is not False:
            terminated = truth("terminated", terminated)
        if truncated is not False:
            truncated = truth("truncated", truncated)
        if not (terminated or truncated):
            if type(obs) is ndarray and obs.dtype is own and obs.shape == shape:
                row[...] = obs
            else:
                store(row, obs, info, False)
            return
        ends = (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
        if reset:
            store(last_row, obs, info, True)
            result = env_reset()
            if forked:
                leave()
            obs, info = parts_of("reset", result, "observation, info")
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
        self.env, self.agents, self.names, self.takers = env, list(env.possible_agents), names, takers
        self.known, self.live = set(self.agents), set()
        self.rows, self.put, self.rewards, self.flags = rows, store, rewards, flags
        self.obs = {}
        # Positions of agents that have sent no action; the flags of agents that are out.
        self.missing, self.ends = set(range(len(names))), [0] * len(names)
        # Number of resets of the game, and its value at the last reset of each agent.
        self.episode, self.episodes = 0, [0] * len(names)
        # True while the game takes a step, whose error is that of all agents.
        self.stepping = False

    def start(self, seed):
        result = self.env.reset(seed=seed)
        if forked:
            leave()
        self.obs, _ = parts_of("reset", result, "observations, infos")
        self.live = self.live_agents()
        self.expect_all("observations", self.obs, self.live)
        self.ends = [0] * len(self.names)
        self.episode += 1

    def live_agents(self):
        """The agents that are in the game."""
        agents = list(self.env.agents)
        live = set(agents)
        self.expect_known("agents", live)
        if len(live) < len(agents):
            raise ValueError(f"agents has an agent twice: {shown(agents)}")
        return live

    def expect_known(self, what, agents):
        for agent in agents:
            if agent not in self.known:
                raise ValueError(f"{what} has the agent {shown(agent)}, which is none of {shown(self.agents)}")

    def expect_all(self, what, values, agents):
        """Expects a value for each of `agents`, and none for agents that the game does not have."""
        if not isinstance(values, dict):
            raise ValueError(f"the {what} are {shown(values)}, expected a dict by agents")
        self.expect_known(f"the dict of {what}", values)
        for agent in agents:
            if values.get(agent) is None:
                raise ValueError(f"the {what} have none for the agent {shown(agent)}, which is in the game")

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
        live = self.live
        actions = {name: take() for name, take in zip(self.agents, self.takers) if name in live}
        results = self.env.step(actions)
        if forked:
            leave()
        names = "observations, rewards, terminations, truncations, infos"
        results = parts_of("step", results, names)
        for what, values in zip(names.split(", ")[:4], results):
            self.expect_all(what, values, live)
        self.obs, rewards, terminations, truncations, _ = results
        self.live = self.live_agents()
        # Agents may come into a game.
        self.expect_all("observations", self.obs, self.live)
        over = not self.live
        for k, name in enumerate(self.agents):
            self.rewards[self.names[k]] = 0.0
            if name in live:
                self.rewards[self.names[k]] = number(f"the reward of {shown(name)}", rewards[name])
                terminated = truth(f"the termination of {shown(name)}", terminations[name])
                truncated = truth(f"the truncation of {shown(name)}", truncations[name])
                self.ends[k] = (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
            elif name in self.live:
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

    def flush(self):
        """Errors of agents that have sent an action for a step that others have not."""
        if not 0 < len(self.missing) < len(self.names):
            return
        for k in set(range(len(self.names))) - self.missing:
            yield self.names[k], "another agent of this game has no action: send those of all agents"
        self.missing = set(range(len(self.names)))


def main():
    warnings.formatwarning = without_own_lines(warnings.formatwarning)
    settings = read_message()
    try:
        envs, observation, actions = start(settings)
        spec = {"observation": observation.spec, "action": actions.spec, "width": actions.width, **limits(envs[0])}
        spec["gymnasium"] = {
            "observation_space": shown(observation.space, MAX_TEXT),
            "action_space": shown(actions.space, MAX_TEXT),
            "action_start": int(actions.start),
        }
        spec["agents"] = len(envs[0].possible_agents) if settings["family"] == "pettingzoo" else 1
    except BaseException as error:
        if forked:
            leave(error)
        write_message(b"E", describe(error))
        return
    if forked:
        leave()
    write_message(b"S", spec)
    server = Server(settings, envs, observation, actions, read_message())
    server.serve()
    for env in envs:
        try:
            env.close()
        except BaseException as error:
            if not forked:
                print(f"closing an environment failed: {describe(error)}", file=sys.stderr)
        if forked:
            leave()


main()
