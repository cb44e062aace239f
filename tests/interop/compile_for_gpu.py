#!/usr/bin/env python3
"""Compiles StableHLO texts for NVIDIA GPUs, on a machine without one.

    PODRACER_DUMP_IR_TO=DIR PODRACER_DUMP_IR_FOR=cuda COMMAND    makes them, of all that COMMAND compiles
    compile_for_gpu.py DIR [--processes N]                       compiles them for an H200

With --processes the replicas of a text are divided over so many machines, and texts of which they
cannot be are left out. Nothing is run. Prints how many were compiled, and the first text of each kind
of error; fails if there is one.

Needs, in one Python environment: jax==0.10.2 jax-cuda13-plugin==0.10.2 jax-cuda13-pjrt==0.10.2
nvidia-nvvm nvidia-cuda-nvcc.
"""
import argparse
import collections
import ctypes
import os
import pathlib
import re
import sys

os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import numpy as np
from jax._src.interpreters import mlir as jax_mlir
from jax._src.lib.mlir import ir
from jax.experimental import topologies
from jaxlib import _jax, xla_client

# What the compiler has to know of the device; XLA's GpuTargetConfigProto.
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 151397597184 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation" platform_version: "Compute Capability 9.0"
  device_address_bits: 64 name: "NVIDIA H200"
  driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.12.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 12 patch: 0 }
device_description_str: "NVIDIA H200"
"""


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def handler(frame):
    """In the place of our callbacks, which the compiler only wants to know of: tells its version of
    XLA's foreign-function interface when it is registered."""
    extension = ctypes.c_void_p.from_address(frame + 8).value
    if extension and ctypes.c_int32.from_address(extension + 8).value == 1:
        metadata = ctypes.c_void_p.from_address(extension + 24).value
        for offset, value in ((24, 0), (28, 2), (32, 0)):
            ctypes.c_int32.from_address(metadata + offset).value = value
    return None


def number(what, text):
    return int(re.search(rf"{what} = (\d+)", text).group(1))


def compiled(text, processes, devices_of={}):
    replicas, partitions = number("num_replicas", text), number("num_partitions", text)
    count = replicas * partitions
    if count not in devices_of:
        devices_of[count] = topologies.get_topology_desc(
            platform="cuda",
            topology_name="",
            target_config=H200,
            topology=f"1x{processes}x{count // processes}",
        ).devices
    devices = devices_of[count][:count]
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    for where in (options, build):
        where.num_replicas, where.num_partitions = replicas, partitions
        where.device_assignment = xla_client.DeviceAssignment.create(
            np.arange(count).reshape(replicas, partitions)
        )
    build.use_spmd_partitioning = partitions > 1
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(text)
        return devices[0].client.compile(module, _jax.DeviceList(tuple(devices)), options)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("dir", type=pathlib.Path)
    arguments.add_argument("--processes", type=int, default=1)
    arguments = arguments.parse_args()
    jax._src.xla_bridge._discover_and_register_pjrt_plugins()
    jax.ffi.register_ffi_target("podracer.callback.2", jax.ffi.pycapsule(handler), platform="CUDA")
    files = sorted(arguments.dir.glob("*.mlir"))
    errors = collections.defaultdict(list)
    left = 0
    for file in files:
        text = file.read_text()
        if number("num_replicas", text) % arguments.processes > 0:
            left += 1
            continue
        try:
            compiled(text, arguments.processes)
        except Exception as error:
            kind = re.sub(r"\d+", "#", str(error).split("\n")[0])[:160]
            errors[kind].append((file.name, str(error)[:600]))
    failed = sum(map(len, errors.values()))
    print(f"{len(files) - left - failed} of {len(files) - left} compiled; {left} left out")
    for kind, those in errors.items():
        print(f"{len(those)} times: {those[0][0]}: {those[0][1]}")
    sys.exit(failed > 0 or len(files) == left)


if __name__ == "__main__":
    main()
