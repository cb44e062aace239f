"""Environments of EnvPool, which steps all of them at once in threads of its own. The pool passes this file
between spaces.py and worker.py, whose global names it uses.
"""


def make_envpool(settings, count, seeds=None):
    """Makes `count` environments of EnvPool."""
    try:
        import envpool
    except ImportError as error:
        if error.name != "envpool":
            raise
        raise Refused(f"{sys.executable} has no package envpool\n  help: {sys.executable} -m pip install envpool")
    kwargs = {"num_threads": settings["num_threads"], **settings["kwargs"]}
    kwargs.pop("filter_keys", None)
    if settings["max_episode_steps"] is not None:
        kwargs["max_episode_steps"] = settings["max_episode_steps"]
    if seeds is not None:
        kwargs["seed"] = seeds
    # Bounds of EnvPool's specifications, in another type than the space's.
    warnings.filterwarnings("ignore", message=".*precision lowered by casting")
    if settings["id"] not in envpool.list_all_envs():
        raise Refused(f"EnvPool {envpool.__version__} has no environment {settings['id']}")
    return envpool.make(settings["id"], env_type="gymnasium", num_envs=count, **kwargs)


def start_envpool(settings):
    """Makes one environment for its spaces; returns it with the plans of its observations and actions."""
    if settings["wrappers"] or settings["action_mask"]:
        option = "wrappers" if settings["wrappers"] else "an action mask"
        raise Refused(f"environments of EnvPool take no {option}: they are stepped in C++")
    env = make_envpool(settings, 1)
    observation_space, action_space = checked_spaces(env.observation_space, env.action_space)
    if not isinstance(action_space, (gymnasium.spaces.Box, gymnasium.spaces.Discrete)):
        raise Refused(f"the action space {action_space} is not supported, expected a Box or a Discrete")
    keys, flat = settings["kwargs"].get("filter_keys"), settings["flatten_observation"]
    observation = BatchObservation(observation_space, keys, flat)
    observation.space = observation.filtered
    return [env], observation, Actions(action_space)


class BatchObservation:
    """Observations of many environments at once: of a Box or a Discrete as they are, unless `flat`, and of a Dict
    as gymnasium.spaces.utils.flatten makes vectors of them. `keys` are the entries of the Dict that are left,
    one of them as it is."""

    def __init__(self, space, keys, flat):
        spaces = gymnasium.spaces
        self.keys = None
        if keys is not None:
            known = list(space.spaces) if isinstance(space, spaces.Dict) else []
            for key in keys:
                if key not in known:
                    raise Refused(f"filter_keys has {shown(key)}, expected some of {known}")
            if not keys:
                raise Refused("filter_keys is empty")
            self.keys = list(keys)
            space = space[keys[0]] if len(keys) == 1 else spaces.Dict([(key, space[key]) for key in keys])
        self.filtered = space
        parts = self.parts_of(space)
        if isinstance(space, spaces.Dict) or (flat and len(space.shape) != 1):
            self.parts = parts
            # Bounds are left out: EnvPool's are not those of all observations.
            self.spec = box((sum(width for _, _, width in parts),), np.float32)
        else:
            self.parts = None
            plain = DiscreteObservation if isinstance(space, spaces.Discrete) else ArrayObservation
            self.spec = plain(space).spec

    def parts_of(self, space, path=()):
        """The boxes and choices of a space: the path of keys, the number of values of a Discrete or 0, the
        elements of the vector."""
        if isinstance(space, gymnasium.spaces.Dict):
            return [found for key, part in space.spaces.items() for found in self.parts_of(part, (*path, key))]
        if isinstance(space, gymnasium.spaces.Discrete):
            return [(path, int(space.n), int(space.n))]
        if isinstance(space, gymnasium.spaces.Box):
            return [(path, 0, int(np.prod(space.shape)))]
        raise Refused(f"the observation space {space} is not supported, expected a Box, a Discrete or a Dict of them")

    def arrays(self, obs):
        """Arrays of the observations, with the elements of each: one of a Box, one for each part of a Dict."""
        if self.keys is not None and len(self.keys) == 1:
            obs = obs[self.keys[0]]
        if self.parts is None:
            return [(slice(None), obs)]
        arrays, first = [], 0
        for path, choices, width in self.parts:
            value = obs
            for key in path:
                value = value[key]
            value = np.eye(choices)[value] if choices else value.reshape(len(value), -1)
            arrays.append((slice(first, first + width), value))
            first += width
        return arrays

    def store(self, rows, which, obs):
        """Stores the observations of the environments `which`, an index of rows."""
        for elements, value in self.arrays(obs):
            if self.parts is None:
                rows[which] = value.reshape(-1, *rows.shape[1:])
            else:
                rows[which, elements] = value


class Vector:
    """Environments of EnvPool. Commands are collected, and a request runs them."""

    def __init__(self, settings, env, observation, actions, values, rows, last_rows, rewards, flags):
        self.settings, self.env, self.observation = settings, env, observation
        self.space, self.values = actions.space, values
        self.rows, self.last_rows, self.rewards, self.flags = rows, last_rows, rewards, flags
        self.count = len(rows)
        self.made = False
        # Environments to step, those of them that keep the last state of an episode, and seeds of resets.
        self.stepped, self.kept, self.resets = [], [], {}

    def step(self, k, reset):
        self.stepped.append(k)
        if not reset:
            self.kept.append(k)

    def reset(self, k, seed):
        self.resets[k] = seed

    def flush(self):
        """Runs the commands of a request; returns errors, each with its environment."""
        stepped, kept, resets = self.stepped, self.kept, self.resets
        self.stepped, self.kept, self.resets = [], [], {}
        try:
            if resets:
                self.reset_some(resets)
            if stepped:
                self.step_some(np.array(sorted(stepped), np.int32), kept)
        except BaseException as error:
            text = describe(error)
            return [[k, text] for k in (*resets, *stepped)]
        return []

    def reset_some(self, resets):
        # EnvPool takes seeds when it makes environments.
        if len(resets) == self.count and None not in resets.values():
            self.env.close()
            self.env = make_envpool(self.settings, self.count, [resets[k] for k in range(self.count)])
            self.made = True
        elif not self.made:
            raise ValueError("the first reset is one of all environments")
        ids = np.array(sorted(resets), np.int32)
        self.observation.store(self.rows, self.index(ids), self.reset_obs(ids))

    def reset_obs(self, ids):
        obs, _ = parts_of("reset", self.env.reset(ids), "observation, info")
        return obs

    def index(self, ids):
        """The rows of sorted environments."""
        return slice(None) if len(ids) == self.count else ids

    def actions(self, which):
        """The actions of environments, in the type of the space."""
        values, space = self.values[which], self.space
        if isinstance(space, gymnasium.spaces.Discrete):
            return values[:, 0] + space.start
        # f32 may round a bound to a number outside.
        values = np.clip(values.astype(space.dtype), np.ravel(space.low), np.ravel(space.high))
        return values.reshape(-1, *space.shape)

    def step_some(self, ids, kept):
        which = self.index(ids)
        names = "observation, reward, terminated, truncated, info"
        obs, rewards, terminated, truncated, _ = parts_of("step", self.env.step(self.actions(which), ids), names)
        if np.shape(rewards) != ids.shape:
            raise ValueError(f"there are {np.size(rewards)} rewards for {len(ids)} environments: several players")
        self.rewards[which] = rewards
        done = terminated | truncated
        self.observation.store(self.rows, which, obs)
        if not done.any():
            return
        flags = TERMINATED * terminated + TRUNCATED * truncated
        starting = done & ~np.isin(ids, kept) if kept else done
        if starting.any():
            ended = ids[starting]
            self.last_rows[ended] = self.rows[ended]
            self.observation.store(self.rows, ended, self.reset_obs(ended))
            flags = flags + WAS_RESET * starting
        self.flags[which] = flags


class OneOf:
    """One environment of a Vector, for images."""

    metadata = {}

    def __init__(self, vector, k):
        self.vector, self.k = vector, k

    @property
    def render_mode(self):
        return self.vector.env.render_mode

    def render(self):
        return self.vector.env.render([self.k])[0]
