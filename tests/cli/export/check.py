#!/usr/bin/env python3
"""Runs the policy files in each folder with JAX and ONNX Runtime, and compares the results with values.json.

    check.py FOLDER..

Needs: jax, numpy, onnxruntime.
"""
import json
import pathlib
import sys

import jax
import numpy as np
import onnxruntime
from jax import export
from jax.extend import backend
from jaxlib import xla_client

TOLERANCE = 1e-6


def array(value):
    return np.asarray(value["data"], np.float64).astype(value["dtype"]).reshape(value["shape"])


def by_jax(folder, inputs):
    policy = export.deserialize((folder / "policy.jaxexport").read_bytes())
    return policy.call(*inputs.values())


def by_stablehlo(folder, inputs, names):
    client = backend.get_backend("cpu")
    devices = xla_client.DeviceList(tuple(client.local_devices()[:1]))
    executable = client.compile_and_load((folder / "policy.mlir").read_text(), devices)
    results = executable.execute([jax.device_put(x) for x in inputs.values()])
    return dict(zip(names, results))


def by_onnx(folder, inputs):
    session = onnxruntime.InferenceSession(folder / "policy.onnx")
    assert [x.name for x in session.get_inputs()] == list(inputs), session.get_inputs()
    metadata = session.get_modelmeta().custom_metadata_map
    names = ["action_space", "action_start", "algorithm", "env_id", "evaluation", "observation_space"]
    assert sorted(metadata) == names and metadata["action_start"] == "0", metadata
    names = [x.name for x in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs)))


def compare(kind, results, expected, scale):
    assert set(results) == set(expected), (kind, list(results), list(expected))
    for name, theirs in results.items():
        ours, theirs = expected[name], np.asarray(theirs)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), (kind, name, theirs.dtype, theirs.shape)
        error = np.abs(ours.astype(np.float64) - theirs) / np.maximum(np.abs(ours), scale)
        print(f"{kind} {name}: largest difference {error.max():.1e}")
        assert error.max() <= TOLERANCE, (kind, name, error.max())


def check(folder):
    print(folder)
    values = json.loads((folder / "values.json").read_text())
    inputs = {name: array(value) for name, value in values["in"]}
    expected = {name: array(value) for name, value in values["out"]}
    scale = values["scale"]
    compare("jax", by_jax(folder, inputs), expected, scale)
    compare("stablehlo", by_stablehlo(folder, inputs, values["order"]), expected, scale)
    compare("onnx", by_onnx(folder, inputs), expected, scale)
    # Batches of another size: a single observation, and the first one twice.
    axis = {"observation": 0, "state": 1}
    for picked in ([0], [0, 0, 1, 2]):
        part = {name: np.take(x, picked, axis[name]) for name, x in inputs.items()}
        wanted = {name: np.take(x, picked, 1 if name == "next_state" else 0) for name, x in expected.items()}
        compare(f"onnx of {len(picked)}", by_onnx(folder, part), wanted, scale)


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        check(pathlib.Path(folder))
