#!/usr/bin/env python3
"""Runs functions.onnx in a folder with ONNX Runtime, and compares the results with values.json.

    onnx.py FOLDER

Needs: numpy, onnxruntime.
"""
import json
import pathlib
import sys

import numpy as np
import onnxruntime

TYPES = {"f32": "float32", "i32": "int32", "bool": "bool"}


def array(value):
    return np.asarray(value["data"], np.float64).astype(TYPES[value["dtype"]]).reshape(value["shape"])


folder = pathlib.Path(sys.argv[1])
values = json.loads((folder / "values.json").read_text())
session = onnxruntime.InferenceSession(folder / "functions.onnx")
inputs = {x.name: array(value) for x, value in zip(session.get_inputs(), values["in"])}
results = session.run(None, inputs)
assert len(results) == len(values["out"])
for output, theirs, value in zip(session.get_outputs(), results, values["out"]):
    ours = array(value)
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), (output.name, ours.shape, ours.dtype, theirs.shape, theirs.dtype)
    both_nan = np.isnan(ours.astype(np.float64)) & np.isnan(theirs.astype(np.float64))
    error = np.where(both_nan | (ours == theirs), 0.0, np.abs(ours.astype(np.float64) - theirs) / np.maximum(np.abs(ours), 1.0))
    assert error.max(initial=0.0) <= 2e-6, (output.name, ours, theirs)
print(f"onnx: {len(results)} results agree")
