"""Writes JAX functions as programs that Podracer loads.

    from jax_to_podracer import save
    save("norm.txt", lambda x: jnp.sqrt(jnp.sum(x * x)), jnp.zeros(3))

In Rust, `Program::load("norm.txt")?` is a function for traced code. Environments of gymnax, PGX and
Brax, and one's own:

    python jax_to_podracer.py gymnax:CartPole-v1 --out cartpole
    podracer train ppo_anakin --env-id jax:cartpole

See docs/jax-environments.md. Needs jax 0.10.2. The primitives are in `jax_primitives.py`,
`jax_control.py`, `jax_functions.py` and `jax_linalg.py`, those that are refused in `jax_refused.py`, the
packages of environments in `jax_environments.py`, all in one folder.
"""

import inspect
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import source_info_util
from jax._src.core import internal_mutable_array_effect
from jax._src.state.discharge import discharge_state
from jax.extend import core

DTYPES = {
    "bool": "bool", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
    "uint16": "u16", "uint32": "u32", "uint64": "u64", "float16": "f16", "bfloat16": "bf16",
    "float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128",
}
FLOATS = {"f16", "bf16", "f32", "f64"}
# Elements of a constant that are written as decimals; more are written as bits.
SHOWN = 64


class Unsupported(Exception):
    """A primitive or type that Podracer has no operation for."""


class Value(NamedTuple):
    """An operand: the text that refers to it, and its type."""

    text: str
    dtype: str
    shape: tuple
    # The element, if the operand is a constant whose elements are all equal.
    splat: Any = None


def is_key(dtype):
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def physical(aval):
    """Element type and shape of a value; typed keys are two words each."""
    if not isinstance(getattr(aval, "shape", None), tuple):
        raise Unsupported(f"values of type {aval} are not supported")
    if is_key(aval.dtype):
        impl = aval.dtype._impl
        if impl.name != "threefry2x32":
            raise Unsupported(f"keys of {impl.name} are not supported; use threefry2x32 keys")
        return "u32", (*aval.shape, 2)
    if aval.dtype.name not in DTYPES:
        raise Unsupported(f"elements of type {aval.dtype.name} are not supported")
    return DTYPES[aval.dtype.name], tuple(int(size) for size in aval.shape)


def shape_text(shape):
    return "[" + ",".join(map(str, shape)) + "]"


def type_text(dtype, shape):
    return dtype + shape_text(shape)


def list_text(items):
    return "(" + ",".join(str(int(item)) for item in items) + ")"


def name(number):
    """A variable's name: a number in the digits a to z."""
    letters = ""
    while True:
        letters = chr(ord("a") + number % 26) + letters
        number //= 26
        if number == 0:
            return letters


def element_text(x):
    """An element of an array as text that reads back as the same bits."""
    if x.dtype == np.bool_:
        return "true" if x else "false"
    if jax.dtypes.issubdtype(x.dtype, np.complexfloating):
        real, imag = element_text(x.real), element_text(x.imag)
        return f"{real}{'' if imag.startswith('-') else '+'}{imag}j"
    if not jax.dtypes.issubdtype(x.dtype, np.floating):
        return str(int(x))
    if np.isnan(x):
        bits = x.view(f"uint{8 * x.dtype.itemsize}").item()
        return f"NaN(0x{bits:0{2 * x.dtype.itemsize}x})"
    if np.isinf(x):
        return "inf" if x > 0 else "-inf"
    # numpy's text of a float32 is the shortest that reads back; narrower ones are exact in float64.
    return str(x) if x.dtype in (np.float32, np.float64) else repr(float(x))


def bits(array):
    """The bytes of each element as hexadecimal digits, the highest first."""
    size = array.dtype.itemsize
    words = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, size)
    return (words[:, ::-1] if sys.byteorder == "little" else words).tobytes().hex()


class Line(NamedTuple):
    outputs: tuple
    op: str
    inputs: tuple
    bodies: tuple


class Body:
    """Equations of one program. Equal equations are written once."""

    def __init__(self):
        self.lines = []
        self.inputs = []
        self.count = 0
        self.seen = {}

    def variable(self, dtype, shape):
        self.count += 1
        return Value(name(self.count - 1), dtype, shape)

    def input(self, dtype, shape):
        value = self.variable(dtype, shape)
        self.inputs.append(value)
        return value

    def emit(self, op, inputs, types, bodies=()):
        """Adds the equation `op inputs` with results of these types."""
        key = (op, tuple(value.text for value in inputs), tuple(types), tuple(bodies))
        if key not in self.seen:
            outputs = tuple(self.variable(*ty) for ty in types)
            self.lines.append(Line(outputs, op, tuple(v.text for v in inputs), tuple(bodies)))
            self.seen[key] = list(outputs)
        return self.seen[key]

    def constant(self, value, dtype=None):
        array = np.asarray(value) if dtype is None else np.asarray(value, dtype)
        if array.dtype.name not in DTYPES:
            raise Unsupported(f"constants of type {array.dtype} are not supported")
        kind, shape = DTYPES[array.dtype.name], array.shape
        flat = array.reshape(-1)
        digits = bits(array)
        width = 2 * array.dtype.itemsize
        if flat.size == 0 or digits == digits[:width] * flat.size:
            element = flat[0] if flat.size else np.zeros((), array.dtype)[()]
            return self.splat(element, shape)
        if flat.size <= SHOWN:
            text = "[" + ", ".join(map(element_text, flat)) + "]"
        else:
            text = "0x" + digits
        return self.emit(f"constant[{type_text(kind, shape)} {text}]", [], [(kind, shape)])[0]

    def splat(self, element, shape):
        kind = DTYPES[element.dtype.name]
        text = f"{element_text(element)}:{type_text(kind, shape)}"
        return Value(text, kind, tuple(shape), element)

    def text(self, outputs):
        """The program with these results, without equations that nothing needs."""
        needed = {value.text for value in outputs}
        kept = []
        for line in reversed(self.lines):
            if any(output.text in needed for output in line.outputs):
                kept.append(line)
                needed.update(line.inputs)
        inputs = "".join(f" {v.text}:{type_text(v.dtype, v.shape)}" for v in self.inputs)
        lines = [f"{{ lambda{inputs}. let"]
        for line in reversed(kept):
            results = " ".join(f"{v.text}:{type_text(v.dtype, v.shape)}" for v in line.outputs)
            lines.append(f"  {results} = {' '.join((line.op, *line.inputs))}")
            for label, body in line.bodies:
                lines += ["  " + row for row in f"{label}: {body}".split("\n")]
        lines.append(f" in ({', '.join(value.text for value in outputs)}) }}")
        return "\n".join(lines)


class Translator:
    """Adds the equations of jaxprs to a body."""

    def __init__(self, body, derivatives):
        self.body = body
        # True if derivatives of custom_jvp functions are written too.
        self.derivatives = derivatives
        # Number of expansions around; their equations are at no line of the user's.
        self.expansions = 0

    def emit(self, op, inputs, types, bodies=()):
        return self.body.emit(op, inputs, types, bodies)

    def one(self, op, inputs, dtype, shape):
        return self.body.emit(op, inputs, [(dtype, tuple(shape))])[0]

    def constant(self, value, dtype=None):
        return self.body.constant(value, dtype)

    def broadcast(self, x, shape, axes=None):
        """`x` in a larger shape; `axes` are those that its axes become, by default the last."""
        shape = tuple(shape)
        if axes is None:
            axes = range(len(shape) - len(x.shape), len(shape))
        if x.splat is not None:
            return self.body.splat(x.splat, shape)
        if x.shape == shape and list(axes) == list(range(len(shape))):
            return x
        op = f"broadcast[shape={shape_text(shape)} axes={list_text(axes)}]"
        return self.one(op, [x], x.dtype, shape)

    def reshape(self, x, shape):
        shape = tuple(shape)
        if x.splat is not None:
            return self.body.splat(x.splat, shape)
        if x.shape == shape:
            return x
        return self.one(f"reshape[shape={shape_text(shape)}]", [x], x.dtype, shape)

    def convert(self, x, dtype):
        if x.dtype == dtype:
            return x
        if dtype == "bool":
            zero = next(name for name, ours in DTYPES.items() if ours == x.dtype)
            zero = self.body.splat(np.zeros((), jax.numpy.dtype(zero))[()], x.shape)
            return self.one("ne", [x, zero], "bool", x.shape)
        return self.one(f"convert[dtype={dtype}]", [x], dtype, x.shape)

    def call(self, closed, args):
        """The results of a jaxpr, whose equations become part of this body."""
        if internal_mutable_array_effect in closed.effects:
            closed = discharge_state(closed)  # references become values
        consts = [self.value(const) for const in closed.consts]
        return self.jaxpr(closed.jaxpr, consts, args)

    def value(self, const):
        if is_key(getattr(const, "dtype", np.dtype(bool))):
            const = jax.random.key_data(const)
        return self.constant(np.asarray(const))

    def program(self, closed):
        """A jaxpr as a program of its own."""
        inner = Translator(Body(), self.derivatives)
        inner.expansions = self.expansions
        args = [inner.body.input(*physical(aval)) for aval in closed.in_avals]
        return inner.body.text(inner.call(closed, args))

    def expand(self, f, args, types=None):
        """The results of a JAX function, whose jaxpr becomes part of this body. Without `types`, keys are
        words."""
        if types is None:
            names = {ours: theirs for theirs, ours in DTYPES.items()}
            types = [jax.ShapeDtypeStruct(x.shape, jax.numpy.dtype(names[x.dtype])) for x in args]
        closed = jax.make_jaxpr(f)(*types)
        self.expansions += 1
        try:
            return self.call(closed, args)
        finally:
            self.expansions -= 1

    def jaxpr(self, jaxpr, consts, args):
        env = dict(zip(jaxpr.constvars, consts))
        env.update(zip(jaxpr.invars, args))

        def read(atom):
            if not isinstance(atom, core.Literal):
                return env[atom]
            if is_key(atom.aval.dtype):
                return self.value(atom.val)
            return self.constant(np.broadcast_to(np.asarray(atom.val, atom.aval.dtype), atom.aval.shape))

        for eqn in needed(jaxpr):
            try:
                results = self.equation(eqn, [read(atom) for atom in eqn.invars])
            except Unsupported as error:
                # The innermost line of the user's that is known.
                if not self.expansions and "\n" not in str(error) and (line := place(eqn)):
                    raise Unsupported(f"{error}\n  at {line}") from None
                raise
            env.update(zip(eqn.outvars, results))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, eqn, inputs):
        import jax_functions, jax_linalg  # add their rules
        from jax_control import by_lowering
        from jax_primitives import RULES
        from jax_refused import advice

        primitive = eqn.primitive.name
        results = RULES.get(primitive, by_lowering)(self, eqn, inputs)
        if results is None:
            raise Unsupported(f"the primitive {primitive} is not supported{advice(primitive)}")
        if isinstance(results, Value):
            results = [results]
        for result, var in zip(results, eqn.outvars, strict=True):
            wanted = physical(var.aval)
            assert (result.dtype, result.shape) == wanted, (primitive, result, wanted)
        return results


def needed(jaxpr):
    """The equations whose results are used. JAX's rules leave others behind, of types that no program has."""
    used, equations = {v for v in jaxpr.outvars if not isinstance(v, core.Literal)}, []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or any(v in used for v in eqn.outvars):
            equations.append(eqn)
            used.update(v for v in eqn.invars if not isinstance(v, core.Literal))
    return reversed(equations)


def place(eqn):
    """The user's line that made an equation."""
    here = str(Path(__file__).parent)
    for frame in source_info_util.user_frames(eqn.source_info.traceback):
        if not frame.file_name.startswith(here + "/jax_"):
            return f"{frame.file_name}:{frame.start_line} ({frame.function_name})"
    return ""


def leaf_names(prefixes, trees):
    names = []
    for prefix, tree in zip(prefixes, trees):
        for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]:
            names.append(prefix + jax.tree_util.keystr(path))
    return names


def parameter_names(f, count):
    try:
        parameters = [p for p in inspect.signature(f).parameters.values()
                      if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):
        parameters = []
    if len(parameters) < count:
        return [f"args[{i}]" for i in range(count)]
    return [parameter.name for parameter in parameters[:count]]


def text(f, *examples, metadata=None, derivatives=True):
    """The text of a JAX function as a program, for arguments like `examples`, which are pytrees of
    arrays or of `jax.ShapeDtypeStruct`.

    `derivatives=False` leaves out the derivatives that `custom_jvp` functions have of their own:
    the file is smaller, and the derivative of such a function is then that of its body.
    """
    closed, shapes = jax.make_jaxpr(f, return_shape=True)(*examples)
    translator = Translator(Body(), derivatives)
    args = [translator.body.input(*physical(aval)) for aval in closed.in_avals]
    results = translator.call(closed, args)
    header = {
        "version": 1,
        "inputs": leaf_names(parameter_names(f, len(examples)), examples),
        "outputs": leaf_names(["result"], [shapes]),
        **(metadata or {}),
    }
    return f"# podracer program {json.dumps(header)}\n{translator.body.text(results)}\n"


def save(path, f, *examples, metadata=None, derivatives=True):
    """Writes a JAX function to a file that `Program::load` reads; see `text`."""
    written = text(f, *examples, metadata=metadata, derivatives=derivatives)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(written)


if __name__ == "__main__":
    # One module, under whichever name it was started.
    sys.modules.setdefault("jax_to_podracer", sys.modules["__main__"])
    from jax_environments import main

    main()
