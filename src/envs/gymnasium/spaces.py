"""Values and spaces of the environments that worker.py steps. The pool passes this file and then worker.py as
one script, whose modules and global names are those of worker.py.
"""

# Characters of the text of an error, and of a value in it.
MAX_TEXT, MAX_VALUE = 1 << 14, 200


class Refused(Exception):
    """An environment that cannot be used, with the reason."""


def shortened(text, limit):
    """The beginning and the end of a text, in characters that a terminal shows."""
    if len(text) > limit:
        text = f"{text[: limit // 2]} [.. {len(text) - limit} characters ..] {text[-(limit // 2) :]}"
    shows = lambda letter: letter.isprintable() or letter in "\n\t"
    return "".join(letter if shows(letter) else ascii(letter)[1:-1] for letter in text)


def shown(value, limit=MAX_VALUE):
    """A value in the text of an error."""
    try:
        return shortened(repr(value[:MAX_TEXT] if isinstance(value, (str, bytes)) else value), limit)
    except Exception:
        return f"a {type(value).__name__}"


# ------------------------------------------------------------------------------------------ values


def number(what, value, expected="a number"):
    """A number, or an array of one number, as a float."""
    try:
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biuf":
            return float(array.item())
        if array.dtype.kind not in "SU" and hasattr(value, "__float__"):
            return float(value)
    except Exception:
        pass
    raise ValueError(f"{what} is {shown(value)}, expected {expected}") from None


def truth(what, value):
    """A truth value, or an array of one."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    expected = "True or False"
    found = number(what, value, expected)
    if found not in (0, 1):
        raise ValueError(f"{what} is {shown(value)}, expected {expected}")
    return bool(found)


def parts_of(what, result, names):
    """The parts of a tuple that the environment returned."""
    if not isinstance(result, (tuple, list)):
        raise ValueError(f"{what} returned {shown(result)}, expected a tuple: {names}")
    count = names.count(",") + 1
    if len(result) != count:
        raise ValueError(f"{what} returned {len(result)} values, expected {count}: {names}")
    return result


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


def array_of(value):
    """An observation as an array of numbers."""
    try:
        array = np.asarray(value)
        array = array.astype(np.float64) if array.dtype.kind == "O" and array.ndim else array
    except Exception as error:
        raise ValueError(f"the observation is {shown(value)}, which is no array: {error}") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"the observation is {shown(value)}, expected numbers")
    return array


def choice(space, obs):
    """An observation of a Discrete, counted from 0."""
    value = number("the observation", obs) - int(space.start)
    if not 0 <= value < space.n or value != int(value):
        raise ValueError(f"the observation is {shown(obs)}, outside of {space}")
    return int(value)


def flattened(space, obs):
    """An observation as gymnasium.spaces.utils.flatten makes a vector of it."""
    if isinstance(space, gymnasium.spaces.Discrete):
        # A negative one would count from the end.
        obs = space.start + choice(space, obs)
    try:
        return array_of(gymnasium.spaces.utils.flatten(space, obs))
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise ValueError(f"the observation is {shown(obs)}, which is none of {shown(space)}: {problem}") from None


def flat_space(space):
    """The Box of the vectors that `flattened` returns."""
    try:
        flat = gymnasium.spaces.utils.flatten_space(space)
    except NotImplementedError:
        flat = None
    if not isinstance(flat, gymnasium.spaces.Box):
        raise Refused(f"the observation space {space} has no fixed size; wrap the environment")
    return flat


def store_converted(row, obs, shape):
    """Stores an observation of another type than the space's, if no value changes its meaning."""
    obs = array_of(obs)
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
    stay images, other integers become f32. Images have their channels first, as in PyTorch."""

    def __init__(self, space):
        kept = space.dtype in (np.float32, np.float64, np.bool_) or (space.dtype == np.uint8 and len(space.shape) > 1)
        dtype = space.dtype if kept else np.dtype(np.float32)
        shape = space.shape
        last = space.dtype == np.uint8 and len(shape) == 3 and shape[2] in (1, 3, 4) and min(shape[:2]) >= 36
        # The axes of a row in the order of the space.
        self.axes = (1, 2, 0) if last else None
        first = (lambda array: np.moveaxis(array, 2, 0)) if last else (lambda array: array)
        self.spec = box((shape[2], *shape[:2]) if last else shape or (1,), dtype)
        if hasattr(space, "low"):
            self.spec.update(low=bound(first(space.low)), high=bound(first(space.high)))
        # The type and the shape of arrays that need no conversion.
        self.fast = (np.dtype(space.dtype), shape) if shape else (None, None)
        self.store = lambda row, obs: store_converted(row, obs, shape)


class DiscreteObservation:
    """Observations of a Discrete: one i32, counted from 0."""

    fast = (None, None)

    def __init__(self, space):
        self.spec = {"kind": "discrete", "n": int(space.n)}

        def store(row, obs):
            row[...] = choice(space, obs)

        self.store = store


class FlatObservation:
    """Observations of a Dict, a Tuple or any other space: a vector of f32, by gymnasium.spaces.utils.flatten."""

    fast = (None, None)

    def __init__(self, space):
        flat = flat_space(space)
        shape = flat.shape
        self.spec = box(shape, np.float32, bound(flat.low), bound(flat.high))

        def store(row, obs):
            obs = flattened(space, obs)
            expect_shape(obs, shape)
            row[...] = obs

        self.store = store


def observation_of(space, settings):
    spaces = gymnasium.spaces
    if settings["flatten_observation"]:
        return FlatObservation(space)
    if isinstance(space, spaces.Discrete):
        return DiscreteObservation(space)
    if isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        return ArrayObservation(space)
    return FlatObservation(space)


def box_decoder(space, elements):
    """Function from the array of all leaves, f32, to an action of a Box. A bound that f32 rounds would lie
    outside of the space: the two numbers of f32 around a bound become the bound itself."""
    shape, dtype, ends = space.shape, space.dtype, []
    with np.errstate(all="ignore"):
        for end in (np.ravel(space.low), np.ravel(space.high)):
            near, exact = end.astype(np.float32), end.astype(np.longdouble)
            below = np.where(near > exact, np.nextafter(near, np.float32(-np.inf)), near)
            above = np.where(near < exact, np.nextafter(near, np.float32(np.inf)), near)
            ends.append((end, below, above))
    # Copies: the environment may keep its action.
    if all((below == above).all() for _, below, above in ends):
        return lambda values: values[elements].astype(dtype).reshape(shape)

    def decode(values):
        values = values[elements]
        with np.errstate(invalid="ignore"):
            action = values.astype(dtype)
        for end, below, above in ends:
            np.copyto(action, end, where=(below <= values) & (values <= above))
        return action.reshape(shape)

    return decode


class Actions:
    """Actions of one space: the leaves of a Dict or Tuple one after the other in one array."""

    def __init__(self, space):
        self.nvec, self.low, self.high, self.boxes, self.leaves = [], [], [], False, 0
        self.decode = self.decoder(space)
        self.space = space
        if self.boxes and self.nvec:
            raise Refused(f"the action space {space} has both choices and numbers; wrap the environment")
        self.width = len(self.low) if self.boxes else len(self.nvec)
        if not self.width:
            raise Refused(f"the action space {space} has no elements; wrap the environment")
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
            return box_decoder(space, slice(first, len(self.low) + len(self.nvec)))
        if isinstance(space, spaces.MultiBinary):
            self.nvec.extend([2] * int(np.prod(shape)))
            start = 0
        elif isinstance(space, spaces.MultiDiscrete):
            self.nvec.extend(int(n) for n in np.ravel(space.nvec))
            start = getattr(space, "start", 0)
        else:
            raise Refused(f"the action space {space} is not supported; wrap the environment")
        end = len(self.low) + len(self.nvec)
        return lambda values: values[first:end].astype(dtype).reshape(shape) + np.asarray(start, dtype)


class MaskedObservation:
    """Observations as a vector of f32, followed by the mask of allowed actions in info."""

    fast = (None, None)

    def __init__(self, space, nvec):
        if not nvec:
            raise Refused("an action mask needs an action space of choices")
        size, firsts = flat_space(space).shape[0], np.cumsum([0, *nvec[:-1]])
        self.spec = box((size + sum(nvec),), np.float32)

        def store(row, obs, info, done):
            obs = flattened(space, obs)
            expect_shape(obs, (size,))
            row[:size] = obs
            row[size:] = 1
            if done:
                return
            mask = info.get("action_mask") if isinstance(info, dict) else None
            if mask is None:
                raise ValueError('info has no "action_mask"')
            parts = mask if isinstance(mask, tuple) else (mask,)
            mask = np.concatenate([np.ravel(part) for part in parts])
            if mask.shape != (sum(nvec),) or mask.dtype.kind not in "biuf":
                raise ValueError(f"the action mask is {shown(mask)}, expected {sum(nvec)} numbers")
            row[size:] = mask != 0
            if not np.add.reduceat(row[size:], firsts).all():
                raise ValueError(f"the action mask {mask} allows no action")

        self.store = store
